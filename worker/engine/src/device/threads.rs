//! The engine's threads: one pool for the whole process, made at first use.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::cores::stay_on_core;
use crate::EngineError;

static THREADS: OnceLock<usize> = OnceLock::new();
static POOL: OnceLock<ThreadPool> = OnceLock::new();

/// Sets how many threads compute; without it, as many as there are physical cores.
///
/// # Errors
/// [`EngineError::InvalidSetting`] for zero, or when another number is already in use.
pub fn set_threads(threads: usize) -> Result<(), EngineError> {
    let problem = |message: String| EngineError::InvalidSetting {
        field: "threads",
        message,
    };
    if threads == 0 {
        return Err(problem("must be at least 1".to_owned()));
    }
    let used = *THREADS.get_or_init(|| threads);
    if used == threads {
        Ok(())
    } else {
        Err(problem(format!(
            "{threads} asked for, but {used} are already in use"
        )))
    }
}

/// How many threads compute.
pub fn threads() -> usize {
    *THREADS.get_or_init(|| {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        sysinfo::System::physical_core_count()
            .unwrap_or(available)
            .clamp(1, available)
    })
}

/// Runs work on the engine's threads, or where the caller already is in a pool of its own.
pub fn run<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    let pool = POOL.get_or_init(|| {
        ThreadPoolBuilder::new()
            .num_threads(threads())
            .thread_name(|i| format!("engine-{i}"))
            .start_handler(|i| stay_on_core(i, threads()))
            .build()
            .expect("the system refuses to start threads, without which nothing here can work")
    });
    pool.install(work)
}
