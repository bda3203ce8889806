//! Threads that stay awake between many short parallel regions, as a step of generation has them.
//!
//! A region of a few microseconds is over before a sleeping thread is awake. A team's threads wait for the next
//! region in a loop instead, for as long as one piece of work lasts, and sleep again after it:
//!
//! 1. [`Team::gather`] leaves the pool's other threads service to take; those that are busy elsewhere never come, which
//!    only makes the work slower.
//! 2. A region publishes its task and how many items there are. Every thread claims one item after the other; a claim
//!    is a step of the same atomic word that holds the number of items, so that nobody claims from a region that is
//!    over.
//! 3. The region ends when all items are done, so a task may borrow from its caller.

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{Parts, run};

/// Rounds of waiting before a thread lets others have its processor.
const SPINS: u32 = 4096;

/// A region's task, by the index of the item.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Some threads that share regions among them.
#[derive(Debug)]
pub(crate) struct Team {
    /// Number of items in the upper half, the next one in the lower.
    claims: AtomicU64,
    done: AtomicU64,
    task: UnsafeCell<Option<TaskPointer>>,
    is_over: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether others may come to help.
    has_helpers: bool,
}

/// A task without its lifetime.
#[derive(Debug, Clone, Copy)]
struct TaskPointer(*const (dyn Fn(usize) + Sync));

// SAFETY: `task` is written only between regions by the one thread that holds the team, and read only by those that
// have claimed an item, which keeps the region from ending.
unsafe impl Sync for Team {}

impl Team {
    /// Runs `work` on the engine's threads with a team of all of them.
    pub(crate) fn gather<R: Send>(work: impl FnOnce(&Team) -> R + Send) -> R {
        run(|| {
            let helpers = rayon::current_num_threads() - 1;
            let team = Team::new(helpers > 0);
            let lead = || {
                let _over = Over(&team);
                work(&team)
            };
            // Whoever is idle takes the other side; where nobody was, it comes back here when all is over.
            rayon::join(lead, || team.help(helpers)).0
        })
    }

    /// Serves on as many threads as come.
    fn help(&self, helpers: usize) {
        if helpers > 0 && !self.is_over.load(Ordering::Relaxed) {
            rayon::join(|| self.serve(), || self.help(helpers - 1));
        }
    }

    /// A team of the calling thread alone.
    #[cfg(test)]
    pub(crate) fn alone() -> Self {
        Self::new(false)
    }

    fn new(has_helpers: bool) -> Self {
        Self {
            claims: AtomicU64::new(0),
            done: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            is_over: AtomicBool::new(false),
            panic: Mutex::new(None),
            has_helpers,
        }
    }

    /// Calls `task` with every part and its index, on whichever thread takes it; returns when all are done.
    ///
    /// Not to be called from within a task.
    pub(crate) fn share<P: Parts>(&self, parts: P, task: impl Fn(usize, P::Part) + Sync) {
        let count = parts.count();
        // SAFETY: every index below the count comes once.
        let each = |index: usize| task(index, unsafe { parts.part(index) });
        if count < 2 || !self.has_helpers {
            (0..count).for_each(each);
            return;
        }
        self.region(count, &each);
        let panic = self
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn region(&self, len: usize, task: Task<'_>) {
        // SAFETY: the lifetime is only forgotten until this function ends, and it waits for all who use the task.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: no region is open, so nobody reads the task.
        unsafe { *self.task.get() = Some(TaskPointer(task)) };
        self.done.store(0, Ordering::Relaxed);
        self.claims.store((len as u64) << 32, Ordering::Release);
        while self.try_item() {}
        let mut waiting = Waiting(0);
        while self.done.load(Ordering::Acquire) < len as u64 {
            waiting.wait();
        }
    }

    /// Does one item of the open region, if there is one left.
    fn try_item(&self) -> bool {
        let claims = self.claims.load(Ordering::Relaxed);
        let (len, next) = (claims >> 32, claims & u64::from(u32::MAX));
        if next >= len {
            return false;
        }
        let claimed = self.claims.compare_exchange_weak(
            claims,
            claims + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_err() {
            return true;
        }
        // SAFETY: the claim keeps the region open, and it was published after its task was set.
        if let Some(TaskPointer(task)) = unsafe { *self.task.get() } {
            // SAFETY: as above: `region` does not return before this item is done.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*task)(next as usize) }));
            if let Err(panic) = outcome {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
        }
        self.done.fetch_add(1, Ordering::Release);
        true
    }

    fn serve(&self) {
        let mut waiting = Waiting(0);
        while !self.is_over.load(Ordering::Relaxed) {
            if self.try_item() {
                waiting = Waiting(0);
            } else {
                waiting.wait();
            }
        }
    }
}

/// Ends the service of a team's threads, also when the work panics.
struct Over<'a>(&'a Team);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Waits a moment, and after many of them gives the processor away.
struct Waiting(u32);

impl Waiting {
    fn wait(&mut self) {
        if self.0 < SPINS {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Count, rows_mut};

    #[test]
    fn every_item_is_done_once_in_each_of_many_regions() {
        Team::gather(|team| {
            for round in 0..2000 {
                let mut values = vec![0_usize; round % 50];
                team.share(rows_mut(&mut values, 1), |i, value| value[0] += i + round);
                assert!(
                    values
                        .iter()
                        .enumerate()
                        .all(|(i, value)| *value == i + round)
                );
            }
        });
    }

    #[test]
    fn parts_of_several_slices_come_together() {
        let (mut doubled, mut sums) = (vec![1, 2, 3, 4, 5, 6], vec![0; 3]);
        for team in [Team::alone(), Team::new(true)] {
            let parts = (rows_mut(&mut doubled, 2), rows_mut(&mut sums, 1));
            team.share(parts, |_, (pair, sum)| {
                pair.iter_mut().for_each(|value| *value *= 2);
                sum[0] += pair.iter().sum::<i32>();
            });
        }
        assert_eq!(doubled, [4, 8, 12, 16, 20, 24]);
        assert_eq!(sums, [6 + 12, 14 + 28, 22 + 44]);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_goes_on() {
        let panicked = catch_unwind(|| {
            Team::gather(|team| {
                team.share(Count(8), |i, ()| assert_ne!(i, 5));
            });
        });
        assert!(panicked.is_err());
        assert_eq!(run(|| 7), 7);
    }
}
