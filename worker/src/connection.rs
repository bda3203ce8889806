//! The connection to the platform: who the worker is, what it still has to deliver, when it tries again.

pub mod backoff;
pub mod identity;
pub mod outbox;
