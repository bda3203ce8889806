//! Every setting of the worker: its meaning, unit, default and check.

mod args;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use trainyard_shared::ids::WorkerUuid;
use trainyard_shared::{Secret, WorkerType};
use url::Url;

use crate::connection::backoff::LONGEST_DELAY;
use crate::engine::data::DEFAULT_CACHE_BYTES;

pub use args::{FormatArgs, HubArgs, ModelArgs, RunArgs, hub_cache};
pub(crate) use args::{seconds, secret};

/// A setting that cannot be used, named as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {message}")]
pub struct ConfigError {
    /// The setting's name.
    pub setting: &'static str,
    /// What is wrong with it.
    pub message: String,
}

/// What a running worker needs to know. [`WorkerConfig::new`] has every default.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Where the platform is (`PLATFORM_URL`).
    pub platform: PlatformAddress,
    /// PEM file of authorities that are trusted beside the machine's own (`PLATFORM_CA_FILE`).
    pub platform_ca_file: Option<PathBuf>,
    /// An enrolment key for the first time, or the worker's own key (`WORKER_KEY`).
    pub worker_key: Option<Secret>,
    /// Identity, outbox, data sets and checkpoints (`STATE_DIR`).
    pub state_dir: PathBuf,
    /// Bytes that tokenised data sets may take up in it (`TOKEN_CACHE_BYTES`).
    pub token_cache_bytes: u64,
    /// Where base models are looked for and put.
    pub models: ModelSettings,
    /// How often `heartbeat` is sent (`HEARTBEAT_INTERVAL`).
    pub heartbeat_interval: Duration,
    /// How often `worker_metrics` is sent (`METRICS_INTERVAL`).
    pub metrics_interval: Duration,
    /// First delay before connecting again (`RECONNECT_DELAY`); it doubles.
    pub reconnect_delay: Duration,
    /// Where that doubling ends.
    pub longest_reconnect_delay: Duration,
    /// What trains (`DEVICE`).
    pub device: Device,
    /// Which kinds of work the worker takes (`WORKER_TYPE`).
    pub worker_type: WorkerType,
    /// When a link that says nothing is given up.
    pub link: LinkTimeouts,
    /// How long a shutdown waits for the running job's checkpoint and its delivery.
    pub shutdown_grace: Duration,
    /// About how long the benchmark measures, when there is no cached one.
    pub benchmark_budget: Duration,
}

/// Limits on waiting for the other side of the connection.
#[derive(Debug, Clone, Copy)]
pub struct LinkTimeouts {
    /// For the TCP connection, TLS and the WebSocket upgrade, each.
    pub connect: Duration,
    /// From `authenticate` to `authenticated` or `auth_failed`.
    pub authenticate: Duration,
    /// After this long without a byte from the platform the worker pings at the WebSocket level.
    pub ping_after: Duration,
    /// After this long without a byte from the platform the link counts as dead.
    pub dead_after: Duration,
    /// For one frame to be taken by the network.
    pub write: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            authenticate: Duration::from_secs(20),
            ping_after: Duration::from_secs(20),
            dead_after: Duration::from_secs(60),
            write: Duration::from_secs(30),
        }
    }
}

impl WorkerConfig {
    /// A worker of the platform at `platform_url` that keeps its state in `state_dir`; all else has its default.
    ///
    /// # Errors
    ///
    /// `platform_url` is no http(s) base address.
    pub fn new(platform_url: &str, state_dir: PathBuf) -> Result<Self, ConfigError> {
        let models = ModelSettings::new(state_dir.join("models"));
        Ok(Self {
            platform: platform_url.parse()?,
            platform_ca_file: None,
            worker_key: None,
            state_dir,
            token_cache_bytes: DEFAULT_CACHE_BYTES,
            models,
            heartbeat_interval: Duration::from_secs(30),
            metrics_interval: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(5),
            longest_reconnect_delay: LONGEST_DELAY,
            device: Device::Auto,
            worker_type: WorkerType::Both,
            link: LinkTimeouts::default(),
            shutdown_grace: Duration::from_secs(60),
            benchmark_budget: Duration::from_secs(6),
        })
    }
}

/// The platform's base address and the addresses below it.
#[derive(Clone, PartialEq, Eq)]
pub struct PlatformAddress {
    base: Url,
}

impl PlatformAddress {
    /// The address of `path` (without a leading slash) over HTTP.
    pub fn http(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path()));
        url
    }

    /// The worker's socket: `ws(s)://…/ws/worker?worker_uuid=…`.
    pub fn worker_socket(&self, worker: WorkerUuid) -> Url {
        let mut url = self.http("ws/worker");
        let scheme = if self.is_encrypted() { "wss" } else { "ws" };
        url.set_scheme(scheme)
            .expect("http and ws are both special schemes, so one can become the other");
        url.set_query(Some(&format!("worker_uuid={worker}")));
        url
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.base.scheme() == "https"
    }

    /// Whether the platform runs on this machine.
    pub fn is_loopback(&self) -> bool {
        match self.base.host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }
}

impl FromStr for PlatformAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |message: String| ConfigError {
            setting: "PLATFORM_URL",
            message,
        };
        let mut base = Url::parse(text.trim())
            .map_err(|error| wrong(format!("{error}; write it like https://yard.example.org")))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(wrong(format!(
                "http:// or https:// is expected, not {}://",
                base.scheme()
            )));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("a base address has neither ? nor #".to_owned()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("no user name or password belongs here".to_owned()));
        }
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        Ok(Self { base })
    }
}

impl fmt::Display for PlatformAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for PlatformAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The best that is there.
    Auto,
    /// The processor.
    Cpu,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            cuda if cuda.starts_with("cuda") => Err(
                "this version of the worker trains on the CPU only: use `auto` or `cpu`".to_owned(),
            ),
            _ => Err("expected `auto` or `cpu`".to_owned()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpu")
    }
}

/// Where base models are looked for and put, and how the hub is reached.
#[derive(Debug, Clone)]
pub struct ModelSettings {
    /// `MODELS_DIR`: holds `org/name` folders and `org/name.gguf` files; downloads go there.
    pub models_dir: PathBuf,
    /// The hub's own cache on this machine, as other programs fill it.
    pub hub_cache: Option<PathBuf>,
    /// `HF_ENDPOINT`
    pub hub_endpoint: Url,
    /// `HF_TOKEN`
    pub hub_token: Option<Secret>,
    /// `HF_HUB_OFFLINE`: the hub is not asked.
    pub hub_offline: bool,
}

/// Where the hub is when `HF_ENDPOINT` says nothing.
const HUB_ENDPOINT: &str = "https://huggingface.co";

impl ModelSettings {
    /// Models in `models_dir` and, where it has none, from the public hub.
    pub fn new(models_dir: PathBuf) -> Self {
        Self {
            models_dir,
            hub_cache: None,
            hub_endpoint: Url::parse(HUB_ENDPOINT).expect("a constant address"),
            hub_token: None,
            hub_offline: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(base: &str) -> String {
        let worker = "abc12345-6789-4abc-8def-0123456789ab".parse().unwrap();
        let platform: PlatformAddress = base.parse().unwrap();
        platform.worker_socket(worker).to_string()
    }

    #[test]
    fn the_socket_address_is_derived_from_the_base_and_keeps_its_path() {
        let query = "worker_uuid=abc12345-6789-4abc-8def-0123456789ab";
        assert_eq!(
            socket("https://yard.example.org"),
            format!("wss://yard.example.org/ws/worker?{query}")
        );
        assert_eq!(
            socket("http://127.0.0.1:8080/"),
            format!("ws://127.0.0.1:8080/ws/worker?{query}")
        );
        assert_eq!(
            socket("https://example.org/yard"),
            format!("wss://example.org/yard/ws/worker?{query}")
        );
    }

    #[test]
    fn http_addresses_keep_the_base_path() {
        let platform: PlatformAddress = "https://example.org/yard/".parse().unwrap();
        assert_eq!(
            platform.http("api/worker/uploads").as_str(),
            "https://example.org/yard/api/worker/uploads"
        );
        assert_eq!(platform.to_string(), "https://example.org/yard");
    }

    #[test]
    fn an_address_that_is_no_http_base_is_refused() {
        for wrong in [
            "yard.example.org",
            "ws://yard.example.org",
            "https://yard.example.org/?a=b",
            "https://user:secret@yard.example.org",
            "",
        ] {
            let error = wrong.parse::<PlatformAddress>().unwrap_err();
            assert_eq!(error.setting, "PLATFORM_URL", "{wrong}");
        }
    }

    #[test]
    fn a_gpu_is_refused_with_what_to_use_instead() {
        assert!("cuda:0".parse::<Device>().unwrap_err().contains("CPU only"));
    }
}
