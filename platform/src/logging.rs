//! Owns what is logged and how. Crates of others never log below `info`: their debug lines may hold headers
//! and queries, and with them secrets.

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, LogFormat};

/// Starts logging to standard error. Where logging has been started already, that stays.
pub fn init(config: &Config) {
    let lines = fmt::layer::<Registry>().with_writer(std::io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // The directives were checked when the settings were read.
    let filter = EnvFilter::new(&config.log).and(filter_fn(may_be_logged));
    if tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .is_err()
    {
        tracing::debug!("logging had been started before");
    }
}

fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || metadata.target().starts_with("trainyard")
}
