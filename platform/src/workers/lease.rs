//! What a session holds for its connection: the right to be heard as long as no newer one has taken over,
//! and the place where it notes each sign of life. Both are shared with the supervisor without a message, so
//! that no full mailbox can make a worker look silent, and a replaced connection is unheard at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trainyard_shared::ids::WorkerId;

use super::event::Generation;
use crate::clock::Moment;

/// What all connections of one worker share.
#[derive(Debug, Default)]
pub struct Presence {
    /// The generation that counts; 0 for none.
    current: AtomicU64,
    /// When the current connection was last heard, in milliseconds since the platform's start.
    heard_at: AtomicU64,
}

impl Presence {
    /// From now on this generation counts, or none.
    pub fn set_current(&self, generation: Option<Generation>) {
        let number = generation.map_or(0, |generation| generation.0);
        self.current.store(number, Ordering::Release);
    }

    /// When the worker was last heard.
    pub fn heard_at(&self) -> Moment {
        Moment::from_millis(self.heard_at.load(Ordering::Acquire))
    }
}

/// One connection's right to speak for its worker.
#[derive(Debug, Clone)]
pub struct Lease {
    worker: WorkerId,
    generation: Generation,
    presence: Arc<Presence>,
}

impl Lease {
    /// The lease of that generation.
    pub fn new(worker: WorkerId, generation: Generation, presence: Arc<Presence>) -> Self {
        Self {
            worker,
            generation,
            presence,
        }
    }

    /// Whose it is.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Which connection.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether what this connection says still counts.
    pub fn is_current(&self) -> bool {
        self.presence.current.load(Ordering::Acquire) == self.generation.0
    }

    /// Notes a sign of life.
    pub fn heard(&self, now: Moment) {
        if self.is_current() {
            let at = now.as_millis();
            self.presence.heard_at.fetch_max(at, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g001_a_replaced_connection_is_unheard_at_once() {
        let presence = Arc::new(Presence::default());
        let lease = |number| Lease::new(WorkerId(1), Generation(number), presence.clone());
        presence.set_current(Some(Generation(1)));
        lease(1).heard(Moment::from_millis(10));
        presence.set_current(Some(Generation(2)));
        lease(1).heard(Moment::from_millis(20));
        assert!(!lease(1).is_current() && lease(2).is_current());
        assert_eq!(presence.heard_at(), Moment::from_millis(10));
        presence.set_current(None);
        assert!(!lease(2).is_current());
    }
}
