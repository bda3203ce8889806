//! Memory that threads keep for what their tasks work on, and operations for what their tasks share.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use super::Buffer;

thread_local! {
    /// As large as the largest task so far needed.
    static MEMORY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with `len` values of this thread's own memory, whose contents are whatever they were.
///
/// Not to be called from within `work`.
pub(crate) fn with_own_memory<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    MEMORY.with_borrow_mut(|memory| {
        if memory.len() < len {
            memory.resize(len, 0.0);
        }
        work(&mut memory[..len])
    })
}

/// Memory that is not in use, as large as the operations that had it needed; there is as much of it as there were
/// operations at once.
static SHARED: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Calls `work` with `len` halves of values for an operation whose tasks share them, whose contents are whatever they
/// were.
pub(crate) fn with_shared_memory<R>(len: usize, work: impl FnOnce(&mut [u16]) -> R) -> R {
    let kept = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut memory = kept().pop().unwrap_or_default();
    memory
        .reserve(len.div_ceil(2))
        .unwrap_or_else(|error| panic!("{error}"));
    let result = work(&mut bytemuck::cast_slice_mut(memory.as_mut_slice())[..len]);
    kept().push(memory);
    result
}
