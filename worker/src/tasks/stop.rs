//! How a running task is told to end: one signal with one reason, seen by futures and by the engine's thread.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Why a task is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The platform asked for it.
    Requested,
    /// A newer attempt at the same job takes its place; nobody waits for the older one's end.
    Superseded,
    /// The worker shuts down.
    Shutdown,
}

/// The signal. Clones share it; the first reason holds.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<StopReason>>,
}

impl StopSignal {
    /// Tells the task to end. Repeats change nothing.
    pub fn stop(&self, reason: StopReason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// Why the task is to end, if it is.
    pub fn reason(&self) -> Option<StopReason> {
        self.reason.get().copied()
    }

    /// Whether the task is to end.
    pub fn is_set(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Ends with the reason once there is one.
    pub async fn stopped(&self) -> StopReason {
        self.token.cancelled().await;
        self.reason().unwrap_or(StopReason::Requested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix_rt::test]
    async fn the_first_reason_holds_and_every_clone_sees_it() {
        let signal = StopSignal::default();
        let clone = signal.clone();
        assert!(!clone.is_set());
        signal.stop(StopReason::Shutdown);
        signal.stop(StopReason::Requested);
        assert_eq!(clone.stopped().await, StopReason::Shutdown);
        assert!(clone.is_set());
    }
}
