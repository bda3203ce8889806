//! Settings as the command line and the environment give them, under the same names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::{Secret, WorkerType};
use url::Url;

use super::{
    ConfigError, Device, HUB_ENDPOINT, LinkTimeouts, ModelSettings, PlatformAddress, WorkerConfig,
};
use crate::connection::backoff::LONGEST_DELAY;
use crate::engine::data::{DEFAULT_CACHE_BYTES, DataFile, TokenCache};
use crate::tasks::TOKENS;

/// Settings of everything that needs a base model: `run`, `train`, `generate`.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// State of the worker: identity, undelivered messages, data sets, checkpoints
    /// [default: ~/.local/share/trainyard-worker]
    #[arg(long, env = "STATE_DIR", value_name = "DIR", value_parser = path())]
    pub state_dir: Option<PathBuf>,
    /// Base models, as folders `org/name` or files `org/name.gguf` [default: STATE_DIR/models]
    #[arg(long, env = "MODELS_DIR", value_name = "DIR", value_parser = path())]
    pub models_dir: Option<PathBuf>,
    /// Bytes that tokenised data sets may take up in STATE_DIR/tokens; the least recently used are deleted
    #[arg(long, env = "TOKEN_CACHE_BYTES", default_value_t = DEFAULT_CACHE_BYTES, value_name = "BYTES")]
    pub token_cache_bytes: u64,
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
        match set_path(&self.state_dir) {
            Some(dir) => Ok(dir),
            None => std::env::home_dir()
                .filter(|home| !home.as_os_str().is_empty())
                .map(|home| home.join(".local/share/trainyard-worker"))
                .ok_or_else(|| ConfigError {
                    setting: "STATE_DIR",
                    message: "not set, and there is no home directory for its default".to_owned(),
                }),
        }
    }

    /// Where tokenised data sets are kept.
    ///
    /// # Errors
    ///
    /// As [`ModelArgs::state_dir`].
    pub fn token_cache(&self) -> Result<TokenCache, ConfigError> {
        let folder = self.state_dir()?.join(TOKENS);
        Ok(TokenCache::new(folder).with_limit(self.token_cache_bytes))
    }

    /// Where models are looked for.
    ///
    /// # Errors
    ///
    /// As [`ModelArgs::state_dir`].
    pub fn model_settings(&self) -> Result<ModelSettings, ConfigError> {
        let models_dir = match set_path(&self.models_dir) {
            Some(dir) => dir,
            None => self.state_dir()?.join("models"),
        };
        Ok(self.hub.model_settings(models_dir))
    }
}

/// Format of a data set's file.
#[derive(Debug, Clone, Args)]
pub struct FormatArgs {
    /// The file's format: jsonl, json, csv, tsv, parquet or text [default: by the end of its name, else jsonl]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<DatasetFormat>,
}

impl FormatArgs {
    /// The data set in a file.
    pub fn data_file(&self, path: &Path) -> DataFile {
        let mut file = DataFile::by_name(path);
        file.format = self.format.unwrap_or(file.format);
        file
    }
}

/// How the Hugging Face hub is reached; the names are those of its own programs.
#[derive(Debug, Clone, Args)]
pub struct HubArgs {
    /// Access token of the Hugging Face hub
    #[arg(long, env = "HF_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = secret)]
    pub hf_token: Option<Secret>,
    /// Address of the Hugging Face hub or of a mirror
    #[arg(long, env = "HF_ENDPOINT", default_value = HUB_ENDPOINT, value_name = "URL", value_parser = hub_endpoint)]
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
            hub_token: set(&self.hf_token),
            hub_offline: self.hf_hub_offline,
        }
    }
}

/// Settings of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Base address of the platform, as `https://yard.example.org`; needed
    #[arg(long, env = "PLATFORM_URL", value_name = "URL")]
    pub platform_url: Option<PlatformAddress>,
    /// PEM file with the certificate of the authority that signed the platform's, where it is a private one
    #[arg(long, env = "PLATFORM_CA_FILE", value_name = "FILE", value_parser = path())]
    pub platform_ca_file: Option<PathBuf>,
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
    /// As [`ModelArgs::state_dir`]; or it is not set where the platform is.
    pub fn into_config(self) -> Result<WorkerConfig, ConfigError> {
        let platform = self.platform_url.clone().ok_or_else(|| ConfigError {
            setting: "PLATFORM_URL",
            message:
                "not set: give the platform's address, as --platform-url https://yard.example.org"
                    .to_owned(),
        })?;
        let state_dir = self.models.state_dir()?;
        Ok(WorkerConfig {
            models: self.models.model_settings()?,
            platform,
            platform_ca_file: set_path(&self.platform_ca_file),
            worker_key: set(&self.worker_key),
            state_dir,
            token_cache_bytes: self.models.token_cache_bytes,
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
pub fn hub_cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("HF_HUB_CACHE")
        .map(PathBuf::from)
        .or_else(|| set("HF_HOME").map(|home| PathBuf::from(home).join("hub")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface/hub")))
}

fn hub_endpoint(text: &str) -> Result<Url, String> {
    let text = if text.trim().is_empty() {
        HUB_ENDPOINT
    } else {
        text
    };
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(_) => Err("http:// or https:// is expected".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::from(text.trim()))
}

/// A setting that is set to nothing (as compose files do) is not set.
fn set(secret: &Option<Secret>) -> Option<Secret> {
    secret.clone().filter(|secret| !secret.expose().is_empty())
}

/// A path that may be empty, unlike clap's own.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn set_path(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.clone().filter(|path| !path.as_os_str().is_empty())
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

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn settings_that_are_set_to_nothing_have_their_defaults() {
        use clap::Parser;
        let command = Command::try_parse_from([
            "run",
            "--platform-url=https://yard.example.org",
            "--worker-key=",
            "--hf-token=",
            "--hf-endpoint=",
            "--state-dir=/state",
            "--models-dir=",
        ])
        .unwrap();
        let config = command.run.into_config().unwrap();
        assert_eq!((config.worker_key, config.models.hub_token), (None, None));
        assert_eq!(config.models.models_dir, PathBuf::from("/state/models"));
        assert_eq!(
            config.models.hub_endpoint.as_str(),
            "https://huggingface.co/"
        );
    }

    #[test]
    fn without_a_platform_one_is_told_how_to_name_it() {
        use clap::Parser;
        let command = Command::try_parse_from(["run", "--state-dir=/state"]).unwrap();
        let told = command.run.into_config().unwrap_err().to_string();
        assert!(told.starts_with("PLATFORM_URL: not set"), "{told}");
        assert!(told.contains("--platform-url"), "{told}");
    }

    #[test]
    fn durations_are_seconds_with_fractions() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(seconds("0").is_err());
        assert!(seconds("-1").is_err());
        assert!(seconds("NaN").is_err());
        assert!(seconds("5s").is_err());
    }
}
