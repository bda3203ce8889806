//! Which rows an optimizer step trains on: shuffled anew in every epoch, packed or one row a sequence.
//!
//! The order is a function of the seed and the epoch alone, so a resumed run needs to know no more
//! than its step to go on exactly where it stopped.

use trainyard_shared::training::TrainingConfig;

use super::Examples;
use crate::random::Random;

/// The order of rows over a whole run.
#[derive(Debug, Clone)]
pub struct Order {
    lengths: Vec<u32>,
    seed: u64,
    packing: bool,
    max_length: u32,
    batch_size: usize,
    accumulation: usize,
    steps_per_epoch: u64,
}

/// The micro-batches of one epoch, each a list of rows.
pub type MicroBatches = Vec<Vec<u32>>;

impl Order {
    /// The order for these rows by this config. There must be at least one row.
    pub fn new(examples: &Examples, config: &TrainingConfig) -> Self {
        let mut order = Self {
            lengths: (0..examples.len())
                .map(|row| examples.input_length(row) as u32)
                .collect(),
            seed: config.seed,
            packing: config.packing,
            max_length: config.max_length,
            batch_size: config.batch_size as usize,
            accumulation: config.gradient_accumulation_steps as usize,
            steps_per_epoch: 0,
        };
        // Packing depends on the rows' lengths alone, so every epoch has as many steps.
        order.steps_per_epoch = order.epoch(0).len().div_ceil(order.accumulation) as u64;
        order
    }

    /// Optimizer steps of one epoch; the last one may have fewer micro-batches, the last of which may
    /// have fewer sequences.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// The epoch (from 0) and the place in it (from 0) of an optimizer step (from 1).
    pub fn place_of(&self, step: u64) -> (u64, u64) {
        (
            (step - 1) / self.steps_per_epoch,
            (step - 1) % self.steps_per_epoch,
        )
    }

    /// The micro-batches of an epoch (from 0).
    pub fn epoch(&self, epoch: u64) -> MicroBatches {
        let mut random = Random::new(self.seed, &format!("order of epoch {epoch}"));
        let mut rows: Vec<u32> = (0..self.lengths.len() as u32).collect();
        random.shuffle(&mut rows);
        let mut sequences: Vec<Vec<u32>> = if self.packing {
            self.pack(rows)
        } else {
            rows.into_iter().map(|row| vec![row]).collect()
        };
        random.shuffle(&mut sequences);
        sequences
            .chunks(self.batch_size)
            .map(<[_]>::concat)
            .collect()
    }

    /// The micro-batches of an epoch that belong to the step at `place` in it.
    pub fn step<'a>(&self, epoch: &'a MicroBatches, place: u64) -> &'a [Vec<u32>] {
        let start = place as usize * self.accumulation;
        &epoch[start..(start + self.accumulation).min(epoch.len())]
    }

    /// First fit, longest rows first: each row goes into the first sequence that has room for it.
    fn pack(&self, mut rows: Vec<u32>) -> Vec<Vec<u32>> {
        rows.sort_by_key(|row| std::cmp::Reverse(self.lengths[*row as usize]));
        let mut room = Room::new(rows.len(), self.max_length);
        let mut sequences: Vec<Vec<u32>> = Vec::new();
        for row in rows {
            let place = room.take(self.lengths[row as usize]);
            if place == sequences.len() {
                sequences.push(Vec::new());
            }
            sequences[place].push(row);
        }
        sequences
    }
}

/// How much room each sequence has left: a tree whose nodes hold the most room below them.
struct Room {
    leaves: usize,
    most: Vec<u32>,
}

impl Room {
    fn new(sequences: usize, room: u32) -> Self {
        let leaves = sequences.next_power_of_two();
        Self {
            leaves,
            most: vec![room; 2 * leaves],
        }
    }

    /// The first sequence with room for `length`, which it takes. One of them must have room.
    fn take(&mut self, length: u32) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node = if self.most[2 * node] >= length {
                2 * node
            } else {
                2 * node + 1
            };
        }
        let place = node - self.leaves;
        self.most[node] -= length;
        while node > 1 {
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Example;

    fn examples(lengths: &[usize]) -> Examples {
        let mut examples = Examples::new();
        for &length in lengths {
            examples.push(&Example {
                ids: vec![1; length + 1],
                trained: vec![true; length + 1],
                truncated: false,
            });
        }
        examples
    }

    fn order(lengths: &[usize], packing: bool, batch_size: u32, accumulation: u32) -> Order {
        let config = TrainingConfig {
            packing,
            batch_size,
            gradient_accumulation_steps: accumulation,
            max_length: 10,
            seed: 7,
            ..TrainingConfig::default()
        };
        Order::new(&examples(lengths), &config)
    }

    fn sorted(epoch: &MicroBatches) -> Vec<u32> {
        let mut rows = epoch.concat();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn g073_steps_are_counted_up_in_every_epoch_and_the_rest_is_trained() {
        assert_eq!(order(&[3; 10], false, 4, 1).steps_per_epoch(), 3);
        assert_eq!(order(&[3; 10], false, 4, 2).steps_per_epoch(), 2);
        let order = order(&[3; 10], false, 4, 2);
        let epoch = order.epoch(0);
        assert_eq!(epoch.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(
            (order.step(&epoch, 0).len(), order.step(&epoch, 1).len()),
            (2, 1)
        );
        assert_eq!(
            (order.place_of(1), order.place_of(2), order.place_of(3)),
            ((0, 0), (0, 1), (1, 0))
        );
    }

    #[test]
    fn g070_one_row_is_one_step_whatever_the_batch_size() {
        assert_eq!(order(&[3], false, 4, 1).steps_per_epoch(), 1);
        assert_eq!(order(&[3], true, 4, 8).steps_per_epoch(), 1);
    }

    #[test]
    fn every_epoch_holds_every_row_once_in_an_order_of_its_own() {
        for packing in [false, true] {
            let lengths: Vec<usize> = (0..50).map(|i| 1 + i % 9).collect();
            let order = order(&lengths, packing, 3, 1);
            let (first, second) = (order.epoch(0), order.epoch(1));
            assert_eq!(sorted(&first), (0..50).collect::<Vec<_>>());
            assert_eq!(sorted(&second), (0..50).collect::<Vec<_>>());
            assert_ne!(first, second);
            assert_eq!(first, order.epoch(0), "the same again");
            assert_eq!(first.len(), second.len());
        }
    }

    #[test]
    fn packed_sequences_keep_to_the_length_and_leave_little_room() {
        let lengths: Vec<usize> = (0..200).map(|i| 1 + (i * 7) % 10).collect();
        let order = order(&lengths, true, 1, 1);
        let sequences = order.epoch(3);
        let tokens = |rows: &Vec<u32>| rows.iter().map(|row| lengths[*row as usize]).sum::<usize>();
        assert!(sequences.iter().all(|rows| tokens(rows) <= 10));
        let least = lengths.iter().sum::<usize>().div_ceil(10);
        assert!(
            sequences.len() <= least + least / 10,
            "{} sequences, {least} would be perfect",
            sequences.len()
        );
    }

    #[test]
    fn first_fit_goes_by_falling_length() {
        // 6 + 4, 5 + 5, 3 + 3 + 3: in another order four sequences would be needed.
        assert_eq!(order(&[3, 5, 4, 3, 6, 5, 3], true, 1, 1).epoch(0).len(), 3);
    }
}
