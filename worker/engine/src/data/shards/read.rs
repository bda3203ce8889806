//! Reads a shard: checked as a whole before any of it is used, then mapped, and cut into windows.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::examples::{Examples, TRAINED};
use super::{IDS, KEPT_TOKENS, LABELS};
use crate::EngineError;
use crate::model::IGNORE;
use crate::weights::SafetensorsFile;

/// The longest header that is believed: two tensors and some remarks.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Tokens that are checked at once.
const CHUNK: usize = 1 << 16;

/// A shard whose tokens are all ones that the model knows.
#[derive(Debug)]
pub struct Shard {
    file: SafetensorsFile,
    tokens: usize,
    learned: u64,
}

impl Shard {
    /// Maps a file and checks it from its first byte to its last, for a model that knows `vocab_size` tokens.
    ///
    /// # Errors
    /// [`EngineError::InvalidData`] naming the file and what is wrong with it; [`EngineError::Io`].
    pub fn open(path: &Path, vocab_size: usize) -> Result<Self, EngineError> {
        let invalid =
            |message: String| EngineError::InvalidData(format!("{}: {message}", path.display()));
        let of_shard = |error| match error {
            EngineError::InvalidModel { message, .. } => invalid(message),
            other => other,
        };
        let file = SafetensorsFile::open(path).map_err(of_shard)?;
        if file.head().len() > MAX_HEAD_BYTES {
            return Err(invalid(format!(
                "a header of {} bytes is too long for a shard",
                file.head().len()
            )));
        }
        let Some(ids) = file.int32_row(IDS).map_err(of_shard)? else {
            return Err(invalid(format!("tensor {IDS} is missing")));
        };
        let labels = file.int32_row(LABELS).map_err(of_shard)?;
        let tokens = ids.len() / size_of::<i32>();
        if tokens < 2 || u32::try_from(tokens).is_err() {
            return Err(invalid(format!(
                "{tokens} tokens; a shard has 2 to {}",
                u32::MAX
            )));
        }
        if let Some(labels) = labels.filter(|labels| labels.len() != ids.len()) {
            return Err(invalid(format!(
                "{LABELS} has {} values, and {IDS} {tokens}",
                labels.len() / size_of::<i32>()
            )));
        }
        let learned = check(ids, labels, vocab_size).map_err(invalid)?;
        if learned == 0 {
            return Err(invalid("no token of it is to be learned".to_owned()));
        }
        file.release_memory();
        Ok(Self {
            file,
            tokens,
            learned,
        })
    }

    /// How many tokens it has.
    pub fn tokens(&self) -> u64 {
        self.tokens as u64
    }

    /// How many of them the loss falls on; the first is predicted from nothing.
    pub fn learned_tokens(&self) -> u64 {
        self.learned
    }

    /// Cuts the tokens into windows from which up to `length` tokens each are predicted, one behind the other: every
    /// token but the first is predicted once. A window ends with its last token to be learned, and there is none where
    /// nothing is.
    pub fn windows(self, length: u32) -> Examples {
        let length = length.max(1) as usize;
        let mut places = Vec::new();
        for start in (0..self.tokens - 1).step_by(length) {
            let end = (start + length + 1).min(self.tokens);
            let last = match self.labels(start + 1..end) {
                None => Some(end - 1),
                Some(mut labels) => labels
                    .rposition(|label| label != IGNORE)
                    .map(|last| start + 1 + last),
            };
            // Fits: a shard has fewer than 2^32 tokens.
            places.extend(last.map(|last| (start as u32, last as u32 + 1)));
        }
        self.file.release_memory();
        Windows {
            shard: self,
            places,
            read: AtomicUsize::new(0),
        }
        .into()
    }

    fn ids(&self, place: Range<usize>) -> impl DoubleEndedIterator<Item = i32> + ExactSizeIterator {
        numbers(self.bytes(IDS).unwrap_or_default(), place)
    }

    fn labels(
        &self,
        place: Range<usize>,
    ) -> Option<impl DoubleEndedIterator<Item = i32> + ExactSizeIterator> {
        Some(numbers(self.bytes(LABELS)?, place))
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.file.int32_row(name).ok().flatten()
    }
}

/// A shard's windows as rows to train on.
#[derive(Debug)]
pub(in crate::data) struct Windows {
    shard: Shard,
    /// Where each begins and ends in the shard's tokens.
    places: Vec<(u32, u32)>,
    /// Tokens that were read since memory was given back.
    read: AtomicUsize,
}

impl Windows {
    pub(in crate::data) fn len(&self) -> usize {
        self.places.len()
    }

    pub(in crate::data) fn place(&self, window: usize) -> Range<usize> {
        let (start, end) = self.places[window];
        start as usize..end as usize
    }

    /// A window's tokens, with the mark on those that are to be learned.
    pub(in crate::data) fn tokens(&self, window: usize) -> Vec<u32> {
        let place = self.place(window);
        let ids = self.shard.ids(place.clone()).map(i32::cast_unsigned);
        match self.shard.labels(place) {
            None => ids.map(|id| id | TRAINED).collect(),
            Some(labels) => ids
                .zip(labels)
                .map(|(id, label)| if label == IGNORE { id } else { id | TRAINED })
                .collect(),
        }
    }

    /// Notes that so many tokens were read, and gives memory back now and then.
    pub(in crate::data) fn was_read(&self, tokens: usize) {
        if self.read.fetch_add(tokens, Ordering::Relaxed) > KEPT_TOKENS {
            self.read.store(0, Ordering::Relaxed);
            self.shard.file.release_memory();
        }
    }
}

/// The numbers at `place` of a row that need not be aligned.
fn numbers(
    bytes: &[u8],
    place: Range<usize>,
) -> impl DoubleEndedIterator<Item = i32> + ExactSizeIterator {
    const SIZE: usize = size_of::<i32>();
    bytes[place.start * SIZE..place.end * SIZE]
        .chunks_exact(SIZE)
        .map(|number| i32::from_le_bytes([number[0], number[1], number[2], number[3]]))
}

/// Checks all tokens and labels, and counts those that the loss falls on.
fn check(ids: &[u8], labels: Option<&[u8]>, vocab_size: usize) -> Result<u64, String> {
    let tokens = ids.len() / size_of::<i32>();
    let mut learned = 0;
    for start in (0..tokens).step_by(CHUNK) {
        let chunk = start..(start + CHUNK).min(tokens);
        let unknown = |id: i32| usize::try_from(id).map_or(true, |id| id >= vocab_size);
        let mut found = numbers(ids, chunk.clone()).enumerate();
        if let Some((at, id)) = found.find(|(_, id)| unknown(*id)) {
            return Err(format!(
                "{IDS}[{}] is {id}, outside the model's vocabulary of {vocab_size}",
                start + at
            ));
        }
        let Some(labels) = labels else {
            learned += chunk.len() as u64;
            continue;
        };
        let pairs = numbers(ids, chunk.clone()).zip(numbers(labels, chunk));
        for (at, (id, label)) in pairs.enumerate() {
            if label != IGNORE && label != id {
                return Err(format!(
                    "{LABELS}[{0}] is {label}, and {IDS}[{0}] is {id}: a label is its own token, or {IGNORE}",
                    start + at
                ));
            }
            learned += u64::from(label != IGNORE && start + at > 0);
        }
    }
    Ok(learned - u64::from(labels.is_none()))
}
