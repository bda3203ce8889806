//! The state directory: one process at a time, and nothing left over from jobs that a crash ended.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::{create_private_folder, open_lock_file};

/// Folder of what runs, swept at the start.
pub(crate) const JOBS: &str = "jobs";
/// How long a worker that is just ending may keep the folder: one that was killed frees its memory first.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// The file system refused.
    #[error("STATE_DIR {}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another worker runs in it: two with one identity would push each other out.
    #[error("another worker runs with STATE_DIR {}; give each its own", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

/// The state directory of this process. It is free again when this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the folder if need be, takes it for this process and sweeps up. A process that has it is given a
    /// few seconds to end.
    ///
    /// # Errors
    ///
    /// It cannot be made or read, or another process has it.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        Self::open_within(path, PATIENCE)
    }

    fn open_within(path: &Path, patience: Duration) -> Result<Self, StateDirError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateDirError::Io { path, source }
        };
        create_private_folder(path).map_err(failed(path))?;
        let lock_path = path.join("lock");
        let lock = open_lock_file(&lock_path).map_err(failed(&lock_path))?;
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StateDirError::InUse {
                        path: path.to_owned(),
                    });
                }
                Err(TryLockError::Error(source)) => return Err(failed(&lock_path)(source)),
            }
        }
        let jobs = path.join(JOBS);
        if jobs.exists() {
            // Nothing runs yet, so whatever is there belongs to what ended with its process.
            fs::remove_dir_all(&jobs).map_err(failed(&jobs))?;
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_worker_in_the_same_folder_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateDir::open(folder.path()).unwrap();
        let error = StateDir::open_within(folder.path(), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("another worker"), "{error}");
        drop(first);
        StateDir::open_within(folder.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_worker_that_is_just_ending_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateDir::open(folder.path()).unwrap();
        let path = folder.path().to_owned();
        let second =
            std::thread::spawn(move || StateDir::open_within(&path, Duration::from_secs(60)));
        drop(first);
        second.join().unwrap().unwrap();
    }

    #[test]
    fn what_a_crashed_job_left_is_swept_up() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("jobs/job-1/output");
        fs::create_dir_all(&left).unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        assert!(!left.exists());
        assert!(state.path().exists());
    }
}
