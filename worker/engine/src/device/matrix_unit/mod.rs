//! The processor's matrix unit (AMX), where there is one: it multiplies tiles of bf16 and sums in f32, some sixteen times
//! as fast as vectors do in f32.
//!
//! f32 values are held in three parts of bf16, whose sum is the value to the last bit: `x = h + m + l`. Of the nine
//! products of two values' parts six are computed, `hh + hm + hl + mh + mm + lh`; what is left out is below half a unit
//! in the last place of the product. (The unit takes what is below 1e-38 for zero, so of values below 1e-31 the last bits are
//! lost, and what rounds to an infinite bf16, from 3.396e38 on, is one.) A weight whose values are bf16 itself needs three.

mod kernel;
mod memory;
mod pack;

use std::sync::OnceLock;

use super::instructions::{may_use_matrix_unit, wants_matrix_unit_for_f32};
pub(super) use kernel::Tiles;
pub(super) use memory::with_shared_memory;
pub(super) use pack::{PanelPart, pack_inputs, pack_panels, pack_panels_transposed, pack_rows};

/// Rows and lanes of what one call of the kernel computes: two tiles each way.
pub(super) const SIDE: usize = 32;

/// Steps of a sum that a tile holds.
pub(super) const STEPS: usize = 32;

/// Values of a tile.
const TILE: usize = 16 * STEPS;

/// Values that [`STEPS`] steps of 32 rows or lanes take up when held exactly in one part, and in three.
pub(super) const ONE_PART: usize = 2 * TILE;
/// See [`ONE_PART`].
pub(super) const THREE_PARTS: usize = 3 * ONE_PART;

/// Whether this process may use a matrix unit, and is to.
pub(super) fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| may_use_matrix_unit() && has_instructions() && ask())
}

/// Whether it is to multiply weights, too, whose values are not bf16 themselves. With six products for each it is faster
/// than vectors only where the processor lets it run at its full rate, which many slow it down from.
pub(super) fn takes_f32() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(wants_matrix_unit_for_f32)
}

/// Whether the processor has tiles of bf16, and vectors as the packing needs them.
fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILES_OF_BF16: u32 = 1 << 22 | 1 << 24;
    let vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    vectors && __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_OF_BF16 == TILES_OF_BF16
}

/// Asks the system to keep the tiles' registers for this process's threads; false if it refuses.
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: asks for a permission and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(test)]
mod tests;
