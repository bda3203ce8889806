//! Tokenised rows, kept close together in memory, and the batches made of them.

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
const TRAINED: u32 = 1 << 31;

/// All rows that are trained on: four bytes a token, no text.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    tokens: Vec<u32>,
    /// Where each row ends in `tokens`.
    ends: Vec<usize>,
}

impl Examples {
    /// No rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row, cut behind its last token to be learned: what comes after has no part in the loss.
    /// Gives whether anything in it is to be learned; otherwise nothing is added.
    pub fn push(&mut self, example: &Example) -> bool {
        let Some(last) = example
            .trained
            .iter()
            .rposition(|trained| *trained)
            .filter(|last| *last > 0)
        else {
            return false;
        };
        let tokens = example.ids.iter().zip(&example.trained).take(last + 1);
        self.tokens
            .extend(tokens.map(|(id, trained)| if *trained { id | TRAINED } else { *id }));
        self.ends.push(self.tokens.len());
        true
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens of a row that run through the model: all but the last, which is only predicted.
    pub fn input_length(&self, row: usize) -> usize {
        self.row(row).len() - 1
    }

    /// Tokens of all rows that are to be learned.
    pub fn trained_tokens(&self) -> u64 {
        (0..self.len())
            .map(|row| self.targets(row).filter(|target| *target != IGNORE).count() as u64)
            .sum()
    }

    /// The rows as one batch, each a sequence of its own, in the given order.
    pub fn batch(&self, rows: &[u32]) -> Batch {
        let mut batch = Batch::default();
        for &row in rows {
            let row = row as usize;
            let tokens = self.row(row);
            let ids: Vec<u32> = tokens[..tokens.len() - 1]
                .iter()
                .map(|token| token & !TRAINED)
                .collect();
            let targets: Vec<i32> = self.targets(row).collect();
            batch.push_sequence(&ids, &targets);
        }
        batch
    }

    fn row(&self, row: usize) -> &[u32] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.tokens[start..self.ends[row]]
    }

    fn targets(&self, row: usize) -> impl Iterator<Item = i32> + '_ {
        self.row(row)[1..].iter().map(|token| {
            let id = (token & !TRAINED).cast_signed();
            if token & TRAINED == 0 { IGNORE } else { id }
        })
    }
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
