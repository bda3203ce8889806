//! f32 values in three parts of bf16, in tiles as the matrix unit takes them.
//!
//! 32 rows times 32 steps lie as `[part][half of the rows][row][step]`, and 32 steps times 32 lanes as
//! `[part][half of the lanes][pair of steps][lane][step of the pair]`. Steps stand in the order that [`step_of`] gives,
//! in which registers are joined most easily.

use std::arch::x86_64::*;

use super::{ONE_PART, STEPS, TILE};
use crate::device::{LANES, panels::PANEL};

/// Half of a chunk's steps, rows or lanes: values of a register.
const HALF: usize = 16;

/// The first step of the `pair`th pair.
const fn step_of(pair: usize) -> usize {
    let (lane, place) = (pair / 4, pair % 4);
    match place {
        0 | 1 => 4 * lane + 2 * place,
        _ => HALF + 4 * lane + 2 * (place - 2),
    }
}

/// A part of a weight in panels `[panel][column][12]`.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct PanelPart<'a> {
    /// All its panels.
    pub panels: &'a [f32],
    /// Columns of a panel.
    pub columns: usize,
}

impl PanelPart<'_> {
    /// 16 rows from a multiple of 4 on; rows past the last panel are zero.
    #[inline]
    fn sixteen(&self, row: usize) -> Sixteen {
        debug_assert!(row.is_multiple_of(4));
        let panel = self.columns * PANEL;
        let (index, inside) = (row / PANEL, row % PANEL);
        let here = PANEL - inside;
        let mask = |end: usize| ((1_u32 << end.min(HALF)) - 1) as __mmask16;
        let is_there = |index: usize| (index + 1) * panel <= self.panels.len();
        let start = self.panels.as_ptr();
        Sixteen {
            first: start.wrapping_add(index * panel + inside),
            first_mask: if is_there(index) { mask(here) } else { 0 },
            second: start.wrapping_add((index + 1) * panel).wrapping_sub(here),
            second_mask: if is_there(index + 1) {
                mask(here + PANEL) & !mask(here)
            } else {
                0
            },
        }
    }
}

/// 16 neighbouring rows, of which two panels hold some each.
#[derive(Clone, Copy)]
struct Sixteen {
    first: *const f32,
    first_mask: __mmask16,
    second: *const f32,
    second_mask: __mmask16,
}

impl Sixteen {
    /// The rows' values at a column.
    ///
    /// # Safety
    /// The part has this column.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn at(self, column: usize) -> __m512 {
        // SAFETY: only values of panels that are there are read; the others are masked out.
        unsafe {
            let first = self.first.wrapping_add(column * PANEL);
            let second = self.second.wrapping_add(column * PANEL);
            let values = _mm512_maskz_loadu_ps(self.first_mask, first);
            _mm512_mask_loadu_ps(values, self.second_mask, second)
        }
    }

    /// The rows' values at 16 columns from one on, a register for each row; columns from `end` on are zero.
    ///
    /// # Safety
    /// The part has the columns before `end`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn square(self, column: usize, end: usize) -> [__m512; HALF] {
        let mut values = [_mm512_setzero_ps(); HALF];
        // The usual length as a constant, which the compiler turns into straight code.
        let count = match column + HALF <= end {
            true => HALF,
            false => end.saturating_sub(column),
        };
        for (i, value) in values.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller.
            *value = unsafe { self.at(column + i) };
        }
        transposed(values)
    }
}

/// The parts of 16 values, each in the upper half of its word.
#[inline]
#[target_feature(enable = "avx512f")]
fn parts(x: __m512) -> [__m512i; 3] {
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
    let half = _mm512_set1_epi32(0x8000);
    // To the nearest bf16; what is left is exact, and after two of them fits a third.
    let nearest = |x: __m512| {
        let bits = _mm512_add_epi32(_mm512_castps_si512(x), half);
        _mm512_and_si512(bits, upper)
    };
    let high = nearest(x);
    let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(high));
    let middle = nearest(rest);
    let low = _mm512_sub_ps(rest, _mm512_castsi512_ps(middle));
    [high, middle, _mm512_castps_si512(low)]
}

/// Puts 32 steps of one row in their places of the first `count` parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn put_row(out: *mut u16, first: __m512, second: __m512, count: usize) {
    let (first, second) = (parts(first), parts(second));
    for (part, (first, second)) in first.into_iter().zip(second).enumerate().take(count) {
        let joined = _mm512_packus_epi32(
            _mm512_srli_epi32::<16>(first),
            _mm512_srli_epi32::<16>(second),
        );
        // SAFETY: by the caller, the places are there.
        unsafe { _mm512_storeu_si512(out.add(part * ONE_PART).cast(), joined) };
    }
}

/// Where the `row`th of 32 rows begins in a part.
fn place_of(row: usize) -> usize {
    row / HALF * TILE + row % HALF * STEPS
}

/// Packs rows `row..row + 32` and columns `columns.0..columns.1`, at most 32 as steps, of a weight.
///
/// Fewer than 32 steps are filled up with zeros, as are rows past the last. `out` is as long as one part or three.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::device) fn pack_panels(
    out: &mut [u16],
    weight: PanelPart<'_>,
    row: usize,
    columns: (usize, usize),
) {
    let count = parts_of(out);
    assert!(columns.1 <= weight.columns);
    for half in [0, HALF] {
        let rows = weight.sixteen(row + half);
        // SAFETY: the part has these columns by the assertion.
        let (first, second) = unsafe {
            (
                rows.square(columns.0, columns.1),
                rows.square(columns.0 + HALF, columns.1),
            )
        };
        for (i, (first, second)) in first.iter().zip(&second).enumerate() {
            // SAFETY: the row's place is within each part of `out`.
            unsafe {
                let out = out.as_mut_ptr().add(place_of(half + i));
                put_row(out, *first, *second, count);
            }
        }
    }
}

/// Packs columns `columns.0..columns.1`, at most 32, as rows, and rows `row..row + 32` of a weight as steps.
///
/// Fewer than 32 rows are filled up with zeros, as are steps past the last. `out` is as long as one part or three.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::device) fn pack_panels_transposed(
    out: &mut [u16],
    weight: PanelPart<'_>,
    row: usize,
    columns: (usize, usize),
) {
    let count = parts_of(out);
    assert!(columns.1 <= weight.columns);
    let (low, high) = (weight.sixteen(row), weight.sixteen(row + HALF));
    for i in 0..STEPS {
        let column = columns.0 + i;
        let (mut first, mut second) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        if column < columns.1 {
            // SAFETY: the part has this column by the assertion.
            (first, second) = unsafe { (low.at(column), high.at(column)) };
        }
        // SAFETY: the row's place is within each part of `out`.
        unsafe { put_row(out.as_mut_ptr().add(place_of(i)), first, second, count) };
    }
}

/// Packs row-major values `[32 rows][32 steps]`, in three parts.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::device) fn pack_rows(out: &mut [u16], values: &[[f32; STEPS]; 32]) {
    assert_eq!(parts_of(out), 3);
    for (i, row) in values.iter().enumerate() {
        // SAFETY: a row is two registers long, and its place is within each part of `out`.
        unsafe {
            let first = _mm512_loadu_ps(row.as_ptr());
            let second = _mm512_loadu_ps(row.as_ptr().add(HALF));
            put_row(out.as_mut_ptr().add(place_of(i)), first, second, 3);
        }
    }
}

/// Packs at most 32 steps of a block's lanes, `[step][lane]`; steps past the last are zero.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::device) fn pack_inputs(out: &mut [u16], x: &[f32]) {
    assert_eq!(parts_of(out), 3);
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
    for pair in 0..HALF {
        for half in 0..2 {
            let load = |step: usize| match x.get(step * LANES + half * HALF..) {
                // SAFETY: `x` is whole steps, so there are 16 more values.
                Some(values) if !values.is_empty() => unsafe { _mm512_loadu_ps(values.as_ptr()) },
                _ => _mm512_setzero_ps(),
            };
            let step = step_of(pair);
            let (even, odd) = (parts(load(step)), parts(load(step + 1)));
            let place = half * TILE + pair * 2 * HALF;
            for (part, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                let joined =
                    _mm512_or_si512(_mm512_srli_epi32::<16>(even), _mm512_and_si512(odd, upper));
                // SAFETY: within each part of `out`.
                unsafe {
                    _mm512_storeu_si512(
                        out.as_mut_ptr().add(part * ONE_PART + place).cast(),
                        joined,
                    );
                }
            }
        }
    }
}

/// In how many parts a packed chunk of this length is held.
fn parts_of(out: &[u16]) -> usize {
    assert!(out.len() == ONE_PART || out.len() == 3 * ONE_PART);
    out.len() / ONE_PART
}

/// 16 registers of 16 values with rows and columns exchanged.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; HALF]) -> [__m512; HALF] {
    let pairs: [__m512d; HALF] = std::array::from_fn(|i| {
        let (a, b) = (rows[i / 2 * 2], rows[i / 2 * 2 + 1]);
        _mm512_castps_pd(match i % 2 {
            0 => _mm512_unpacklo_ps(a, b),
            _ => _mm512_unpackhi_ps(a, b),
        })
    });
    // Columns 4 k + j of rows 4 i.. stand in lane k of the register 4 i + j.
    let fours: [__m512; HALF] = std::array::from_fn(|at| {
        let (i, j) = (at / 4, at % 4);
        let (a, b) = (pairs[4 * i + j / 2], pairs[4 * i + 2 + j / 2]);
        _mm512_castpd_ps(match j % 2 {
            0 => _mm512_unpacklo_pd(a, b),
            _ => _mm512_unpackhi_pd(a, b),
        })
    });
    let mut out = rows;
    for j in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| fours[4 * i + j]);
        let (ab, cd) = (
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
        );
        out[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
        out[4 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
        let (ab, cd) = (
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
        );
        out[8 + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
        out[12 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
    }
    out
}
