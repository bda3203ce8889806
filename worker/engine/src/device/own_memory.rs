//! Memory that threads keep for what their tasks work on.

use std::cell::RefCell;

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
