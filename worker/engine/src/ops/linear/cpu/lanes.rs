//! The vector instructions that coded weights are multiplied with: one lane per row.
//!
//! AVX-512, AVX2 with FMA and F16C, and plain loops that the compiler turns into whatever else there is (NEON).

use half::f16;

/// Vectors of `N` lanes.
///
/// # Safety
/// All functions need the instructions that the implementation is named after, and pointers to `N` values.
pub(super) trait Lanes: Copy {
    /// Lanes of a vector; divides the rows of a group.
    const N: usize;
    /// f32 values.
    type Floats: Copy;
    /// u32 words.
    type Words: Copy;

    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn load(from: *const f32) -> Self::Floats;
    unsafe fn store(value: Self::Floats, to: *mut f32);
    /// `a * b`.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn words(from: *const u32) -> Self::Words;
    /// The four bits of each word from bit `4 * index` on.
    unsafe fn nibbles(words: Self::Words, index: u32) -> Self::Floats;
    unsafe fn signed_bytes(from: *const u8) -> Self::Floats;
    unsafe fn bytes(from: *const u8) -> Self::Floats;
    unsafe fn f16s(from: *const u16) -> Self::Floats;
    unsafe fn bf16s(from: *const u16) -> Self::Floats;
}

/// Loops over arrays.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const PORTABLE: usize = 8;

impl Lanes for Portable {
    const N: usize = PORTABLE;
    type Floats = [f32; PORTABLE];
    type Words = [u32; PORTABLE];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::Floats {
        [value; PORTABLE]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Floats {
        // SAFETY: by the caller.
        unsafe { from.cast::<Self::Floats>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(value: Self::Floats, to: *mut f32) {
        // SAFETY: by the caller.
        unsafe { to.cast::<Self::Floats>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // Fused only where that is an instruction and not a call.
        std::array::from_fn(|i| match cfg!(target_arch = "aarch64") {
            true => a[i].mul_add(b[i], c[i]),
            false => a[i] * b[i] + c[i],
        })
    }

    #[inline(always)]
    unsafe fn words(from: *const u32) -> Self::Words {
        // SAFETY: by the caller.
        unsafe { from.cast::<Self::Words>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn nibbles(words: Self::Words, index: u32) -> Self::Floats {
        words.map(|word| (word >> (4 * index) & 15).cast_signed() as f32)
    }

    #[inline(always)]
    unsafe fn signed_bytes(from: *const u8) -> Self::Floats {
        // SAFETY: by the caller.
        let bytes = unsafe { from.cast::<[i8; PORTABLE]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Floats {
        // SAFETY: by the caller.
        let bytes = unsafe { from.cast::<[u8; PORTABLE]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn f16s(from: *const u16) -> Self::Floats {
        // SAFETY: by the caller.
        let bits = unsafe { from.cast::<[u16; PORTABLE]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn bf16s(from: *const u16) -> Self::Floats {
        // SAFETY: by the caller.
        let bits = unsafe { from.cast::<[u16; PORTABLE]>().read_unaligned() };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2;

    /// AVX-512 F.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512;

    impl Lanes for Avx2 {
        const N: usize = 8;
        type Floats = __m256;
        type Words = __m256i;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: by the caller, as in all functions below.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(value: __m256, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to, value) }
        }

        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn words(from: *const u32) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }

        #[inline(always)]
        unsafe fn nibbles(words: __m256i, index: u32) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let shift = _mm_cvtsi32_si128(4 * index.cast_signed());
                let codes = _mm256_and_si256(_mm256_srl_epi32(words, shift), _mm256_set1_epi32(15));
                _mm256_cvtepi32_ps(codes)
            }
        }

        #[inline(always)]
        unsafe fn signed_bytes(from: *const u8) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn f16s(from: *const u16) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }

        #[inline(always)]
        unsafe fn bf16s(from: *const u16) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
    }

    impl Lanes for Avx512 {
        const N: usize = 16;
        type Floats = __m512;
        type Words = __m512i;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m512 {
            // SAFETY: by the caller, as in all functions below.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(value: __m512, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to, value) }
        }

        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn words(from: *const u32) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        /// A permutation looks at four bits of each index, and its table is the values of these bits: neither a
        /// mask nor a conversion is needed.
        #[inline(always)]
        unsafe fn nibbles(words: __m512i, index: u32) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let table = _mm512_set_ps(
                    15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0,
                    1.0, 0.0,
                );
                let shift = _mm_cvtsi32_si128(4 * index.cast_signed());
                _mm512_permutexvar_ps(_mm512_srl_epi32(words, shift), table)
            }
        }

        #[inline(always)]
        unsafe fn signed_bytes(from: *const u8) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
        }

        #[inline(always)]
        unsafe fn f16s(from: *const u16) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }

        #[inline(always)]
        unsafe fn bf16s(from: *const u16) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
    }
}
