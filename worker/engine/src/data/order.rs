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
    rows: Vec<u32>,
    /// Of each of `rows`.
    lengths: Vec<u32>,
    seed: u64,
    packing: bool,
    max_length: u32,
    batch_size: usize,
    sequences_per_step: usize,
    steps_per_epoch: u64,
}

/// The sequences of one epoch, each a list of rows.
pub type Sequences = Vec<Vec<u32>>;

impl Order {
    /// The order for these `rows` of the examples by this config. There must be at least one row.
    pub fn new(examples: &Examples, rows: Vec<u32>, config: &TrainingConfig) -> Self {
        let batch_size = config.batch_size as usize;
        let mut order = Self {
            lengths: rows
                .iter()
                .map(|row| examples.input_length(*row as usize) as u32)
                .collect(),
            rows,
            seed: config.seed,
            packing: config.packing,
            max_length: config.max_length,
            batch_size,
            sequences_per_step: batch_size * config.gradient_accumulation_steps as usize,
            steps_per_epoch: 0,
        };
        // Packing depends on the rows' lengths alone, so every epoch has as many steps.
        let sequences = order.epoch(0).len();
        order.steps_per_epoch = sequences.div_ceil(order.sequences_per_step) as u64;
        order
    }

    /// Optimizer steps of one epoch; the last one may have fewer sequences.
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

    /// The sequences of an epoch (from 0).
    pub fn epoch(&self, epoch: u64) -> Sequences {
        let mut random = Random::new(self.seed, &format!("order of epoch {epoch}"));
        let mut places: Vec<u32> = (0..self.rows.len() as u32).collect();
        random.shuffle(&mut places);
        let mut sequences: Sequences = if self.packing {
            self.pack(places)
        } else {
            places.into_iter().map(|place| vec![place]).collect()
        };
        random.shuffle(&mut sequences);
        for place in sequences.iter_mut().flatten() {
            *place = self.rows[*place as usize];
        }
        sequences
    }

    /// The sequences of an epoch that belong to the step at `place` in it.
    pub fn step<'a>(&self, epoch: &'a Sequences, place: u64) -> &'a [Vec<u32>] {
        let start = place as usize * self.sequences_per_step;
        &epoch[start..(start + self.sequences_per_step).min(epoch.len())]
    }

    /// A step's micro-batches, as lists of rows: of the config's batch size, each of them cut into parts of at most
    /// `micro_batch_size` sequences.
    pub fn micro_batches(&self, step: &[Vec<u32>], micro_batch_size: usize) -> Vec<Vec<u32>> {
        step.chunks(self.batch_size)
            .flat_map(|batch| batch.chunks(micro_batch_size))
            .map(<[_]>::concat)
            .collect()
    }

    /// No micro-batch of so many sequences has more tokens.
    pub fn most_tokens(&self, micro_batch_size: usize) -> usize {
        if self.packing {
            let all: usize = self.lengths.iter().map(|length| *length as usize).sum();
            return all.min(micro_batch_size.saturating_mul(self.max_length as usize));
        }
        let mut lengths = self.lengths.clone();
        lengths.sort_unstable();
        let longest = lengths.iter().rev().take(micro_batch_size);
        longest.map(|length| *length as usize).sum()
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
        let rows = (0..lengths.len() as u32).collect();
        Order::new(&examples(lengths), rows, &config)
    }

    fn sorted(epoch: &Sequences) -> Vec<u32> {
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
        let sizes = |place, micro_batch_size| {
            let step = order.step(&epoch, place);
            let micro_batches = order.micro_batches(step, micro_batch_size);
            micro_batches.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!((sizes(0, 4), sizes(1, 4)), (vec![4, 4], vec![2]));
        assert_eq!((sizes(0, 3), sizes(1, 1)), (vec![3, 1, 3, 1], vec![1, 1]));
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
    fn no_micro_batch_has_more_tokens_than_is_said() {
        let lengths = [3, 9, 4, 9, 1, 2, 8];
        for packing in [false, true] {
            let order = order(&lengths, packing, 4, 1);
            for micro_batch_size in 1..=4 {
                let most = order.most_tokens(micro_batch_size);
                let micro_batches = order.micro_batches(&order.epoch(1), micro_batch_size);
                let tokens = |rows: &Vec<u32>| {
                    let lengths = rows.iter().map(|row| lengths[*row as usize]);
                    lengths.sum::<usize>()
                };
                assert!(micro_batches.iter().all(|rows| tokens(rows) <= most));
            }
        }
        assert_eq!(order(&lengths, false, 4, 1).most_tokens(2), 18);
        assert_eq!(order(&lengths, true, 4, 1).most_tokens(2), 20);
    }

    #[test]
    fn only_the_given_rows_are_trained_on() {
        let config = TrainingConfig {
            packing: false,
            ..TrainingConfig::default()
        };
        let order = Order::new(&examples(&[3; 6]), vec![1, 4, 5], &config);
        assert_eq!(sorted(&order.epoch(2)), [1, 4, 5]);
    }

    #[test]
    fn first_fit_goes_by_falling_length() {
        // 6 + 4, 5 + 5, 3 + 3 + 3: in another order four sequences would be needed.
        assert_eq!(order(&[3, 5, 4, 3, 6, 5, 3], true, 1, 1).epoch(0).len(), 3);
    }
}
