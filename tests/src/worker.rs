//! A running `trainyard-worker run` with a state folder of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::client::Client;
use crate::eventually;
use crate::model::TinyModel;
use crate::platform::Platform;
use crate::process::{Process, binary};

/// A worker in a process of its own. It is killed, and its state removed, when this value is dropped.
pub struct Worker {
    /// The process.
    pub process: Process,
    settings: BTreeMap<String, String>,
    state: PathBuf,
    _temporary: Option<TempDir>,
}

impl Worker {
    /// Starts a worker that enrols with `key`, with short timings.
    pub fn start(platform: &Platform, models: &TinyModel, key: &str) -> Self {
        Self::start_with(platform, models, key, &[])
    }

    /// The same with some settings of the test's own, which win.
    pub fn start_with(
        platform: &Platform,
        models: &TinyModel,
        key: &str,
        own: &[(&str, &str)],
    ) -> Self {
        let mut settings = settings(&platform.url(), models, key);
        for (name, value) in own {
            settings.insert((*name).to_owned(), (*value).to_owned());
        }
        Self::start_in_temporary(settings)
    }

    /// The same at whatever listens at `url`.
    pub fn start_towards(url: &str, models: &TinyModel, key: &str) -> Self {
        Self::start_in_temporary(settings(url, models, key))
    }

    /// The same with its state in a folder that stays.
    pub fn start_at(state: &Path, platform: &Platform, models: &TinyModel, key: &str) -> Self {
        Self::start_in(state, settings(&platform.url(), models, key))
    }

    fn start_in_temporary(settings: BTreeMap<String, String>) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder can be made");
        let started = Self::start_in(temporary.path(), settings);
        Self {
            _temporary: Some(temporary),
            ..started
        }
    }

    /// Starts a second process with a copy of this one's identity.
    pub fn start_copy(&self) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder can be made");
        copy_folder(&self.state, temporary.path());
        let started = Self::start_in(temporary.path(), self.settings.clone());
        Self {
            _temporary: Some(temporary),
            ..started
        }
    }

    fn start_in(state: &Path, mut settings: BTreeMap<String, String>) -> Self {
        settings.insert("STATE_DIR".to_owned(), state.display().to_string());
        let process = spawn(&settings);
        Self {
            process,
            settings,
            state: state.to_owned(),
            _temporary: None,
        }
    }

    /// The folder that holds the worker's identity and outbox.
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// Waits until the platform shows one worker that is ready for jobs; returns its number.
    pub async fn ready(&self, admin: &Client) -> i64 {
        eventually("the worker to be idle", || async {
            let workers = admin.get("/api/workers").await.ok();
            let items = workers["items"].as_array().expect("a list").clone();
            let idle = items.iter().find(|worker| worker["status"] == "idle")?;
            idle["id"].as_i64()
        })
        .await
    }

    /// Kills the process as a crash would and starts it again with the same state.
    pub async fn crash_and_restart(&mut self) {
        self.process.kill().await;
        self.process = spawn(&self.settings);
    }
}

fn settings(url: &str, models: &TinyModel, key: &str) -> BTreeMap<String, String> {
    let mut settings: BTreeMap<String, String> = [
        ("PLATFORM_URL", url),
        ("WORKER_KEY", key),
        ("HEARTBEAT_INTERVAL", "0.3"),
        ("METRICS_INTERVAL", "0.3"),
        ("RECONNECT_DELAY", "0.2"),
        ("HF_HUB_OFFLINE", "1"),
        ("DEVICE", "cpu"),
        ("BENCHMARK_SECONDS", "0.5"),
        ("LOG", "info"),
    ]
    .iter()
    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    .collect();
    settings.insert(
        "MODELS_DIR".to_owned(),
        models.models_dir().display().to_string(),
    );
    settings
}

fn spawn(settings: &BTreeMap<String, String>) -> Process {
    let mut command = Command::new(binary("trainyard-worker"));
    command.arg("run").env_clear().envs(settings);
    Process::start("trainyard-worker run", command)
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the folder is there") {
        let entry = entry.expect("the folder can be read");
        let target: PathBuf = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).expect("the target can be written");
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("the file can be copied");
        }
    }
}
