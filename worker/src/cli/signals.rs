//! Ctrl-C and its like: the first asks for an orderly end, the second ends at once.

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
