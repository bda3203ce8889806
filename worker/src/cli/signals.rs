//! Ctrl-C and its like: the first asks for an orderly end, the second ends at once.

use std::thread;

use super::error::CliError;
use crate::tasks::{StopReason, StopSignal};

/// Sets `stop` once the process is asked to end, for commands that compute on the main thread. A
/// further signal then ends the process at once.
pub fn stop_when_asked_to_end(stop: &StopSignal) -> Result<(), CliError> {
    let stop = stop.clone();
    let waiting = move || {
        actix_rt::System::new().block_on(async {
            one_signal().await;
            stop.stop(StopReason::Requested);
            one_signal().await;
            std::process::exit(130);
        });
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(waiting)
        .map_err(|source| CliError::io("a thread that waits for signals", source))?;
    Ok(())
}

/// Ends once the process is asked to end. A further signal then ends the process at once.
pub async fn asked_to_end() {
    one_signal().await;
    tracing::info!("asked to end; once more ends at once");
    // The task ends with the process.
    actix_rt::spawn(async {
        one_signal().await;
        std::process::exit(130);
    });
}

#[cfg(unix)]
async fn one_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        // Without a handler the system's own way of ending the process stays.
        Err(error) => {
            tracing::warn!(%error, "signals cannot be waited for");
            std::future::pending().await
        }
    }
}

#[cfg(not(unix))]
async fn one_signal() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::warn!(%error, "ctrl-c cannot be waited for");
        std::future::pending::<()>().await;
    }
}
