//! Which rows an optimizer step trains on: shuffled anew in every epoch, packed or one row a sequence.
//!
//! The order is a function of the seed and the epoch alone, so a resumed run needs to know no more
//! than its step to go on exactly where it stopped.

use std::ops::Range;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences {
    /// The rows of all sequences, one sequence behind the other.
    rows: Vec<u32>,
    /// By sequence, how many of `rows` lie up to its end.
    ends: Vec<u32>,
}

impl Sequences {
    /// How many sequences there are.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The rows of some sequences.
    pub fn rows(&self, sequences: Range<usize>) -> &[u32] {
        let end_before = |sequence: usize| match sequence {
            0 => 0,
            sequence => self.ends[sequence - 1] as usize,
        };
        &self.rows[end_before(sequences.start)..end_before(sequences.end)]
    }
}

/// What a row takes up at most: its number and length (8 bytes), its place in the epoch that is trained (8), and what
/// making the next epoch takes: places (4), their sequences (4), the tree of rooms, also while it grows (24).
const BYTES_PER_ROW: u64 = 48;

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
        let sequences = order.epoch(0).count();
        order.steps_per_epoch = sequences.div_ceil(order.sequences_per_step) as u64;
        order
    }

    /// Optimizer steps of one epoch; the last one may have fewer sequences.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Bytes that the order takes up at most, an epoch's sequences included.
    pub fn bytes(&self) -> u64 {
        self.rows.len() as u64 * BYTES_PER_ROW
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
        let (sequence_of, count) = match self.packing {
            true => self.pack(&mut places),
            false => ((0..places.len() as u32).collect(), places.len()),
        };
        let mut order: Vec<u32> = (0..count as u32).collect();
        random.shuffle(&mut order);
        self.laid_out(&places, &sequence_of, &order)
    }

    /// The rows at `places` one sequence behind the other, as `order` says. `sequence_of` each of `places` says which
    /// one it belongs to.
    fn laid_out(&self, places: &[u32], sequence_of: &[u32], order: &[u32]) -> Sequences {
        let mut rank = vec![0; order.len()];
        for (position, sequence) in order.iter().enumerate() {
            rank[*sequence as usize] = position;
        }
        // First each sequence's rows are counted, then `ends` runs from its start to its end.
        let mut ends = vec![0_u32; order.len() + 1];
        for sequence in sequence_of {
            ends[rank[*sequence as usize] + 1] += 1;
        }
        for index in 1..ends.len() {
            ends[index] += ends[index - 1];
        }
        let mut rows = vec![0; places.len()];
        for (place, sequence) in places.iter().zip(sequence_of) {
            let next = &mut ends[rank[*sequence as usize]];
            rows[*next as usize] = self.rows[*place as usize];
            *next += 1;
        }
        ends.pop();
        Sequences { rows, ends }
    }

    /// The sequences of an epoch that belong to the step at `place` in it.
    pub fn step(&self, epoch: &Sequences, place: u64) -> Range<usize> {
        let start = place as usize * self.sequences_per_step;
        start..(start + self.sequences_per_step).min(epoch.count())
    }

    /// A step's micro-batches, as lists of rows: of the config's batch size, each of them cut into parts of at most
    /// `micro_batch_size` sequences.
    pub fn micro_batches(
        &self,
        epoch: &Sequences,
        step: Range<usize>,
        micro_batch_size: usize,
    ) -> Vec<Vec<u32>> {
        let part = |range: Range<usize>, size: usize| {
            let end = range.end;
            range
                .step_by(size)
                .map(move |start| start..(start + size).min(end))
        };
        part(step, self.batch_size)
            .flat_map(|batch| part(batch, micro_batch_size))
            .map(|sequences| epoch.rows(sequences).to_vec())
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

    /// First fit, longest rows first: each row goes into the first sequence that has room for it. Puts `rows` into that
    /// order; gives the sequence of each, and how many there are.
    fn pack(&self, rows: &mut [u32]) -> (Vec<u32>, usize) {
        rows.sort_by_key(|row| std::cmp::Reverse(self.lengths[*row as usize]));
        let mut room = Room::new(self.max_length);
        let take = |row: &u32| room.take(self.lengths[*row as usize]) as u32;
        let sequence_of: Vec<u32> = rows.iter().map(take).collect();
        let count = sequence_of
            .iter()
            .max()
            .map_or(0, |last| *last as usize + 1);
        (sequence_of, count)
    }
}

/// How much room each sequence has left: a tree whose nodes hold the most room below them. It grows with the sequences.
struct Room {
    room: u32,
    leaves: usize,
    most: Vec<u32>,
}

impl Room {
    fn new(room: u32) -> Self {
        Self {
            room,
            leaves: 1,
            most: vec![room; 2],
        }
    }

    /// Twice as many sequences, the new ones empty.
    fn grow(&mut self) {
        let before = std::mem::take(&mut self.most);
        let old = &before[self.leaves..];
        self.leaves *= 2;
        self.most = vec![self.room; 2 * self.leaves];
        self.most[self.leaves..self.leaves + old.len()].copy_from_slice(old);
        for node in (1..self.leaves).rev() {
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
        }
    }

    /// The first sequence with room for `length`, which it takes; no more than a sequence has.
    fn take(&mut self, length: u32) -> usize {
        while self.most[1] < length {
            self.grow();
        }
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
        let mut rows = epoch.rows.clone();
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
            let micro_batches = order.micro_batches(&epoch, step, micro_batch_size);
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
            assert_eq!(first.count(), second.count());
        }
    }

    #[test]
    fn a_sequence_keeps_its_rows_whatever_the_number_of_sequences() {
        // Longer than half a sequence: one row each, so the tree of rooms grows many times.
        let order = order(&[6; 1000], true, 1, 1);
        let epoch = order.epoch(0);
        assert_eq!(epoch.count(), 1000);
        assert!((0..1000).all(|index| epoch.rows(index..index + 1).len() == 1));
        assert_eq!(sorted(&epoch), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn packed_sequences_keep_to_the_length_and_leave_little_room() {
        let lengths: Vec<usize> = (0..200).map(|i| 1 + (i * 7) % 10).collect();
        let order = order(&lengths, true, 1, 1);
        let sequences = order.epoch(3);
        let tokens = |rows: &[u32]| rows.iter().map(|row| lengths[*row as usize]).sum::<usize>();
        let each = (0..sequences.count()).map(|index| sequences.rows(index..index + 1));
        assert!(each.clone().all(|rows| tokens(rows) <= 10));
        let least = lengths.iter().sum::<usize>().div_ceil(10);
        assert!(
            sequences.count() <= least + least / 10,
            "{} sequences, {least} would be perfect",
            sequences.count()
        );
    }

    #[test]
    fn no_micro_batch_has_more_tokens_than_is_said() {
        let lengths = [3, 9, 4, 9, 1, 2, 8];
        for packing in [false, true] {
            let order = order(&lengths, packing, 4, 1);
            for micro_batch_size in 1..=4 {
                let most = order.most_tokens(micro_batch_size);
                let epoch = order.epoch(1);
                let all = 0..epoch.count();
                let micro_batches = order.micro_batches(&epoch, all, micro_batch_size);
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
        assert_eq!(
            order(&[3, 5, 4, 3, 6, 5, 3], true, 1, 1).epoch(0).count(),
            3
        );
    }
}
