//! Memory for what is packed.

use std::sync::{Mutex, PoisonError};

use crate::device::Buffer;

/// Memory that is not in use, as large as the operations that had it needed; there is as much of it as there were
/// operations at once.
static SHARED: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Calls `work` with `len` values of 16 bits for an operation whose tasks share them, whose contents are whatever they
/// were.
pub(in crate::device) fn with_shared_memory<R>(
    len: usize,
    work: impl FnOnce(&mut [u16]) -> R,
) -> R {
    let kept = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut memory = kept().pop().unwrap_or_default();
    memory
        .reserve(len.div_ceil(2))
        .unwrap_or_else(|error| panic!("{error}"));
    let result = work(&mut bytemuck::cast_slice_mut(memory.as_mut_slice())[..len]);
    kept().push(memory);
    result
}
