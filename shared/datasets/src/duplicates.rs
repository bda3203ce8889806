//! Rows that stand in a data set more than once, counted in bounded memory.

use std::collections::HashSet;

use sha2::{Digest, Sha256};
use trainyard_shared::dataset::{Prompt, Row, Turn};

/// So many different rows are remembered.
const MAX_REMEMBERED: usize = 4_000_000;

/// Counts rows whose content stood before.
///
/// Content is compared by its digest, with line ends made alike and white space at both ends of each text left out.
/// Beyond four million different rows it goes on with a sample of them (those whose digests end with zero bits), and the
/// count is an estimate.
#[derive(Debug)]
pub struct Duplicates {
    seen: HashSet<u64>,
    max_remembered: usize,
    /// Only digests that end with so many zero bits are remembered.
    sampled_bits: u32,
    duplicates: u64,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self::new()
    }
}

impl Duplicates {
    /// Nothing has been seen.
    pub fn new() -> Self {
        Self::remembering(MAX_REMEMBERED)
    }

    fn remembering(max_remembered: usize) -> Self {
        Self {
            seen: HashSet::new(),
            max_remembered,
            sampled_bits: 0,
            duplicates: 0,
        }
    }

    /// Counts a row.
    pub fn record(&mut self, row: &Row) {
        let digest = digest(row);
        if digest.trailing_zeros() < self.sampled_bits {
            return;
        }
        if !self.seen.insert(digest) {
            self.duplicates += 1 << self.sampled_bits;
        }
        while self.seen.len() > self.max_remembered {
            self.sampled_bits += 1;
            let bits = self.sampled_bits;
            self.seen.retain(|digest| digest.trailing_zeros() >= bits);
        }
    }

    /// Rows that stood before.
    pub const fn count(&self) -> u64 {
        self.duplicates
    }

    /// Whether the count is an estimate.
    pub const fn is_estimate(&self) -> bool {
        self.sampled_bits > 0
    }
}

fn digest(row: &Row) -> u64 {
    let mut hasher = Hasher(Sha256::new());
    hasher.text(row.shape().as_str());
    match row {
        Row::Messages(turns) | Row::Conversations(turns) => hasher.turns(turns),
        Row::Instruction {
            system,
            instruction,
            input,
            output,
        } => {
            for text in [
                system.as_deref(),
                Some(instruction),
                input.as_deref(),
                Some(output),
            ] {
                hasher.text(text.unwrap_or_default());
            }
        }
        Row::PromptCompletion { prompt, completion } => {
            for side in [prompt, completion] {
                match side {
                    Prompt::Text(text) => hasher.text(text),
                    Prompt::Turns(turns) => hasher.turns(turns),
                }
            }
        }
        Row::Text(text) => hasher.text(text),
    }
    let digest = hasher.0.finalize();
    u64::from_be_bytes(std::array::from_fn(|byte| digest[byte]))
}

struct Hasher(Sha256);

impl Hasher {
    fn text(&mut self, text: &str) {
        let text = text.trim();
        for (number, line) in text.split("\r\n").enumerate() {
            if number > 0 {
                self.0.update(b"\n");
            }
            self.0.update(line);
        }
        // No UTF-8 text holds this byte, so that texts cannot run into one another.
        self.0.update([0xff]);
    }

    fn turns(&mut self, turns: &[Turn]) {
        for turn in turns {
            self.text(turn.role.as_str());
            self.text(&turn.content);
        }
        self.0.update([0xfe]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_shared::dataset::parse_row;

    #[test]
    fn rows_with_the_same_content_are_counted_from_the_second_on() {
        let mut duplicates = Duplicates::new();
        for line in [
            r#"{"text":"a\nb"}"#,
            r#"{"text":" a\r\nb ","id":7}"#,
            r#"{"text":"a b"}"#,
            r#"{"prompt":"a","completion":"b"}"#,
            r#"{"prompt":"ab","completion":" "}"#,
            r#"{"completion":"b","prompt":"a"}"#,
        ] {
            duplicates.record(&parse_row(line.as_bytes()).unwrap());
        }
        assert_eq!((duplicates.count(), duplicates.is_estimate()), (2, false));
    }

    #[test]
    fn a_sample_estimates_what_cannot_be_remembered() {
        let mut duplicates = Duplicates::remembering(500);
        for _ in 0..2 {
            for number in 0..10_000 {
                duplicates.record(&Row::Text(format!("row {number}")));
            }
        }
        assert!(duplicates.is_estimate() && duplicates.seen.len() <= 500);
        let count = duplicates.count();
        assert!((8_000..12_000).contains(&count), "{count} of 10000");
    }
}
