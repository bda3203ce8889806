//! Files over HTTP: checked by length and SHA-256, resumed, tried again on faults that pass, never on those that stay.
//!
//! Addresses are signed and count as secrets: messages name a file by its key, never by its address.

mod download;
mod json;
mod retry;
mod room;
mod upload;

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::StatusCode;

pub use download::Download;
pub use retry::RetryPolicy;
pub(crate) use retry::{passes, retry_after};
pub(crate) use room::check_room;
pub(crate) use upload::FileBody;
pub use upload::{Grant, Upload};

use crate::http_proxy::with_proxies;

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The server's answer is final.
    #[error("{name}: {answer}")]
    Refused {
        /// The file.
        name: String,
        /// The status.
        status: StatusCode,
        /// Status and what the server says.
        answer: String,
    },
    /// The fault may pass, but it lasted longer than all tries.
    #[error("{name}: given up after {tries} tries: {last}")]
    GivenUp {
        /// The file.
        name: String,
        /// Tries since the last progress.
        tries: u32,
        /// The last fault.
        last: String,
    },
    /// What came is not what was announced.
    #[error("{name}: {message}")]
    WrongContent {
        /// The file.
        name: String,
        /// What differs.
        message: String,
    },
    /// The disk is full.
    #[error("the disk is full: {}", path.display())]
    DiskFull {
        /// What could not be written.
        path: PathBuf,
    },
    /// There is too little room on the disk; nothing of it was begun, or it was broken off before the disk was full.
    #[error(
        "{name}: the disk is too full: {} KiB are needed and {} KiB are free, of which {} KiB stay free",
        needed_bytes.div_ceil(1 << 10), free_bytes >> 10, kept_bytes.div_ceil(1 << 10)
    )]
    NoRoom {
        /// The file.
        name: String,
        /// Bytes that it needs, as far as they are known.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that are to stay free.
        kept_bytes: u64,
    },
    /// A local file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl TransferError {
    /// A fault of the local file system; a full disk is told apart.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                path: path.to_owned(),
            },
            _ => Self::Io {
                action,
                path: path.to_owned(),
                source,
            },
        }
    }

    /// Whether the same transfer may succeed later without anything being changed.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::GivenUp { .. })
    }

    /// Whether it is the disk that has no room.
    pub fn is_about_room(&self) -> bool {
        matches!(self, Self::DiskFull { .. } | Self::NoRoom { .. })
    }
}

/// The worker's HTTP clients, with how they try again.
#[derive(Debug, Clone)]
pub struct Http {
    client: reqwest::Client,
    /// Without a limit on the wait for an answer, which comes only after the whole body.
    uploads: reqwest::Client,
    retry: RetryPolicy,
    /// Bytes of the disk that downloads leave free.
    kept_bytes: u64,
}

/// A transfer is given up for now when nothing moves for this long.
const STALL: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(15);

impl Http {
    /// A client for everything that the worker fetches and stores.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub fn new(retry: RetryPolicy) -> Result<Self, reqwest::Error> {
        Self::trusting(retry, &crate::tls::client_config())
    }

    /// The same with that TLS configuration.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub(crate) fn trusting(
        retry: RetryPolicy,
        tls: &rustls::ClientConfig,
    ) -> Result<Self, reqwest::Error> {
        Self::built(retry, tls, |builder| builder)
    }

    /// The same with what `adapt` makes of the clients' settings.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub(crate) fn built(
        retry: RetryPolicy,
        tls: &rustls::ClientConfig,
        adapt: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, reqwest::Error> {
        let builder = || {
            let builder = with_proxies(reqwest::Client::builder())
                .tls_backend_preconfigured(tls.clone())
                .user_agent(concat!("trainyard-worker/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT)
                .tcp_nodelay(true);
            adapt(builder)
        };
        Ok(Self {
            client: builder().read_timeout(STALL).build()?,
            uploads: builder().build()?,
            retry,
            kept_bytes: 0,
        })
    }

    /// The same, but that downloads leave so many bytes of the disk free.
    pub(crate) fn keeping_free(self, kept_bytes: u64) -> Self {
        Self { kept_bytes, ..self }
    }

    /// The client itself, for small requests.
    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// The client for bodies whose sending may take long.
    pub(crate) fn uploads(&self) -> &reqwest::Client {
        &self.uploads
    }

    /// How it tries again.
    pub(crate) fn retry(&self) -> &RetryPolicy {
        &self.retry
    }
}

/// An error of the HTTP client in one line, without the address.
pub(crate) fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

/// Status and the beginning of the body of an answer that is no success.
pub(crate) async fn describe_answer(response: reqwest::Response) -> String {
    let status = response.status();
    match error_text(response).await {
        Some(text) => format!("{status}: {text}"),
        None => status.to_string(),
    }
}

/// Bytes of an error answer that are looked at.
const ERROR_BODY_BYTES: usize = 4096;

/// What an error answer says: the message of our own platform's errors, of the hub's and of coordinators', else plain
/// text.
async fn error_text(mut response: reqwest::Response) -> Option<String> {
    let mut body = Vec::new();
    while body.len() < ERROR_BODY_BYTES {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) | Err(_) => break,
        }
    }
    body.truncate(ERROR_BODY_BYTES);
    let text = String::from_utf8_lossy(&body);
    let from_json = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|json| {
            let error = json.get("error").or_else(|| json.get("hata"))?;
            let message = error.get("message").unwrap_or(error);
            message.as_str().map(str::to_owned)
        });
    let plain = || {
        let line = text.trim();
        let readable = !line.is_empty() && !line.starts_with('<') && line.len() <= 300;
        readable.then(|| line.replace(['\r', '\n'], " "))
    };
    // It may come from a stranger, and is shown at a terminal.
    let text = from_json.or_else(plain)?;
    Some(text.replace(char::is_control, " "))
}

#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;
