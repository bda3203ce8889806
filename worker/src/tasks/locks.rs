//! Locks by name: two tasks that want the same file do not fetch it at the same time into the same place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks of places on disk. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PlaceLocks(Arc<Mutex<HashMap<PathBuf, Weak<AsyncMutex<()>>>>>);

impl PlaceLocks {
    /// Waits for the lock of `place`; whoever came first has it first.
    pub(super) async fn lock(&self, place: &Path) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(place).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                locks.insert(place.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[actix_rt::test]
    async fn one_at_a_time_has_a_place_and_other_places_are_free() {
        let locks = PlaceLocks::default();
        let first = locks.lock(Path::new("a")).await;
        assert!(locks.lock(Path::new("a")).now_or_never().is_none());
        assert!(locks.lock(Path::new("b")).now_or_never().is_some());
        drop(first);
        assert!(locks.lock(Path::new("a")).now_or_never().is_some());
    }
}
