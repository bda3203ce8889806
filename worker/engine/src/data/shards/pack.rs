//! Packs a data set into shards, in the memory of a block of rows however large it is.
//!
//! 1. Rows are read and tokenised block by block, and their tokens written to a temporary file, with where each ends.
//! 2. Each shard is written from that file. In `cpt` mode all tokens are one sequence that is cut into parts of equal
//!    length; in `sft` mode a shard gets every n-th row, whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use trainyard_shared::coordinator::Mode;
use trainyard_shared::training::TrainOn;

use super::super::RowEncoder;
use super::super::examples::{Example, TRAINED, is_trained};
use super::super::read::{DataFile, read_rows};
use super::super::report::DatasetReport;
use super::super::token_file::{RowSink, Written};
use super::{IDS, KEPT_TOKENS, LABELS, SHARD_FORMAT};
use crate::EngineError;
use crate::chat_template::Chat;
use crate::device::MappedFile;
use crate::files::{self, Access, WrittenFile};
use crate::model::IGNORE;

/// Rows are not cut: no record of a data set is so long.
const LONGEST_ROW: usize = 1 << 26;
/// The most shards that a data set is packed into.
const MAX_SHARDS: u32 = 100_000;
/// Tokens that are written at once.
const WRITTEN_TOKENS: usize = 1 << 14;
/// Name of the file that says what a folder of shards holds.
const MANIFEST: &str = "shards.json";

/// A data set that is to become shards.
#[derive(Debug)]
pub struct Packing<'a> {
    /// The data set.
    pub dataset: &'a DataFile,
    /// Bad rows that may be skipped.
    pub max_bad_rows: u64,
    /// The model's tokenizer and chat template.
    pub chat: &'a Chat,
    /// Tokens that the model knows.
    pub vocab_size: usize,
    /// `cpt`: every token is learned; `sft`: the assistant's alone.
    pub mode: Mode,
    /// How many shards.
    pub shards: u32,
}

/// What a folder of shards holds; also written there as `shards.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Always [`SHARD_FORMAT`].
    pub format: String,
    /// What is learned.
    pub mode: Mode,
    /// Tokens of all shards.
    pub tokens: u64,
    /// Tokens that the loss falls on.
    pub learned_tokens: u64,
    /// What became of the data set's rows.
    pub dataset: DatasetReport,
    /// In their order.
    pub shards: Vec<PackedShard>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedShard {
    /// Name of its file in the folder.
    pub file: String,
    /// Its tokens.
    pub tokens: u64,
    /// Tokens that the loss falls on.
    pub learned_tokens: u64,
    /// Bytes of its file.
    pub size_bytes: u64,
    /// SHA-256 of its file in hexadecimal.
    pub sha256: String,
}

impl Packing<'_> {
    /// Writes the shards into `folder`, which is made where it is not there. Each file is whole or not there, and
    /// `shards.json` is written last. `is_stopped` is asked before every row and every shard.
    ///
    /// # Errors
    /// [`EngineError::InvalidData`] naming bad rows, or where there is too little for so many shards;
    /// [`EngineError::Stopped`]; [`EngineError::Io`].
    pub fn write(
        &self,
        folder: &Path,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Packed, EngineError> {
        let failed = |error| EngineError::io("write", folder, error);
        if !(1..=MAX_SHARDS).contains(&self.shards) {
            return Err(EngineError::InvalidSetting {
                field: "shards",
                message: format!("{} is not in 1..={MAX_SHARDS}", self.shards),
            });
        }
        fs::create_dir_all(folder).map_err(failed)?;
        let (tokens, dataset) = self.tokenise(folder, is_stopped)?;
        self.check_enough(&tokens)?;
        let mut packed = Packed {
            format: SHARD_FORMAT.to_owned(),
            mode: self.mode,
            tokens: 0,
            learned_tokens: 0,
            dataset,
            shards: Vec::new(),
        };
        for index in 0..self.shards {
            if is_stopped() {
                return Err(EngineError::Stopped);
            }
            let shard = tokens.shard(self.mode, index as usize, self.shards as usize);
            let file = format!("shard-{index:05}.safetensors");
            let WrittenFile { size_bytes, sha256 } =
                files::write_hashed(&folder.join(&file), |out| shard.write(out)).map_err(failed)?;
            let (count, learned_tokens) = shard.figures();
            packed.tokens += count;
            packed.learned_tokens += learned_tokens;
            packed.shards.push(PackedShard {
                file,
                tokens: count,
                learned_tokens,
                size_bytes,
                sha256,
            });
        }
        let text = serde_json::to_string_pretty(&packed).expect("plain fields are written as JSON");
        let manifest = folder.join(MANIFEST);
        files::write_atomically(&manifest, (text + "\n").as_bytes(), Access::Default)
            .map_err(failed)?;
        Ok(packed)
    }

    fn tokenise(
        &self,
        folder: &Path,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<(Tokens, DatasetReport), EngineError> {
        let failed = |error| EngineError::io("write in", folder, error);
        let encoder = RowEncoder {
            chat: self.chat,
            train_on: match self.mode {
                Mode::Cpt => TrainOn::All,
                Mode::Sft => TrainOn::Assistant,
            },
            max_length: LONGEST_ROW,
            vocab_size: self.vocab_size,
        };
        let mut spool = Spool::new(folder).map_err(failed)?;
        let digest = self.dataset.digest()?;
        let read = read_rows(
            self.dataset,
            digest,
            &encoder,
            self.max_bad_rows,
            &mut spool,
            is_stopped,
        );
        if is_stopped() {
            return Err(EngineError::Stopped);
        }
        Ok((spool.finish().map_err(failed)?, read?))
    }

    fn check_enough(&self, tokens: &Tokens) -> Result<(), EngineError> {
        let shards = self.shards as usize;
        let problem = match self.mode {
            Mode::Cpt if tokens.count() / shards < 2 => {
                format!("{} tokens", tokens.count())
            }
            Mode::Sft if tokens.rows() < shards => format!("{} rows", tokens.rows()),
            _ if tokens.count().div_ceil(shards) >= u32::MAX as usize => {
                return Err(EngineError::InvalidData(format!(
                    "{} tokens are too many for {shards} shards",
                    tokens.count()
                )));
            }
            _ => return Ok(()),
        };
        Err(EngineError::InvalidData(format!(
            "{problem} are too few for {shards} shards"
        )))
    }
}

/// Tokens of all rows on their way to a temporary file.
struct Spool {
    /// `u32` each, in this machine's order, with the mark on those to be learned.
    tokens: BufWriter<File>,
    /// `u64` each: where each row ends.
    ends: BufWriter<File>,
    written: Written,
    token_count: u64,
}

impl Spool {
    fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            tokens: BufWriter::new(tempfile::tempfile_in(folder)?),
            ends: BufWriter::new(tempfile::tempfile_in(folder)?),
            written: Written::default(),
            token_count: 0,
        })
    }

    fn finish(self) -> io::Result<Tokens> {
        let mapped = |writer: BufWriter<File>| {
            let file = writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            match file.metadata()?.len() {
                0 => Ok(None),
                _ => MappedFile::of(&file).map(Some),
            }
        };
        Ok(Tokens {
            tokens: mapped(self.tokens)?,
            ends: mapped(self.ends)?,
        })
    }
}

impl RowSink for Spool {
    fn push(&mut self, example: &Example) -> io::Result<bool> {
        let learned = example.trained.iter().filter(|trained| **trained).count();
        if learned == 0 {
            return Ok(false);
        }
        for (id, trained) in example.ids.iter().zip(&example.trained) {
            let token = if *trained { id | TRAINED } else { *id };
            self.tokens.write_all(&token.to_ne_bytes())?;
        }
        self.token_count += example.ids.len() as u64;
        self.ends.write_all(&self.token_count.to_ne_bytes())?;
        self.written.rows += 1;
        self.written.input_tokens += example.ids.len() as u64;
        self.written.trained_tokens += learned as u64;
        Ok(true)
    }

    fn written(&self) -> Written {
        self.written
    }
}

/// Tokens of all rows in temporary files, mapped; none where there are none.
struct Tokens {
    tokens: Option<MappedFile>,
    ends: Option<MappedFile>,
}

impl Tokens {
    fn all(&self) -> &[u32] {
        self.tokens
            .as_deref()
            .map_or(&[], |bytes| bytemuck::cast_slice(bytes))
    }

    fn ends(&self) -> &[u64] {
        self.ends
            .as_deref()
            .map_or(&[], |bytes| bytemuck::cast_slice(bytes))
    }

    fn count(&self) -> usize {
        self.all().len()
    }

    fn rows(&self) -> usize {
        self.ends().len()
    }

    fn shard(&self, mode: Mode, index: usize, shards: usize) -> ShardTokens<'_> {
        // In 128 bits, since the product may be large.
        let cut = |index: usize| (self.count() as u128 * index as u128 / shards as u128) as usize;
        ShardTokens {
            tokens: self,
            mode,
            rows: match mode {
                Mode::Cpt => Rows::Part(cut(index)..cut(index + 1)),
                Mode::Sft => Rows::EveryNth {
                    first: index,
                    step: shards,
                },
            },
        }
    }

    fn release(&self) {
        for map in [&self.tokens, &self.ends].into_iter().flatten() {
            map.release();
        }
    }
}

/// Which tokens a shard gets.
#[derive(Debug, Clone)]
enum Rows {
    Part(Range<usize>),
    EveryNth { first: usize, step: usize },
}

/// The tokens of one shard.
struct ShardTokens<'a> {
    tokens: &'a Tokens,
    mode: Mode,
    rows: Rows,
}

impl ShardTokens<'_> {
    /// Runs of tokens, one behind the other, none of them longer than is kept in memory.
    fn runs(&self) -> impl Iterator<Item = &[u32]> {
        let (all, ends) = (self.tokens.all(), self.tokens.ends());
        let (part, rows) = match &self.rows {
            Rows::Part(part) => (Some(&all[part.clone()]), None),
            Rows::EveryNth { first, step } => (None, Some((*first..ends.len()).step_by(*step))),
        };
        let row = move |row: usize| {
            let start = if row == 0 { 0 } else { ends[row - 1] };
            &all[start as usize..ends[row] as usize]
        };
        let rows = rows.into_iter().flatten().map(row);
        part.into_iter()
            .chain(rows)
            .flat_map(|run| run.chunks(KEPT_TOKENS))
    }

    /// Tokens, and those of them that the loss falls on: the first is predicted from nothing.
    fn figures(&self) -> (u64, u64) {
        let (mut count, mut learned) = (0, 0);
        let mut first = None;
        for run in self.runs() {
            first = first.or_else(|| run.first().copied());
            count += run.len() as u64;
            learned += run.iter().filter(|token| is_trained(**token)).count() as u64;
        }
        (count, learned - u64::from(first.is_some_and(is_trained)))
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (count, _) = self.figures();
        out.write_all(&self.head(count))?;
        self.write_row(out, |token| (token & !TRAINED).cast_signed())?;
        if self.mode == Mode::Sft {
            self.write_row(out, |token| match is_trained(token) {
                true => (token & !TRAINED).cast_signed(),
                false => IGNORE,
            })?;
        }
        Ok(())
    }

    fn write_row(&self, out: &mut impl Write, number: impl Fn(u32) -> i32) -> io::Result<()> {
        let (mut written, mut bytes) = (0, Vec::new());
        for run in self.runs() {
            for part in run.chunks(WRITTEN_TOKENS) {
                bytes.clear();
                bytes.extend(part.iter().flat_map(|token| number(*token).to_le_bytes()));
                out.write_all(&bytes)?;
            }
            written += run.len();
            if written > KEPT_TOKENS {
                self.tokens.release();
                written = 0;
            }
        }
        Ok(())
    }

    /// Length and names, types and places of the tensors, as every safetensors file begins.
    fn head(&self, count: u64) -> Vec<u8> {
        let bytes = count * size_of::<i32>() as u64;
        let row = |index: u64| json!({"dtype": "I32", "shape": [count], "data_offsets": [index * bytes, (index + 1) * bytes]});
        let mut header = json!({"__metadata__": {"format": SHARD_FORMAT}, IDS: row(0)});
        if self.mode == Mode::Sft {
            header[LABELS] = row(1);
        }
        let mut text = header.to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut head = (text.len() as u64).to_le_bytes().to_vec();
        head.extend(text);
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the calls.
    #[derive(Default)]
    struct Calls(usize);

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn tokens_are_written_many_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(folder.path()).unwrap();
        let row = Example {
            ids: (0..3 * WRITTEN_TOKENS as u32).collect(),
            trained: vec![true; 3 * WRITTEN_TOKENS],
            truncated: false,
        };
        spool.push(&row).unwrap();
        let tokens = spool.finish().unwrap();
        let mut out = Calls::default();
        tokens.shard(Mode::Cpt, 0, 1).write(&mut out).unwrap();
        assert_eq!(
            out.0, 4,
            "the head, and three times as many tokens as go at once"
        );
    }
}
