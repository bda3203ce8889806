//! What tests across processes share: the real binaries started on free ports, a REST client, raw sockets, a model.
//!
//! The binaries are looked for beside the test executable (`cargo build --workspace --bins` makes them), so that
//! `cargo test --workspace` tests what was just built.

pub mod client;
pub mod dataset;
pub mod faulty_worker;
pub mod judge;
pub mod model;
pub mod platform;
pub mod process;
pub mod proxy;
pub mod reference_coordinator;
pub mod scripted_worker;
pub mod seeded;
pub mod small_disk;
pub mod socket;
pub mod terminal;
pub mod wire;
pub mod worker;
pub mod yard;

pub use client::{Answer, Client};
pub use model::TinyModel;
pub use platform::Platform;
pub use reference_coordinator::ReferenceCoordinator;
pub use scripted_worker::ScriptedWorker;
pub use seeded::Seeded;
pub use socket::Socket;
pub use wire::Wire;
pub use worker::Worker;

use std::future::Future;
use std::time::Duration;

/// How long a test waits for anything before it calls it missing. Far above what is needed: machines can be busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Asks again and again until `ask` answers with a value, for states that can only be polled.
///
/// # Panics
///
/// When [`DEADLINE`] has passed; `what` says what was waited for.
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < end,
            "waited {DEADLINE:?} in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
