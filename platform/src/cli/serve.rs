//! `trainyard serve`: runs the platform until it is told to end.

use clap::Args;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use trainyard_platform::config::Config;
use trainyard_platform::{logging, server};

use super::error::CliError;
use super::output::remark;
use super::settings::PlatformSettings;

/// Options of `serve`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    settings: PlatformSettings,
}

/// Serves until SIGINT or SIGTERM.
pub fn run(options: Options) -> Result<ExitCode, CliError> {
    let config = options.settings.resolve()?;
    logging::init(&config);
    actix_web::rt::System::new().block_on(serve(config))
}

async fn serve(config: Config) -> Result<ExitCode, CliError> {
    let listen = |kind| signal(kind).map_err(|source| CliError::io("signals", source));
    let (mut interrupt, mut terminate) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    let running = server::start(config)
        .await
        .map_err(|error| CliError::Input(error.to_string()))?;
    if let Some(admin) = &running.first_admin {
        let password = match &admin.generated_password {
            Some(password) => format!("  password  {} (shown this once)", password.expose()),
            None => "  password  that of the settings".to_owned(),
        };
        remark(&format!(
            "made the first administrator\n  e-mail    {}\n{password}",
            admin.email
        ));
    }
    remark(&format!(
        "listening on {}://{}; people and workers reach it at {}",
        running.scheme, running.address, running.public_url
    ));
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    remark("stopping; the same signal again ends at once");
    tokio::select! {
        () = running.stop() => Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => Ok(ExitCode::FAILURE),
        _ = terminate.recv() => Ok(ExitCode::FAILURE),
    }
}
