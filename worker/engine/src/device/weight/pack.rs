//! From rows as a file stores them to the layout of [`Coded`](super::Coded).

use rayon::prelude::*;

use super::{
    COLUMNS, StoredRows,
    coded::{GROUP, Layout},
};
use crate::{
    device::run,
    gguf::{BlockType, fives, nibbles, six_bits},
};

/// Fills all groups; they are zero before.
pub(super) fn groups(groups: &mut [u8], layout: Layout, stored: StoredRows<'_>) {
    let row_bytes = stored.bytes.len() / stored.rows;
    run(|| {
        groups
            .par_chunks_mut(layout.group_bytes(stored.columns))
            .zip(stored.bytes.par_chunks(GROUP * row_bytes))
            .for_each(|(group, rows)| {
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let mut lane = Lane {
                        group,
                        layout,
                        lane,
                    };
                    lane.fill(row);
                }
            });
    });
}

/// The place of one row in its group.
struct Lane<'a> {
    group: &'a mut [u8],
    layout: Layout,
    lane: usize,
}

impl Lane<'_> {
    fn fill(&mut self, row: &[u8]) {
        use BlockType::{Bf16, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let block_type = self.layout.block_type;
        let len = block_type.bytes_per_block();
        if matches!(block_type, F32 | F16 | Bf16) {
            for (chunk, values) in row.chunks(len * COLUMNS).enumerate() {
                self.elements(chunk, values, len);
            }
            return;
        }
        for (i, block) in row.chunks_exact(len).enumerate() {
            match block_type {
                F32 | F16 | Bf16 | Q8_0 => {
                    self.halves(i, &block[..2]);
                    self.elements(i, &block[2..], 1);
                }
                Q4_0 => {
                    self.halves(i, &block[..2]);
                    self.codes(i, 0, nibbles(&block[2..]));
                }
                Q4_1 => {
                    self.halves(i, &block[..4]);
                    self.codes(i, 0, nibbles(&block[4..]));
                }
                Q5_0 => {
                    self.halves(i, &block[..2]);
                    self.codes(i, 1, fives(&block[2..6], &block[6..]));
                }
                Q5_1 => {
                    self.halves(i, &block[..4]);
                    self.codes(i, 1, fives(&block[4..8], &block[8..]));
                }
                Q4K | Q5K => self.k_block(i, block),
                Q6K => self.q6k_block(i, block),
            }
        }
    }

    /// Eight chunks with scales and minima.
    fn k_block(&mut self, index: usize, block: &[u8]) {
        let (head, rest) = block.split_at(4);
        let (scales, rest) = rest.split_at(12);
        let fifths = rest.len() - 8 * COLUMNS / 2;
        let (high, low) = rest.split_at(fifths);
        self.header(8 * index, head);
        for part in 0..8 {
            let chunk = 8 * index + part;
            let (scale, minimum) = six_bits(scales, part);
            self.bytes(chunk, [scale, minimum]);
            let low = low[part / 2 * COLUMNS..][..COLUMNS].iter();
            let low = low.map(|low| low >> (part % 2 * 4) & 15);
            match high {
                [] => self.codes(chunk, 0, low),
                high => {
                    let fifth = high.iter().map(|high| (high >> part & 1) << 4);
                    self.codes(chunk, 1, low.zip(fifth).map(|(low, fifth)| low | fifth));
                }
            }
        }
    }

    /// Eight chunks with two scales each.
    fn q6k_block(&mut self, index: usize, block: &[u8]) {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let (scales, d) = rest.split_at(16);
        self.header(8 * index, d);
        for part in 0..8 {
            let (half, quarter) = (part / 4, part % 4);
            let low = &low[half * 64 + quarter % 2 * COLUMNS..][..COLUMNS];
            let high = &high[half * COLUMNS..][..COLUMNS];
            let q = low.iter().zip(high).map(|(low, high)| {
                (low >> (quarter / 2 * 4) & 15) | ((high >> (2 * quarter) & 3) << 4)
            });
            self.bytes(8 * index + part, [scales[2 * part], scales[2 * part + 1]]);
            self.codes(8 * index + part, 2, q);
        }
    }

    /// Sets values of `size` bytes each, one per column.
    fn elements(&mut self, chunk: usize, values: &[u8], size: usize) {
        let (_, start) = self.layout.places(chunk);
        let start = start + self.layout.head * GROUP;
        for (column, value) in values.chunks_exact(size).enumerate() {
            let at = start + (column * GROUP + self.lane) * size;
            self.group[at..at + size].copy_from_slice(value);
        }
    }

    /// Sets what a chunk's header holds: 16 bits each.
    fn halves(&mut self, chunk: usize, values: &[u8]) {
        let (_, start) = self.layout.places(chunk);
        self.halves_at(start, values);
    }

    /// Sets what the header of eight chunks holds, the first of which is `chunk`.
    fn header(&mut self, chunk: usize, values: &[u8]) {
        let (start, _) = self.layout.places(chunk);
        self.halves_at(start, values);
    }

    fn halves_at(&mut self, start: usize, values: &[u8]) {
        for (i, value) in values.chunks_exact(2).enumerate() {
            let at = start + (i * GROUP + self.lane) * 2;
            self.group[at..at + 2].copy_from_slice(value);
        }
    }

    /// Sets two bytes of a chunk's head.
    fn bytes(&mut self, chunk: usize, values: [u8; 2]) {
        let (_, start) = self.layout.places(chunk);
        for (i, value) in values.into_iter().enumerate() {
            self.group[start + i * GROUP + self.lane] = value;
        }
    }

    /// Sets the codes of 32 columns, of which `high` bits stand apart from the lower four.
    fn codes(&mut self, chunk: usize, high: usize, codes: impl Iterator<Item = u8>) {
        let (_, start) = self.layout.places(chunk);
        let start = start + self.layout.head * GROUP;
        let mut set = |word: usize, byte: usize, bits: u8| {
            self.group[start + (word * GROUP + self.lane) * 4 + byte] |= bits;
        };
        for (column, code) in codes.enumerate() {
            let bit = column * high;
            if high > 0 {
                set(bit / 32, bit % 32 / 8, (code >> 4) << (bit % 8));
            }
            set(
                high + column / 8,
                column % 8 / 2,
                (code & 15) << (column % 2 * 4),
            );
        }
    }
}
