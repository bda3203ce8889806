//! A file of tokenised rows: written as a stream, checked as a whole when it is opened, then mapped.
//!
//! ```text
//! tokens   u32 each, with the mark on those that are to be learned
//!          zeroes up to a multiple of 8
//! ends     u64 each: where each row ends in the tokens
//! header   JSON: what the rows were made from, and the report
//! trailer  u64 each: number of tokens, number of rows, length of the header; SHA-256 of all before; "TYTOKEN1"
//! ```
//! All numbers are little-endian.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::DatasetReport;
use super::examples::{Example, is_trained};
use crate::device::MappedFile;
use crate::files::HashingWriter;

const MAGIC: &[u8; 8] = b"TYTOKEN1";
const DIGEST_BYTES: u64 = 32;
const TRAILER_BYTES: u64 = 3 * 8 + DIGEST_BYTES + MAGIC.len() as u64;
/// The longest header that is believed.
const MAX_HEADER_BYTES: u64 = 16 * 1024 * 1024;
/// After so many tokens that were read, memory that the map takes up is given back.
const KEPT_TOKENS: usize = 16 * 1024 * 1024;

/// What a file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// What the rows were made from, as one text.
    pub(super) key: String,
    pub(super) report: DatasetReport,
}

/// Takes rows one by one.
pub(super) trait RowSink {
    /// Adds a row. Gives whether anything in it is to be learned; otherwise nothing is added.
    fn push(&mut self, example: &Example) -> io::Result<bool>;

    /// Figures of the rows that were added.
    fn written(&self) -> Written;
}

/// Writes rows into a token file.
pub(super) struct TokenWriter {
    tokens: HashingWriter<BufWriter<File>>,
    /// Where rows end, put behind the tokens at last.
    ends: BufWriter<File>,
    token_count: u64,
    row_count: u64,
    trained_tokens: u64,
}

/// Figures of the rows that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) rows: u64,
    /// Tokens that run through the model: the last one of each row is only predicted.
    pub(super) input_tokens: u64,
    /// Tokens that are to be learned; the first one of a row is predicted from nothing.
    pub(super) trained_tokens: u64,
}

impl TokenWriter {
    /// Writes to `file`, from its start; `ends` is a second, temporary file.
    pub(super) fn new(file: File, ends: File) -> Self {
        Self {
            tokens: HashingWriter::new(BufWriter::new(file)),
            ends: BufWriter::new(ends),
            token_count: 0,
            row_count: 0,
            trained_tokens: 0,
        }
    }

    /// Puts the rest behind the tokens and makes all of it durable.
    pub(super) fn finish(mut self, header: &Header) -> io::Result<()> {
        let written = self.tokens.size_bytes();
        let padding = written.next_multiple_of(8) - written;
        self.tokens.write_all(&[0; 8][..padding as usize])?;
        let mut ends = self
            .ends
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        ends.seek(SeekFrom::Start(0))?;
        io::copy(&mut BufReader::new(ends), &mut self.tokens)?;
        let header = serde_json::to_vec(header)?;
        self.tokens.write_all(&header)?;
        for number in [self.token_count, self.row_count, header.len() as u64] {
            self.tokens.write_all(&number.to_le_bytes())?;
        }
        let (mut inner, digest) = self.tokens.finish();
        inner.write_all(&digest)?;
        inner.write_all(MAGIC)?;
        inner
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()
    }
}

impl RowSink for TokenWriter {
    fn push(&mut self, example: &Example) -> io::Result<bool> {
        let Some(kept) = example.kept() else {
            return Ok(false);
        };
        for (place, token) in kept.enumerate() {
            self.tokens.write_all(&token.to_le_bytes())?;
            self.token_count += 1;
            self.trained_tokens += u64::from(place > 0 && is_trained(token));
        }
        self.ends.write_all(&self.token_count.to_le_bytes())?;
        self.row_count += 1;
        Ok(true)
    }

    fn written(&self) -> Written {
        Written {
            rows: self.row_count,
            input_tokens: self.token_count - self.row_count,
            trained_tokens: self.trained_tokens,
        }
    }
}

/// A file of rows, open. While it is, the file has a shared lock, by which others see that it is in use.
#[derive(Debug)]
pub struct TokenFile {
    map: MappedFile,
    token_count: usize,
    row_count: usize,
    /// Tokens that were read since memory was given back.
    read: AtomicUsize,
    _lock: File,
}

impl TokenFile {
    /// Checks a file from its first byte to its last, and maps it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] where it is not whole or not as it was written.
    pub(super) fn open(mut file: File) -> io::Result<(Self, Header)> {
        file.lock_shared()?;
        let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let size = file.metadata()?.len();
        let before_digest = size
            .checked_sub(DIGEST_BYTES + MAGIC.len() as u64)
            .ok_or_else(|| damaged("too short"))?;
        let mut hasher = Sha256::new();
        copy(
            &mut BufReader::new((&file).take(before_digest)),
            &mut hasher,
        )?;
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(before_digest))?;
        file.read_to_end(&mut end)?;
        if end != [hasher.finalize().as_slice(), MAGIC].concat() {
            return Err(damaged("its checksum is wrong"));
        }
        let numbers_at = size
            .checked_sub(TRAILER_BYTES)
            .ok_or_else(|| damaged("too short"))?;
        file.seek(SeekFrom::Start(numbers_at))?;
        let mut number = || {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes)?;
            Ok::<_, io::Error>(u64::from_le_bytes(bytes))
        };
        let (tokens, rows, header_bytes) = (number()?, number()?, number()?);
        let token_bytes = tokens
            .checked_mul(4)
            .and_then(|bytes| bytes.checked_next_multiple_of(8));
        let rows_end = token_bytes
            .zip(rows.checked_mul(8))
            .and_then(|(a, b)| a.checked_add(b));
        let header_end = rows_end.and_then(|end| end.checked_add(header_bytes));
        if header_end != Some(numbers_at) || header_bytes > MAX_HEADER_BYTES {
            return Err(damaged("its parts do not fit together"));
        }
        file.seek(SeekFrom::Start(numbers_at - header_bytes))?;
        let header = serde_json::from_reader(BufReader::new((&file).take(header_bytes)))?;
        let opened = Self {
            map: MappedFile::of(&file)?,
            token_count: usize::try_from(tokens).map_err(|_| damaged("too large"))?,
            row_count: usize::try_from(rows).map_err(|_| damaged("too large"))?,
            read: AtomicUsize::new(0),
            _lock: file,
        };
        Ok((opened, header))
    }

    pub(super) fn tokens(&self) -> &[u32] {
        bytemuck::cast_slice(&self.map[..self.token_count * 4])
    }

    pub(super) fn ends(&self) -> &[u64] {
        let start = (self.token_count * 4).next_multiple_of(8);
        bytemuck::cast_slice(&self.map[start..start + self.row_count * 8])
    }

    /// Notes that so many tokens were read, and gives memory back now and then, which else would grow to the file's
    /// size.
    pub(super) fn was_read(&self, tokens: usize) {
        if self.read.fetch_add(tokens, Ordering::Relaxed) > KEPT_TOKENS {
            self.read.store(0, Ordering::Relaxed);
            self.map.release();
        }
    }
}

fn copy(from: &mut impl Read, hasher: &mut Sha256) -> io::Result<()> {
    let mut chunk = vec![0; 1 << 20];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            count => hasher.update(&chunk[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Examples;

    fn example(ids: &[u32], trained: &[u32]) -> Example {
        Example {
            ids: ids.to_vec(),
            trained: trained.iter().map(|trained| *trained == 1).collect(),
            truncated: false,
        }
    }

    fn header() -> Header {
        Header {
            key: "key".to_owned(),
            report: DatasetReport {
                examples: 2,
                sha256: "ab".to_owned(),
                ..DatasetReport::default()
            },
        }
    }

    fn written() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TokenWriter::new(file.reopen().unwrap(), tempfile::tempfile().unwrap());
        assert!(
            writer
                .push(&example(&[5, 6, 7, 8, 9], &[1, 0, 1, 1, 0]))
                .unwrap()
        );
        assert!(!writer.push(&example(&[1, 2], &[0, 0])).unwrap());
        assert!(writer.push(&example(&[1, 2, 3], &[0, 1, 1])).unwrap());
        let figures = Written {
            rows: 2,
            input_tokens: 3 + 2,
            trained_tokens: 2 + 2,
        };
        assert_eq!(writer.written(), figures);
        writer.finish(&header()).unwrap();
        file
    }

    #[test]
    fn rows_of_a_file_are_the_same_as_in_memory() {
        let file = written();
        let (opened, found) = TokenFile::open(file.reopen().unwrap()).unwrap();
        assert_eq!(found, header());
        let (mut mapped, mut memory) = (Examples::from(opened), Examples::new());
        memory.push(&example(&[5, 6, 7, 8, 9], &[1, 0, 1, 1, 0]));
        memory.push(&example(&[1, 2, 3], &[0, 1, 1]));
        for rows in 2..4 {
            assert_eq!((mapped.len(), memory.len()), (rows, rows));
            let order: Vec<u32> = (0..rows as u32).rev().collect();
            assert_eq!(mapped.batch(&order), memory.batch(&order));
            assert_eq!(mapped.trained_tokens(), memory.trained_tokens());
            // The first one pushed takes the file's rows into memory.
            let more = example(&[4, 4, 4, 4], &[1, 1, 1, 1]);
            assert!(mapped.push(&more) && memory.push(&more));
        }
    }

    #[test]
    fn any_change_of_a_byte_or_of_the_length_is_noticed() {
        let file = written();
        let whole = std::fs::read(file.path()).unwrap();
        let reopened = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            TokenFile::open(file.reopen().unwrap()).map(|_| ())
        };
        reopened(&whole).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let error = reopened(&damaged).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::InvalidData,
                "byte {at}: {error}"
            );
            assert!(reopened(&whole[..at]).is_err(), "cut at {at}");
        }
        assert!(reopened(&[whole.as_slice(), b"x"].concat()).is_err());
    }
}
