//! A mutable slice that several threads write to at once, each its own part.

use std::marker::PhantomData;

/// A slice whose parts are written by different tasks of one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: the slice is only reached through the unsafe methods below, whose callers keep tasks apart.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Shares a slice for as long as it is borrowed.
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// The part `start..start + len`.
    ///
    /// # Safety
    /// No other task reads or writes any of it while the result lives.
    pub(crate) unsafe fn part(self, start: usize, len: usize) -> &'a mut [f32] {
        assert!(
            start + len <= self.len,
            "part {start}+{len} of {}",
            self.len
        );
        // SAFETY: within the slice by the assertion; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// A pointer to the value at `offset`, which the caller may use up to the slice's end.
    pub(crate) fn pointer(self, offset: usize) -> *mut f32 {
        debug_assert!(offset <= self.len);
        self.start.wrapping_add(offset)
    }
}
