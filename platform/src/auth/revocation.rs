//! Owns the news that a credential is void, for open sockets that were opened with it.

use tokio::sync::broadcast;

/// Revocations that a slow listener may be behind before it misses some.
const BACKLOG: usize = 256;

/// A credential that is no longer valid, or whose rights have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revocation {
    /// All that a user holds: deleted, or its role changed.
    User(i64),
    /// One signed-in session.
    Session(i64),
    /// One API token.
    ApiToken(i64),
}

/// Tells everyone who listens. A listener that has missed some must look its credential up again.
#[derive(Debug, Clone)]
pub struct Revocations {
    sender: broadcast::Sender<Revocation>,
}

impl Default for Revocations {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(BACKLOG),
        }
    }
}

impl Revocations {
    /// To be called once the change is committed.
    pub fn publish(&self, revocation: Revocation) {
        // An error only says that nobody listens.
        let _ = self.sender.send(revocation);
    }

    /// Everything that is revoked from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Revocation> {
        self.sender.subscribe()
    }
}
