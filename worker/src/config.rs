//! Every setting of the worker: its name, unit, default and check. Environment and flags have the same names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use trainyard_shared::ids::WorkerUuid;
use trainyard_shared::{Secret, WorkerType};
use url::Url;

use crate::connection::backoff::LONGEST_DELAY;

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
    /// An enrolment key for the first time, or the worker's own key (`WORKER_KEY`).
    pub worker_key: Option<Secret>,
    /// Identity, outbox, data sets and checkpoints (`STATE_DIR`).
    pub state_dir: PathBuf,
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
            worker_key: None,
            state_dir,
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

/// How the Hugging Face hub is reached; the names are those of its own programs.
#[derive(Debug, Clone, Args)]
pub struct HubArgs {
    /// Access token of the Hugging Face hub
    #[arg(long, env = "HF_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = secret)]
    pub hf_token: Option<Secret>,
    /// Address of the Hugging Face hub or of a mirror
    #[arg(long, env = "HF_ENDPOINT", default_value = HUB_ENDPOINT, value_name = "URL")]
    pub hf_endpoint: Url,
    /// Never ask the hub
    #[arg(long, env = "HF_HUB_OFFLINE", value_parser = clap::builder::FalseyValueParser::new())]
    pub hf_hub_offline: bool,
}

impl HubArgs {
    /// Models in `models_dir`, in the hub's cache on this machine, and from the hub.
    pub fn model_settings(&self, models_dir: PathBuf) -> ModelSettings {
        ModelSettings {
            models_dir,
            hub_cache: hub_cache(),
            hub_endpoint: self.hf_endpoint.clone(),
            hub_token: self.hf_token.clone(),
            hub_offline: self.hf_hub_offline,
        }
    }
}

/// Settings of everything that needs a base model: `run`, `train`, `generate`.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// State of the worker: identity, undelivered messages, data sets, checkpoints
    /// [default: ~/.local/share/trainyard-worker]
    #[arg(long, env = "STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Base models, as folders `org/name` or files `org/name.gguf` [default: STATE_DIR/models]
    #[arg(long, env = "MODELS_DIR", value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// What trains: `auto` or `cpu`
    #[arg(long, env = "DEVICE", default_value = "auto")]
    pub device: Device,
    /// The hub.
    #[command(flatten)]
    pub hub: HubArgs,
}

impl ModelArgs {
    /// The state directory, by setting or by default.
    ///
    /// # Errors
    ///
    /// It is not set and there is no home directory to put it in.
    pub fn state_dir(&self) -> Result<PathBuf, ConfigError> {
        match &self.state_dir {
            Some(dir) => Ok(dir.clone()),
            None => std::env::home_dir()
                .filter(|home| !home.as_os_str().is_empty())
                .map(|home| home.join(".local/share/trainyard-worker"))
                .ok_or_else(|| ConfigError {
                    setting: "STATE_DIR",
                    message: "not set, and there is no home directory for its default".to_owned(),
                }),
        }
    }

    /// Where models are looked for.
    ///
    /// # Errors
    ///
    /// As [`ModelArgs::state_dir`].
    pub fn model_settings(&self) -> Result<ModelSettings, ConfigError> {
        let models_dir = match &self.models_dir {
            Some(dir) => dir.clone(),
            None => self.state_dir()?.join("models"),
        };
        Ok(self.hub.model_settings(models_dir))
    }
}

/// Settings of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Base address of the platform, as `https://yard.example.org`
    #[arg(long, env = "PLATFORM_URL", value_name = "URL")]
    pub platform_url: PlatformAddress,
    /// Enrolment key (`enroll_…`), needed the first time only
    #[arg(long, env = "WORKER_KEY", hide_env_values = true, value_name = "KEY", value_parser = secret)]
    pub worker_key: Option<Secret>,
    /// Models, state and device.
    #[command(flatten)]
    pub models: ModelArgs,
    /// Seconds between heartbeats
    #[arg(long, env = "HEARTBEAT_INTERVAL", default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    pub heartbeat_interval: Duration,
    /// Seconds between reports of the machine's load
    #[arg(long, env = "METRICS_INTERVAL", default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    pub metrics_interval: Duration,
    /// Seconds before connecting again; doubles up to 60
    #[arg(long, env = "RECONNECT_DELAY", default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    pub reconnect_delay: Duration,
    /// Work that is taken: `both`, `training` or `inference`
    #[arg(long, env = "WORKER_TYPE", default_value = "both", value_parser = worker_type)]
    pub worker_type: WorkerType,
    /// About how long the benchmark measures, in seconds.
    #[arg(long, env = "BENCHMARK_SECONDS", default_value = "6", hide = true, value_parser = seconds)]
    pub benchmark_seconds: Duration,
}

impl RunArgs {
    /// The settings of a running worker.
    ///
    /// # Errors
    ///
    /// As [`ModelArgs::state_dir`].
    pub fn into_config(self) -> Result<WorkerConfig, ConfigError> {
        let state_dir = self.models.state_dir()?;
        Ok(WorkerConfig {
            models: self.models.model_settings()?,
            platform: self.platform_url,
            worker_key: self.worker_key,
            state_dir,
            heartbeat_interval: self.heartbeat_interval,
            metrics_interval: self.metrics_interval,
            reconnect_delay: self.reconnect_delay,
            longest_reconnect_delay: LONGEST_DELAY,
            device: self.models.device,
            worker_type: self.worker_type,
            link: LinkTimeouts::default(),
            shutdown_grace: Duration::from_secs(60),
            benchmark_budget: self.benchmark_seconds,
        })
    }
}

/// The hub's cache by the rules of its own programs: `HF_HUB_CACHE`, `HF_HOME/hub`, `~/.cache/huggingface/hub`.
fn hub_cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("HF_HUB_CACHE")
        .map(PathBuf::from)
        .or_else(|| set("HF_HOME").map(|home| PathBuf::from(home).join("hub")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface/hub")))
}

fn secret(text: &str) -> Result<Secret, String> {
    match text.trim() {
        "" => Err("empty".to_owned()),
        key => Ok(Secret::from(key)),
    }
}

/// A duration in seconds, above zero; fractions are allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "a number of seconds is expected".to_owned())?;
    if number > 0.0 && number <= 86_400.0 {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("more than 0 and at most 86,400 seconds are expected".to_owned())
    }
}

fn worker_type(text: &str) -> Result<WorkerType, String> {
    WorkerType::from_word(text)
        .ok_or_else(|| "expected `both`, `training` or `inference`".to_owned())
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
    fn durations_are_seconds_with_fractions() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(seconds("0").is_err());
        assert!(seconds("-1").is_err());
        assert!(seconds("NaN").is_err());
        assert!(seconds("5s").is_err());
    }

    #[test]
    fn a_gpu_is_refused_with_what_to_use_instead() {
        assert!("cuda:0".parse::<Device>().unwrap_err().contains("CPU only"));
    }
}
