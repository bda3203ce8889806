//! Memory that each thread keeps for what its tasks work on.

use std::cell::{Cell, RefCell};

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

thread_local! {
    /// As large as the largest operation so far needed.
    static SHARED: Cell<Buffer> = const { Cell::new(Buffer::empty()) };
}

/// Calls `work` with `len` halves of values for an operation whose tasks share them, whose contents are whatever they
/// were. The memory is kept for the calling thread's next operation.
pub(crate) fn with_shared_memory<R>(len: usize, work: impl FnOnce(&mut [u16]) -> R) -> R {
    // Taken for the while: a thread that waits for its tasks may begin another operation.
    let mut memory = SHARED.take();
    memory
        .reserve(len.div_ceil(2))
        .unwrap_or_else(|error| panic!("{error}"));
    let result = work(&mut bytemuck::cast_slice_mut(memory.as_mut_slice())[..len]);
    SHARED.set(memory);
    result
}
