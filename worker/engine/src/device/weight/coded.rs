//! The layout of weights that are held in 16 bits or fewer: groups of rows, chunks of columns, a lane for each row.
//!
//! A group is 48 rows, a chunk 32 columns. A chunk holds first what its rows' blocks have in common and then the
//! codes, everything with one lane per row, so that vector registers of any width hold neighbouring rows:
//!
//! ```text
//! F16, BF16   u16 values[32][48]
//! Q8_0        f16 d[48]                     i8 q[32][48]
//! Q4_0        f16 d[48]                     u32 low[4][48]
//! Q4_1        f16 d[48], f16 m[48]          u32 low[4][48]
//! Q5_0, Q5_1  as Q4_0 and Q4_1              u32 high[1][48], low[4][48]
//! Q4_K        u8 scale[48], u8 minimum[48]  u32 low[4][48]
//! Q5_K        u8 scale[48], u8 minimum[48]  u32 high[1][48], low[4][48]
//! Q6_K        i8 scale[2][48]               u32 high[2][48], low[4][48]
//! ```
//! `low[k]` holds the lower four bits of columns 8 k to 8 k + 7, the lowest first; `high` likewise the fifth bit of
//! all 32 columns, or bits five and six of 16 columns each. Of the K types, eight chunks share a header: `f16 d[48]`,
//! and `f16 m[48]` but for Q6_K. Their packed 6-bit scales become bytes (4 bytes more of 144 or 176); all else takes
//! what it takes in the file. Missing rows and columns are zero.

use half::f16;
use rayon::prelude::*;

use super::{COLUMNS, StoredRows, pack};
use crate::{
    EngineError,
    device::{Buffer, run},
    gguf::BlockType,
};

/// Rows of a group.
pub(crate) const GROUP: usize = 48;

/// A weight matrix held in 16 bits a value or fewer.
#[derive(Debug)]
pub struct Coded {
    buffer: Buffer,
    layout: Layout,
    rows: usize,
    columns: usize,
    is_bf16: bool,
}

/// How much there is of what in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub block_type: BlockType,
    /// Bytes per row of a chunk, before the codes.
    pub head: usize,
    /// Bytes per row of a chunk in all.
    pub chunk: usize,
    /// Chunks that share a header.
    pub shared: usize,
    /// Bytes per row of that header.
    pub header: usize,
}

impl Layout {
    pub(super) fn of(block_type: BlockType) -> Self {
        use BlockType::{Bf16, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let (head, codes, shared, header) = match block_type {
            F32 => (0, 4 * COLUMNS, 1, 0),
            F16 | Bf16 => (0, 2 * COLUMNS, 1, 0),
            Q8_0 => (2, COLUMNS, 1, 0),
            Q4_0 => (2, 16, 1, 0),
            Q4_1 => (4, 16, 1, 0),
            Q5_0 => (2, 20, 1, 0),
            Q5_1 => (4, 20, 1, 0),
            Q4K => (2, 16, 8, 4),
            Q5K => (2, 20, 8, 4),
            Q6K => (2, 24, 8, 2),
        };
        Self {
            block_type,
            head,
            chunk: head + codes,
            shared,
            header,
        }
    }

    /// Bytes of chunks that share a header, with it.
    fn shared_bytes(&self) -> usize {
        (self.header + self.shared * self.chunk) * GROUP
    }

    /// Bytes of one group of so many columns.
    pub(super) fn group_bytes(&self, columns: usize) -> usize {
        columns.div_ceil(COLUMNS * self.shared) * self.shared_bytes()
    }

    /// Where a chunk's shared header and the chunk itself begin in its group.
    pub(super) fn places(&self, chunk: usize) -> (usize, usize) {
        let header = chunk / self.shared * self.shared_bytes();
        let within = self.header + chunk % self.shared * self.chunk;
        (header, header + within * GROUP)
    }
}

impl Coded {
    /// Holds `stored` as it is; its type is not F32.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when there is no room for it.
    pub fn pack(stored: StoredRows<'_>) -> Result<Self, EngineError> {
        let StoredRows {
            block_type,
            rows,
            columns,
            bytes,
        } = stored;
        let blocks = columns / block_type.values_per_block();
        assert_eq!(
            (
                columns % block_type.values_per_block(),
                rows * blocks * block_type.bytes_per_block()
            ),
            (0, bytes.len()),
            "a matrix of {rows} x {columns} in {block_type}"
        );
        let layout = Layout::of(block_type);
        let len = rows.div_ceil(GROUP) * layout.group_bytes(columns);
        let mut coded = Self {
            buffer: Buffer::zeroed(len / size_of::<f32>())?,
            layout,
            rows,
            columns,
            is_bf16: false,
        };
        let groups = bytemuck::cast_slice_mut(coded.buffer.as_mut_slice());
        pack::groups(groups, layout, stored);
        coded.is_bf16 = block_type == BlockType::Bf16 || coded.has_only_bf16();
        Ok(coded)
    }

    /// Looks at the values, of which the first ones mostly tell.
    fn has_only_bf16(&self) -> bool {
        let is_bf16 = |group: usize| {
            (0..self.chunks()).all(|chunk| {
                let mut values = [[0.0; GROUP]; COLUMNS];
                self.chunk(group, chunk).unpack(&mut values);
                let mut values = values.as_flattened().iter();
                values.all(|value| value.to_bits() << 16 == 0)
            })
        };
        run(|| (0..self.groups()).into_par_iter().all(is_bf16))
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The type of its values.
    pub fn block_type(&self) -> BlockType {
        self.layout.block_type
    }

    /// Whether every value is a bf16, whatever it is held as.
    pub fn is_bf16(&self) -> bool {
        self.is_bf16
    }

    /// Bytes that it takes up.
    pub fn bytes(&self) -> usize {
        size_of_val(self.buffer.as_slice())
    }

    /// Chunks in a group.
    pub(crate) fn chunks(&self) -> usize {
        self.columns.div_ceil(COLUMNS)
    }

    /// Groups of rows.
    pub(crate) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// One chunk of one group.
    #[inline(always)]
    pub(crate) fn chunk(&self, group: usize, chunk: usize) -> Chunk<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(self.buffer.as_slice());
        let len = self.layout.group_bytes(self.columns);
        let group = &bytes[group * len..][..len];
        let (header, start) = self.layout.places(chunk);
        let (head, codes) =
            group[start..][..self.layout.chunk * GROUP].split_at(self.layout.head * GROUP);
        Chunk {
            block_type: self.layout.block_type,
            header: &group[header..][..self.layout.header * GROUP],
            head,
            codes,
        }
    }

    /// One value.
    pub(crate) fn value(&self, row: usize, column: usize) -> f32 {
        self.chunk(row / GROUP, column / COLUMNS)
            .value(row % GROUP, column % COLUMNS)
    }
}

/// The values of 48 rows in 32 columns, as [the layout](self) tells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub block_type: BlockType,
    /// What eight chunks of a K type share.
    pub header: &'a [u8],
    /// What the codes of a row have in common.
    pub head: &'a [u8],
    pub codes: &'a [u8],
}

impl Chunk<'_> {
    /// One value, each by its definition; [`Chunk::unpack`] gives all of them at once.
    fn value(&self, lane: usize, column: usize) -> f32 {
        use BlockType::{Bf16, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let u16_at = |bytes: &[u8], index: usize| {
            u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
        };
        let half = |bytes: &[u8], index: usize| f16::from_bits(u16_at(bytes, index)).to_f32();
        let low = |from: usize| {
            let byte =
                self.codes[from * 4 * GROUP + (column / 8 * GROUP + lane) * 4 + column % 8 / 2];
            byte >> (column % 2 * 4) & 15
        };
        let fifth = || (self.codes[lane * 4 + column / 8] >> (column % 8) & 1) << 4;
        let k = |q: u8| {
            let scale = half(self.header, lane) * f32::from(self.head[lane]);
            let minimum = half(self.header, GROUP + lane) * f32::from(self.head[GROUP + lane]);
            scale * f32::from(q) - minimum
        };
        match self.block_type {
            F32 => unreachable!("f32 weights lie in panels"),
            F16 => half(self.codes, column * GROUP + lane),
            Bf16 => half::bf16::from_bits(u16_at(self.codes, column * GROUP + lane)).to_f32(),
            Q8_0 => {
                half(self.head, lane) * f32::from(self.codes[column * GROUP + lane].cast_signed())
            }
            Q4_0 => half(self.head, lane) * (f32::from(low(0)) - 8.0),
            Q4_1 => half(self.head, lane) * f32::from(low(0)) + half(self.head, GROUP + lane),
            Q5_0 => half(self.head, lane) * (f32::from(low(1) | fifth()) - 16.0),
            Q5_1 => {
                half(self.head, lane) * f32::from(low(1) | fifth()) + half(self.head, GROUP + lane)
            }
            Q4K => k(low(0)),
            Q5K => k(low(1) | fifth()),
            Q6K => {
                let byte = self.codes[(column / 16 * GROUP + lane) * 4 + column % 16 / 4];
                let q = low(2) | (byte >> (column % 4 * 2) & 3) << 4;
                let scale = self.head[column / 16 * GROUP + lane].cast_signed();
                half(self.header, lane) * f32::from(scale) * (f32::from(q) - 32.0)
            }
        }
    }
}
