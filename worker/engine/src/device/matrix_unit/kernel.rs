//! The kernel: 32 rows by 32 lanes of a sum of products, in the unit's own registers throughout.

use std::arch::asm;
use std::marker::PhantomData;

use super::{ONE_PART, THREE_PARTS, TILE};
use crate::device::LANES;

// What the offsets below are made for.
const _: () = assert!(LANES == 32 && TILE == 512);

/// The shape of all eight tiles, 16 rows of 64 bytes, as `ldtilecfg` takes it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = 64;
        rows[tile] = 16;
        tile += 1;
    }
    Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes,
        rows,
    }
};

/// The matrix unit of the thread that made it, ready for use; given back when dropped.
pub(in crate::device) struct Tiles {
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

/// Loads 32 rows of the part that begins so many bytes behind `a`.
macro_rules! rows {
    ($part:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {row} + ",
            $part,
            "]\ntileloadd tmm5, [{a} + {row} + 1024 + ",
            $part,
            "]"
        )
    };
}

/// Loads 32 lanes of the part that begins so many bytes behind `b`.
macro_rules! lanes {
    ($part:literal) => {
        concat!(
            "tileloadd tmm6, [{b} + {row} + ",
            $part,
            "]\ntileloadd tmm7, [{b} + {row} + 1024 + ",
            $part,
            "]"
        )
    };
}

/// Adds the products of the loaded rows and lanes to the sums.
macro_rules! products {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6
        tdpbf16ps tmm1, tmm4, tmm7
        tdpbf16ps tmm2, tmm5, tmm6
        tdpbf16ps tmm3, tmm5, tmm7"
    };
}

impl Tiles {
    /// Sets the calling thread's unit up.
    ///
    /// # Safety
    /// [`super::is_there`], and the thread has no other `Tiles`.
    pub(in crate::device) unsafe fn set_up() -> Self {
        // SAFETY: by the caller.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack));
        }
        Self {
            thread: PhantomData,
        }
    }

    /// `y = start + sum over steps of a b` for 32 rows and the 32 lanes of a block; rows of `y` and `start` are
    /// [`LANES`] values apart.
    ///
    /// `exact` times 32 steps of `a` are held in one part, `whole` times 32 after them in three; those of `b` all in
    /// three. The order of the sum is always the same.
    ///
    /// # Safety
    /// `a`, `b` and `y` are as long as that says, and `start` is as `y`, may be `y`, or is null for nothing.
    #[inline]
    pub(in crate::device) unsafe fn multiply(
        &self,
        (a, b): (*const u16, *const u16),
        (exact, whole): (usize, usize),
        start: *const f32,
        y: *mut f32,
    ) {
        // SAFETY: by the caller; the tiles are set up as long as `self` lives, and nothing but this function uses them.
        unsafe {
            asm!(
                "test {start}, {start}",
                "jz 2f",
                "tileloadd tmm0, [{start} + {line}]",
                "tileloadd tmm1, [{start} + {line} + 64]",
                "tileloadd tmm2, [{start} + {line} + 2048]",
                "tileloadd tmm3, [{start} + {line} + 2112]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "test {exact}, {exact}",
                "jz 5f",
                "4:",
                rows!(0),
                lanes!(0),
                products!(),
                lanes!(2048),
                products!(),
                lanes!(4096),
                products!(),
                "add {a}, {one_part}",
                "add {b}, {three_parts}",
                "dec {exact}",
                "jnz 4b",
                "5:",
                "test {whole}, {whole}",
                "jz 7f",
                "6:",
                // High parts of the rows with all of the lanes' parts.
                rows!(0),
                lanes!(0),
                products!(),
                lanes!(2048),
                products!(),
                lanes!(4096),
                products!(),
                // Middle parts with middle and high ones.
                rows!(2048),
                lanes!(2048),
                products!(),
                lanes!(0),
                products!(),
                // Low parts with high ones.
                rows!(4096),
                products!(),
                "add {a}, {three_parts}",
                "add {b}, {three_parts}",
                "dec {whole}",
                "jnz 6b",
                "7:",
                "tilestored [{y} + {line}], tmm0",
                "tilestored [{y} + {line} + 64], tmm1",
                "tilestored [{y} + {line} + 2048], tmm2",
                "tilestored [{y} + {line} + 2112], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                exact = inout(reg) exact => _,
                whole = inout(reg) whole => _,
                start = in(reg) start,
                y = in(reg) y,
                line = in(reg) LANES * size_of::<f32>(),
                row = in(reg) 64_usize,
                one_part = const ONE_PART * size_of::<u16>(),
                three_parts = const THREE_PARTS * size_of::<u16>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever set the unit up saw that it is there.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
