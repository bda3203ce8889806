//! Owns every setting of the platform: name, unit, default, check, and where its value came from.
//!
//! A value is taken from a command-line flag, else the environment, else the TOML file (same names in lower
//! case), else the default. An empty value counts as absent.

mod sources;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use trainyard_shared::Secret;
use trainyard_worker::config::{ModelSettings, hub_cache};
use url::Url;

pub use sources::{Source, Sources};
pub use table::{SETTINGS, Setting};

use crate::database::sqlite_path;
use crate::tls::TlsFiles;
use sources::Resolver;

/// What is shown in place of a secret.
const REDACTED: &str = "(secret)";

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// The platform's settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on; port 0 takes a free one.
    pub bind: SocketAddr,
    /// The address under which workers and people reach the platform; `None`: the one that is bound.
    pub public_url: Option<Url>,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// The SQLite file.
    pub database_path: PathBuf,
    /// The root of the local object store.
    pub storage_root: PathBuf,
    /// Signs URLs and CSRF tokens; `None`: made and kept in `data_dir`.
    pub secret_key: Option<Secret>,
    /// E-mail of the first administrator.
    pub admin_email: String,
    /// Password of the first administrator; `None`: a random one.
    pub admin_password: Option<Secret>,
    /// How often workers are expected to send a heartbeat.
    pub heartbeat_interval: Duration,
    /// Silence after which a worker is pinged and then given up.
    pub worker_heartbeat_timeout: Duration,
    /// How often all workers are looked at.
    pub worker_check_interval: Duration,
    /// How long the double-check waits for a `pong`.
    pub worker_ping_grace: Duration,
    /// How long an assigned job may take to start.
    pub job_start_timeout: Duration,
    /// How long a stopping job may take to stop.
    pub stop_grace: Duration,
    /// How long an inference request may wait for a worker.
    pub inference_queue_timeout: Duration,
    /// How long a worker may be silent about an inference request.
    pub inference_timeout: Duration,
    /// How far a volunteer's upload may lag behind its slowest pace.
    pub result_upload_grace: Duration,
    /// Where base models come from.
    pub models: ModelSettings,
    /// Largest text frame on a WebSocket.
    pub max_frame_bytes: usize,
    /// Largest uploaded file.
    pub max_upload_bytes: u64,
    /// What is logged: a level or `tracing` directives.
    pub log: String,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// A proxy in front ends TLS and sets `X-Forwarded-For`.
    pub trust_proxy: bool,
    /// Certificate and key; `None`: no TLS of the platform's own.
    pub tls: Option<TlsFiles>,
    settings: Vec<ShownSetting>,
}

/// A setting as `trainyard config` prints it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ShownSetting {
    /// Name as in the environment.
    pub name: &'static str,
    /// The value in force; `None` where there is none; never a secret.
    pub value: Option<String>,
    /// Where the value came from.
    pub source: Source,
    /// Unit of the value; empty for text.
    pub unit: &'static str,
    /// What it is for.
    pub about: &'static str,
}

/// Why the settings cannot be used: every problem at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError {
    /// One entry per setting that is not valid.
    pub problems: Vec<SettingProblem>,
}

/// One setting that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({source_of_value}): {message}")]
pub struct SettingProblem {
    /// Name of the setting.
    pub name: String,
    /// Where the value came from.
    pub source_of_value: Source,
    /// What is wrong with it. Never repeats a secret.
    pub message: String,
}

impl Config {
    /// Resolves and checks all settings.
    ///
    /// # Errors
    /// Lists every setting that is not valid, with where it came from.
    pub fn resolve(sources: &Sources) -> Result<Self, ConfigError> {
        let mut resolver = Resolver::new(sources);
        let data_dir: PathBuf = resolver.required("DATA_DIR", |text| Ok(PathBuf::from(text)));
        let database = resolver.optional("DATABASE_URL", sqlite_path);
        let storage = resolver.optional("STORAGE_URL", storage_path);
        resolver.optional("NATS_URL", |_| -> Result<(), String> {
            Err("is not supported by this version; leave it out".to_owned())
        });
        let tls = tls_files(&mut resolver);
        let public_url = resolver.optional("PUBLIC_URL", |text| {
            http_base(text).and_then(|url| match (&tls, url.scheme()) {
                (Some(_), "http") => {
                    Err("is http, but TLS_CERT is set: write https://…".to_owned())
                }
                _ => Ok(url),
            })
        });
        let models = model_settings(&mut resolver, &data_dir);
        let (heartbeat_interval, worker_heartbeat_timeout) = heartbeats(&mut resolver);
        let database_path = database.unwrap_or_else(|| data_dir.join("trainyard.db"));
        let storage_root = storage.unwrap_or_else(|| data_dir.join("storage"));
        let mut config = Self {
            bind: resolver.required("BIND", socket_address),
            public_url,
            secret_key: resolver.optional("SECRET_KEY", secret_of_at_least_32),
            admin_email: resolver.required("ADMIN_EMAIL", email),
            admin_password: resolver.optional("ADMIN_PASSWORD", admin_password),
            heartbeat_interval,
            worker_heartbeat_timeout,
            worker_check_interval: resolver.required("WORKER_CHECK_INTERVAL", seconds),
            worker_ping_grace: resolver.required("WORKER_PING_GRACE", seconds),
            job_start_timeout: resolver.required("JOB_START_TIMEOUT", seconds),
            stop_grace: resolver.required("STOP_GRACE", seconds),
            inference_queue_timeout: resolver.required("INFERENCE_QUEUE_TIMEOUT", seconds),
            inference_timeout: resolver.required("INFERENCE_TIMEOUT", seconds),
            result_upload_grace: resolver.required("RESULT_UPLOAD_GRACE", seconds),
            models,
            max_frame_bytes: resolver
                .required("MAX_FRAME_BYTES", |text| bytes(text, 1024, 64 << 20))
                as usize,
            max_upload_bytes: resolver.required("MAX_UPLOAD_BYTES", |text| bytes(text, 1, 1 << 50)),
            log: resolver.required("LOG", trainyard_worker::logging::directives),
            log_format: resolver.required("LOG_FORMAT", log_format),
            trust_proxy: resolver.required("TRUST_PROXY", yes_or_no),
            tls,
            data_dir,
            database_path,
            storage_root,
            settings: Vec::new(),
        };
        config.settings = resolver.finish()?;
        config.show_derived(
            "DATABASE_URL",
            format!("sqlite:{}", config.database_path.display()),
        );
        config.show_derived(
            "STORAGE_URL",
            format!("file:{}", config.storage_root.display()),
        );
        config.show_derived("MODELS_DIR", config.models.models_dir.display().to_string());
        Ok(config)
    }

    /// Every setting with its value in force, in the order of [`SETTINGS`]; secrets are redacted.
    pub fn settings(&self) -> &[ShownSetting] {
        &self.settings
    }

    /// Whether the platform listens beyond this machine without encryption and without a proxy that adds it.
    pub fn is_exposed_without_tls(&self) -> bool {
        !self.bind.ip().is_loopback() && !self.trust_proxy && self.tls.is_none()
    }

    fn show_derived(&mut self, name: &str, value: String) {
        if let Some(shown) = self.settings.iter_mut().find(|shown| shown.name == name) {
            shown.value.get_or_insert(value);
        }
    }
}

/// Models in a folder of the platform's own, in the hub's cache on this machine, and from the hub.
fn model_settings(resolver: &mut Resolver<'_>, data_dir: &Path) -> ModelSettings {
    let models_dir = resolver.optional("MODELS_DIR", |text| Ok(PathBuf::from(text)));
    ModelSettings {
        hub_token: resolver.optional("HF_TOKEN", |text| Ok(Secret::from(text))),
        hub_endpoint: resolver.required("HF_ENDPOINT", http_base),
        hub_offline: resolver.required("HF_HUB_OFFLINE", yes_or_no),
        hub_cache: hub_cache(),
        models_dir: models_dir.unwrap_or_else(|| data_dir.join("models")),
    }
}

/// How often workers send heartbeats, and the silence after which one is given up: the longer of the two.
fn heartbeats(resolver: &mut Resolver<'_>) -> (Duration, Duration) {
    let interval = resolver.required("HEARTBEAT_INTERVAL", seconds);
    let timeout = resolver.required("WORKER_HEARTBEAT_TIMEOUT", seconds);
    if timeout <= interval {
        let message = format!(
            "{} s is not above HEARTBEAT_INTERVAL ({} s): every worker would be given up between two heartbeats",
            timeout.as_secs_f64(),
            interval.as_secs_f64()
        );
        resolver.refuse(["WORKER_HEARTBEAT_TIMEOUT", "HEARTBEAT_INTERVAL"], &message);
    }
    (interval, timeout)
}

/// Both or neither.
fn tls_files(resolver: &mut Resolver<'_>) -> Option<TlsFiles> {
    let path = |text: &str| Ok::<_, String>(PathBuf::from(text));
    let (cert, key) = (
        resolver.optional("TLS_CERT", path),
        resolver.optional("TLS_KEY", path),
    );
    let (set, missing) = match (cert, key) {
        (Some(cert), Some(key)) => return Some(TlsFiles { cert, key }),
        (None, None) => return None,
        (Some(_), None) => ("TLS_CERT", "TLS_KEY"),
        (None, Some(_)) => ("TLS_KEY", "TLS_CERT"),
    };
    resolver.optional(set, |_| -> Result<(), String> {
        Err(format!("needs {missing} beside it"))
    });
    None
}

fn storage_path(url: &str) -> Result<PathBuf, String> {
    match url
        .strip_prefix("file://")
        .or_else(|| url.strip_prefix("file:"))
    {
        Some("") => Err("names no folder".to_owned()),
        Some(path) => Ok(PathBuf::from(path)),
        None => {
            let scheme = url.split(':').next().unwrap_or_default();
            Err(format!(
                "{scheme:?} storage is not supported by this version; use file:PATH"
            ))
        }
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port
            .parse()
            .map_err(|_| format!("{port:?} is not a port"))?;
        return Ok(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port));
    }
    text.parse()
        .map_err(|_| format!("{text:?} is not ADDRESS:PORT"))
}

fn http_base(text: &str) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(format!("{text:?} is not an http or https address"));
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
        return Err("must have no query, fragment or user".to_owned());
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

fn secret_of_at_least_32(text: &str) -> Result<Secret, String> {
    if text.len() < 32 {
        return Err("must have at least 32 characters".to_owned());
    }
    Ok(Secret::from(text))
}

fn admin_password(text: &str) -> Result<Secret, String> {
    crate::auth::password::check_length(text)?;
    Ok(Secret::from(text))
}

fn email(text: &str) -> Result<String, String> {
    crate::users::normalize_email(text)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a number of seconds above 0 (fractions are allowed)");
    let value: f64 = text.parse().map_err(|_| wrong())?;
    if !value.is_finite() || value <= 0.0 || value > 1e9 {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(value))
}

fn bytes(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!(
            "{text:?} is not a whole number from {least} to {most}"
        )),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is neither \"text\" nor \"json\"")),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{text:?} is neither \"true\" nor \"false\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Sources {
        Sources::default().with_environment(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    fn problems(sources: &Sources) -> Vec<String> {
        match Config::resolve(sources) {
            Ok(_) => Vec::new(),
            Err(error) => error.problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = Config::resolve(&Sources::default()).unwrap();
        assert_eq!(config.bind.to_string(), "127.0.0.1:8080");
        assert_eq!(config.heartbeat_interval, Duration::from_secs(30));
        assert_eq!(config.worker_heartbeat_timeout, Duration::from_secs(90));
        assert_eq!(config.worker_check_interval, Duration::from_secs(60));
        assert_eq!(config.worker_ping_grace, Duration::from_secs(10));
        assert_eq!(config.job_start_timeout, Duration::from_secs(600));
        assert_eq!(config.stop_grace, Duration::from_secs(120));
        assert_eq!(config.max_frame_bytes, 1 << 20);
        assert_eq!(config.database_path, PathBuf::from("./data/trainyard.db"));
    }

    #[test]
    fn a_flag_beats_the_environment_and_that_beats_the_file() {
        let sources = environment(&[("BIND", "127.0.0.1:2"), ("STOP_GRACE", "2")])
            .with_file(
                "t.toml",
                "bind = \"127.0.0.1:1\"\nstop_grace = 1\nping_grace = 3",
            )
            .map(|sources| sources.with_flag("BIND", "127.0.0.1:3"));
        assert!(sources.is_err(), "a name that does not exist is refused");
        let sources = environment(&[("BIND", "127.0.0.1:2"), ("STOP_GRACE", "2")])
            .with_file(
                "t.toml",
                "bind = \"127.0.0.1:1\"\nstop_grace = 1\nworker_ping_grace = 0.25",
            )
            .unwrap()
            .with_flag("BIND", "127.0.0.1:3");
        let config = Config::resolve(&sources).unwrap();
        assert_eq!(config.bind.port(), 3);
        assert_eq!(config.stop_grace, Duration::from_secs(2));
        assert_eq!(config.worker_ping_grace, Duration::from_millis(250));
        let source = |name| {
            config
                .settings()
                .iter()
                .find(|s| s.name == name)
                .unwrap()
                .source
                .clone()
        };
        assert_eq!(source("BIND"), Source::Flag);
        assert_eq!(source("STOP_GRACE"), Source::Environment);
        assert_eq!(
            source("WORKER_PING_GRACE"),
            Source::File("t.toml".to_owned())
        );
        assert_eq!(source("LOG"), Source::Default);
    }

    #[test]
    fn an_unknown_name_in_the_file_is_refused_with_the_nearest_known_one() {
        let error = Sources::default()
            .with_file("t.toml", "heartbeat_intervall = 3")
            .unwrap_err();
        assert!(error.to_string().contains("HEARTBEAT_INTERVAL"), "{error}");
    }

    #[test]
    fn a_timeout_that_no_heartbeat_could_meet_is_refused() {
        for setting in [
            ("WORKER_HEARTBEAT_TIMEOUT", "5"),
            ("HEARTBEAT_INTERVAL", "100"),
        ] {
            let found = problems(&environment(&[setting]));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(setting.0), "{found:?}");
            assert!(
                found[0].contains("given up between two heartbeats"),
                "{found:?}"
            );
        }
        let short = [
            ("WORKER_HEARTBEAT_TIMEOUT", "5"),
            ("HEARTBEAT_INTERVAL", "1"),
        ];
        assert!(Config::resolve(&environment(&short)).is_ok());
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_source() {
        let found = problems(&environment(&[
            ("BIND", "nowhere"),
            ("HEARTBEAT_INTERVAL", "-1"),
            ("DATABASE_URL", "postgres://db/x"),
            ("STORAGE_URL", "s3://bucket/x"),
            ("NATS_URL", "nats://n"),
            ("TLS_CERT", "/c.pem"),
        ]));
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(
            found.iter().all(|line| line.contains("(environment)")),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .any(|line| line.contains("\"postgres\" databases are not supported"))
        );
    }

    #[test]
    fn no_secret_is_shown_or_repeated_in_an_error() {
        let short = "too-short-secret";
        let found = problems(&environment(&[("SECRET_KEY", short)]));
        assert_eq!(found.len(), 1);
        assert!(!found.iter().any(|line| line.contains(short)));
        let secret = "s3cr3t".repeat(10);
        let config = Config::resolve(&environment(&[
            ("SECRET_KEY", &secret),
            ("ADMIN_PASSWORD", &secret),
        ]))
        .unwrap();
        assert!(!format!("{config:?}").contains("s3cr3t"));
        assert!(
            !serde_json::to_string(config.settings())
                .unwrap()
                .contains("s3cr3t")
        );
    }

    #[test]
    fn a_plain_public_address_beside_tls_is_refused() {
        let with = |url: &str| {
            problems(&environment(&[
                ("TLS_CERT", "/c.pem"),
                ("TLS_KEY", "/k.pem"),
                ("PUBLIC_URL", url),
            ]))
        };
        let found = with("http://yard.example.org");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("PUBLIC_URL") && found[0].contains("https"));
        let encrypted = environment(&[
            ("TLS_CERT", "/c.pem"),
            ("TLS_KEY", "/k.pem"),
            ("PUBLIC_URL", "https://yard.example.org"),
        ]);
        assert!(Config::resolve(&encrypted).is_ok());
    }

    #[test]
    fn a_public_bind_without_tls_or_proxy_counts_as_exposed() {
        let exposed = |pairs: &[(&str, &str)]| {
            Config::resolve(&environment(pairs))
                .unwrap()
                .is_exposed_without_tls()
        };
        assert!(exposed(&[("BIND", "0.0.0.0:80")]));
        assert!(!exposed(&[("BIND", "0.0.0.0:80"), ("TRUST_PROXY", "true")]));
        assert!(!exposed(&[
            ("BIND", "0.0.0.0:80"),
            ("TLS_CERT", "/c.pem"),
            ("TLS_KEY", "/k.pem")
        ]));
        assert!(!exposed(&[("BIND", "[::1]:80")]));
    }
}
