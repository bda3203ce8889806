//! Tokenised rows, kept close together, and the batches made of them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::shards::Windows;
use super::token_file::TokenFile;
use crate::model::{Batch, IGNORE};

/// One row as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Example {
    /// The tokens.
    pub ids: Vec<u32>,
    /// For each token whether it is to be learned. The first one is never predicted from anything.
    pub trained: Vec<bool>,
    /// Whether the row was cut to the longest length.
    pub truncated: bool,
}

/// The mark on a token that is to be learned; ids are far smaller.
pub(super) const TRAINED: u32 = 1 << 31;

impl Example {
    /// The row as it is kept: cut behind its last token to be learned (what comes after has no part in the loss), each
    /// token with its mark. None where nothing is to be learned.
    pub(super) fn kept(&self) -> Option<impl Iterator<Item = u32> + '_> {
        let last = self
            .trained
            .iter()
            .rposition(|trained| *trained)
            .filter(|last| *last > 0)?;
        let tokens = self.ids.iter().zip(&self.trained).take(last + 1);
        Some(tokens.map(|(id, trained)| if *trained { id | TRAINED } else { *id }))
    }
}

/// Whether a kept token is to be learned.
pub(super) const fn is_trained(token: u32) -> bool {
    token & TRAINED != 0
}

/// All rows that are trained on: four bytes a token and eight a row, in memory or in a mapped file.
#[derive(Debug, Clone)]
pub struct Examples(Store);

#[derive(Debug, Clone)]
enum Store {
    Memory { tokens: Vec<u32>, ends: Vec<u64> },
    File(Arc<TokenFile>),
    Shard(Arc<Windows>),
}

impl Default for Examples {
    fn default() -> Self {
        Self::new()
    }
}

impl From<TokenFile> for Examples {
    fn from(file: TokenFile) -> Self {
        Self(Store::File(Arc::new(file)))
    }
}

impl From<Windows> for Examples {
    fn from(windows: Windows) -> Self {
        Self(Store::Shard(Arc::new(windows)))
    }
}

impl Examples {
    /// No rows, in memory.
    pub fn new() -> Self {
        Self(Store::Memory {
            tokens: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// Adds a row; rows of a file are taken into memory for that. Gives whether anything in it is to be learned;
    /// otherwise nothing is added.
    pub fn push(&mut self, example: &Example) -> bool {
        let Some(kept) = example.kept() else {
            return false;
        };
        match &mut self.0 {
            Store::Memory { tokens, ends } => {
                tokens.extend(kept);
                ends.push(tokens.len() as u64);
            }
            Store::File(_) | Store::Shard(_) => {
                let (mut tokens, mut ends) = (Vec::new(), Vec::new());
                for row in 0..self.len() {
                    tokens.extend_from_slice(&self.row(row));
                    ends.push(tokens.len() as u64);
                }
                tokens.extend(kept);
                ends.push(tokens.len() as u64);
                self.0 = Store::Memory { tokens, ends };
            }
        }
        true
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Memory { ends, .. } => ends.len(),
            Store::File(file) => file.ends().len(),
            Store::Shard(windows) => windows.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of a row that run through the model: all but the last, which is only predicted.
    pub fn input_length(&self, row: usize) -> usize {
        let place = match &self.0 {
            Store::Memory { ends, .. } => place(ends, row),
            Store::File(file) => place(file.ends(), row),
            Store::Shard(windows) => windows.place(row),
        };
        place.len() - 1
    }

    /// Tokens of all rows that are to be learned.
    pub fn trained_tokens(&self) -> u64 {
        (0..self.len())
            .map(|row| {
                let row = self.row(row);
                targets(&row).filter(|target| *target != IGNORE).count() as u64
            })
            .sum()
    }

    /// The rows as one batch, each a sequence of its own, in the given order.
    pub fn batch(&self, rows: &[u32]) -> Batch {
        let mut batch = Batch::default();
        for &row in rows {
            let tokens = self.row(row as usize);
            let ids: Vec<u32> = tokens[..tokens.len() - 1]
                .iter()
                .map(|token| token & !TRAINED)
                .collect();
            let targets: Vec<i32> = targets(&tokens).collect();
            batch.push_sequence(&ids, &targets);
        }
        match &self.0 {
            Store::Memory { .. } => {}
            Store::File(file) => file.was_read(batch.tokens()),
            Store::Shard(windows) => windows.was_read(batch.tokens()),
        }
        batch
    }

    /// A row's tokens with their marks.
    fn row(&self, row: usize) -> Cow<'_, [u32]> {
        match &self.0 {
            Store::Memory { tokens, ends } => tokens[place(ends, row)].into(),
            Store::File(file) => file.tokens()[place(file.ends(), row)].into(),
            Store::Shard(windows) => windows.tokens(row).into(),
        }
    }
}

/// Where a row's tokens are, by where each row's end.
fn place(ends: &[u64], row: usize) -> Range<usize> {
    let start = if row == 0 { 0 } else { ends[row - 1] };
    start as usize..ends[row] as usize
}

/// What is to be predicted from each token but the last of a row.
fn targets(row: &[u32]) -> impl Iterator<Item = i32> + '_ {
    row[1..].iter().map(|token| {
        let id = (token & !TRAINED).cast_signed();
        if is_trained(*token) { id } else { IGNORE }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(ids: &[u32], trained: &[u32]) -> Example {
        Example {
            ids: ids.to_vec(),
            trained: trained.iter().map(|t| *t == 1).collect(),
            truncated: false,
        }
    }

    #[test]
    fn targets_are_the_next_tokens_that_are_to_be_learned() {
        let mut examples = Examples::new();
        assert!(examples.push(&example(&[5, 6, 7, 8, 9], &[0, 0, 1, 1, 0])));
        assert!(examples.push(&example(&[1, 2, 3], &[1, 1, 1])));
        let batch = examples.batch(&[1, 0]);
        assert_eq!(batch.ids, [1, 2, 5, 6, 7]);
        assert_eq!(batch.targets, [2, 3, IGNORE, 7, 8]);
        assert_eq!(
            batch.positions,
            [0, 1, 0, 1, 2],
            "every row begins at position 0"
        );
        assert_eq!(batch.offsets, [0, 2, 5]);
        assert_eq!(examples.trained_tokens(), 4);
        assert_eq!((examples.input_length(0), examples.input_length(1)), (3, 2));
    }

    #[test]
    fn a_row_with_nothing_to_learn_is_not_added() {
        let mut examples = Examples::new();
        assert!(!examples.push(&example(&[1, 2], &[0, 0])));
        assert!(
            !examples.push(&example(&[1, 2], &[1, 0])),
            "the first token is predicted from nothing"
        );
        assert!(!examples.push(&example(&[], &[])));
        assert!(examples.is_empty());
    }
}
