//! From coded weights back to f32: the same values, bit for bit, as the file's own definition gives.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

use super::{COLUMNS, Chunk, Coded, GROUP};
use crate::{
    device::{math::dispatch, panels::PANEL},
    gguf::BlockType,
};

/// f32 values of a chunk.
pub(crate) type Values = [[f32; GROUP]; COLUMNS];

/// One f32 for each row of a group.
type Lanes = [f32; GROUP];

const _: () = assert!(GROUP.is_multiple_of(PANEL), "panels do not cross groups");

impl Coded {
    /// Unpacks rows `rows.0..rows.1`, whole panels, in columns `columns.0..columns.1` into panels
    /// `[panel][column][12]`; rows past the last are zero.
    pub(crate) fn unpack(&self, out: &mut [f32], rows: (usize, usize), columns: (usize, usize)) {
        dispatch(Unpack {
            coded: self,
            out,
            rows,
            columns,
        });
    }
}

struct Unpack<'a> {
    coded: &'a Coded,
    out: &'a mut [f32],
    rows: (usize, usize),
    columns: (usize, usize),
}

impl WithSimd for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            coded,
            out,
            rows,
            columns,
        } = self;
        let width = (columns.1 - columns.0) * PANEL;
        let mut values = [[0.0; GROUP]; COLUMNS];
        for group in rows.0 / GROUP..rows.1.div_ceil(GROUP) {
            let first = group * GROUP;
            let panels = (rows.0.max(first), rows.1.min(first + GROUP));
            for chunk in columns.0 / COLUMNS..columns.1.div_ceil(COLUMNS) {
                coded.chunk(group, chunk).unpack(&mut values);
                let from = columns.0.max(chunk * COLUMNS);
                let end = columns.1.min((chunk + 1) * COLUMNS);
                for row in (panels.0..panels.1).step_by(PANEL) {
                    let at = (row - rows.0) / PANEL * width + (from - columns.0) * PANEL;
                    let (panel, _) = out[at..][..(end - from) * PANEL].as_chunks_mut::<PANEL>();
                    let values = &values[from - chunk * COLUMNS..];
                    for (panel, values) in panel.iter_mut().zip(values) {
                        panel.copy_from_slice(&values[row - first..][..PANEL]);
                    }
                }
            }
        }
    }
}

impl Chunk<'_> {
    /// All values, each as the type's definition rounds it. To be called where vector instructions are enabled.
    #[inline(always)]
    pub(crate) fn unpack(&self, out: &mut Values) {
        use BlockType::{Bf16, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        match self.block_type {
            F32 => unreachable!("f32 weights lie in panels"),
            F16 => bytemuck::cast_slice::<u8, f16>(self.codes)
                .convert_to_f32_slice(out.as_flattened_mut()),
            Bf16 => {
                let codes: &[bf16] = bytemuck::cast_slice(self.codes);
                for (out, code) in out.as_flattened_mut().iter_mut().zip(codes) {
                    *out = f32::from_bits(u32::from(code.to_bits()) << 16);
                }
            }
            Q8_0 => {
                let scale = halves(self.head, 0);
                let (codes, _) = self.codes.as_chunks::<GROUP>();
                for (out, codes) in out.iter_mut().zip(codes) {
                    for ((out, code), scale) in out.iter_mut().zip(codes).zip(scale) {
                        *out = scale * f32::from(code.cast_signed());
                    }
                }
            }
            Q4_0 => self.words::<0>(out, [halves(self.head, 0); 2], None, 8.0),
            Q5_0 => self.words::<1>(out, [halves(self.head, 0); 2], None, 16.0),
            Q4_1 => {
                let minimum = halves(self.head, 1);
                self.words::<0>(out, [halves(self.head, 0); 2], Some(minimum), 0.0);
            }
            Q5_1 => {
                let minimum = halves(self.head, 1);
                self.words::<1>(out, [halves(self.head, 0); 2], Some(minimum), 0.0);
            }
            Q4K => {
                let (scale, minimum) = self.k_scales();
                self.words::<0>(out, [scale; 2], Some(minimum), 0.0);
            }
            Q5K => {
                let (scale, minimum) = self.k_scales();
                self.words::<1>(out, [scale; 2], Some(minimum), 0.0);
            }
            Q6K => {
                let d = halves(self.header, 0);
                let scale = |half: usize| -> Lanes {
                    let scales = &self.head[half * GROUP..][..GROUP];
                    std::array::from_fn(|lane| d[lane] * f32::from(scales[lane].cast_signed()))
                };
                self.words::<2>(out, [scale(0), scale(1)], None, 32.0);
            }
        }
    }

    /// Scale, and what is added, of a K type with minima.
    #[inline(always)]
    pub(crate) fn k_scales(&self) -> (Lanes, Lanes) {
        let (d, m) = (halves(self.header, 0), halves(self.header, 1));
        let (scales, minima) = self.head.split_at(GROUP);
        (
            std::array::from_fn(|lane| d[lane] * f32::from(scales[lane])),
            std::array::from_fn(|lane| -(m[lane] * f32::from(minima[lane]))),
        )
    }

    /// `scale * (q - offset) + minimum` for codes of 4 bits and `HIGH` more; each half of the columns has its scale.
    #[inline(always)]
    fn words<const HIGH: usize>(
        &self,
        out: &mut Values,
        scale: [Lanes; 2],
        minimum: Option<Lanes>,
        offset: f32,
    ) {
        let (words, _) = bytemuck::cast_slice::<u8, u32>(self.codes).as_chunks::<GROUP>();
        let (high, low) = words.split_at(HIGH);
        for (column, out) in out.iter_mut().enumerate() {
            let (low, shift) = (&low[column / 8], column % 8 * 4);
            let scale = &scale[column / 16];
            for (lane, out) in out.iter_mut().enumerate() {
                let mut q = low[lane] >> shift & 15;
                if HIGH > 0 {
                    let bit = column * HIGH;
                    let mask = (1 << HIGH) - 1;
                    q |= (high[bit / 32][lane] >> (bit % 32) & mask) << 4;
                }
                // Through i32, for which every vector unit has a conversion.
                *out = scale[lane] * (q.cast_signed() as f32 - offset);
            }
            if let Some(minimum) = &minimum {
                for (out, minimum) in out.iter_mut().zip(minimum) {
                    *out += minimum;
                }
            }
        }
    }
}

/// The `index`th row of f16 values in a head or header.
#[inline(always)]
pub(crate) fn halves(bytes: &[u8], index: usize) -> Lanes {
    let mut lanes = [0.0; GROUP];
    bytemuck::cast_slice::<u8, f16>(&bytes[2 * index * GROUP..][..2 * GROUP])
        .convert_to_f32_slice(&mut lanes);
    lanes
}
