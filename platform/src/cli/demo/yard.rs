//! The demo's platform and worker in this process, and the folder in which they keep everything.

use serde_json::json;
use std::fs::{self, File, TryLockError};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trainyard_platform::config::{Config, Sources};
use trainyard_platform::logging;
use trainyard_platform::server::{self, RunningServer};
use trainyard_shared::Secret;
use trainyard_worker::config::{ModelSettings, WorkerConfig};
use url::Url;

use crate::cli::client::Platform;
use crate::cli::error::CliError;

/// In every demo's folder: what has it is the demo's to empty, and holding its lock keeps a second demo out.
const MARKER: &str = "trainyard-demo.lock";
/// The worker measures the machine about so long before it registers.
const BENCHMARK_BUDGET: Duration = Duration::from_secs(2);
/// How long a training that is interrupted may take to save its checkpoint.
const WORKER_SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// What the demo has running.
pub struct Yard {
    folder: PathBuf,
    server: Option<RunningServer>,
    worker: Option<Worker>,
    _lock: File,
}

/// The worker, on its own task of this process; it knows the platform only by its address.
struct Worker {
    shutdown: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), trainyard_worker::WorkerError>>,
}

impl Yard {
    /// Takes the folder and removes what an earlier demo left in it.
    ///
    /// # Errors
    ///
    /// It holds something else, another demo runs in it, or it cannot be written.
    pub fn open(folder: &Path) -> Result<Self, CliError> {
        let failed = |source: io::Error| CliError::io(folder.display().to_string(), source);
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let marker = folder.join(MARKER);
        if !marker.exists() && fs::read_dir(&folder).map_err(failed)?.next().is_some() {
            return Err(CliError::Input(format!(
                "{} is neither empty nor a demo's folder",
                folder.display()
            )));
        }
        let lock = File::create(&marker).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CliError::Input(format!(
                    "another demo is running in {}",
                    folder.display()
                )));
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        for part in ["platform", "worker"] {
            match fs::remove_dir_all(folder.join(part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(Self {
            folder,
            server: None,
            worker: None,
            _lock: lock,
        })
    }

    /// Starts the platform and logs in as the administrator that it makes; also who that is, in words.
    pub async fn start_platform(
        &mut self,
        bind: SocketAddr,
    ) -> Result<(Platform, String), CliError> {
        let level = std::env::var("LOG").unwrap_or_else(|_| "error".to_owned());
        let sources = Sources::default()
            .with_flag("BIND", bind.to_string())
            .with_flag(
                "DATA_DIR",
                self.folder.join("platform").display().to_string(),
            )
            .with_flag("LOG", level);
        let config =
            Config::resolve(&sources).map_err(|error| CliError::Input(error.to_string()))?;
        logging::init(&config);
        let running = server::start(config)
            .await
            .map_err(|error| CliError::Input(error.to_string()))?;
        let server = self.server.insert(running);
        let admin = server.first_admin.as_ref().ok_or_else(|| {
            CliError::UnexpectedAnswer("a new platform made no administrator".to_owned())
        })?;
        let password = admin.generated_password.as_ref().map_or("", Secret::expose);
        let anonymous = Platform::anonymous(Some(&server.public_url))?;
        let body = json!({ "email": admin.email, "password": password });
        let answer = anonymous
            .post_anonymous(&["api", "auth", "login"], &body)
            .await?;
        let token = Secret::from(super::text(&answer, "token")?);
        let platform = Platform::new(server.public_url.clone(), Some(token))?;
        Ok((
            platform,
            format!("log in as {}, password {password}", admin.email),
        ))
    }

    /// Starts the worker, which enrols with `key`.
    pub fn start_worker(
        &mut self,
        platform: &Url,
        key: &str,
        models: ModelSettings,
    ) -> Result<(), CliError> {
        let config = WorkerConfig::new(platform.as_str(), self.folder.join("worker"))
            .map_err(|error| CliError::Input(error.to_string()))?;
        let config = WorkerConfig {
            worker_key: Some(Secret::from(key)),
            models,
            metrics_interval: Duration::from_secs(1),
            benchmark_budget: BENCHMARK_BUDGET,
            shutdown_grace: WORKER_SHUTDOWN_GRACE,
            ..config
        };
        let (shutdown, asked) = oneshot::channel();
        let ended = actix_web::rt::spawn(trainyard_worker::run(config, async {
            // A dropped sender asks for the same.
            let _ = asked.await;
        }));
        self.worker = Some(Worker { shutdown, ended });
        Ok(())
    }

    /// Waits for `work` as long as the worker lives.
    pub async fn worker_while<T>(
        &mut self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        let Some(worker) = &mut self.worker else {
            return work.await;
        };
        tokio::select! {
            done = work => done,
            ended = &mut worker.ended => {
                self.worker = None;
                let why = match ended {
                    Ok(Ok(())) => "it was told to".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                Err(CliError::Input(format!("the worker ended: {why}")))
            }
        }
    }

    /// Where the platform's local storage keeps what job `id` made.
    pub fn adapter_of(&self, id: u64) -> PathBuf {
        self.folder
            .join(format!("platform/storage/models/job-{id}/final"))
    }

    /// Ends the worker, then the platform, and waits for both.
    pub async fn stop(&mut self) {
        if let Some(worker) = self.worker.take() {
            // Where the receiver is gone, the worker has ended by itself.
            let _ = worker.shutdown.send(());
            if let Ok(Err(error)) = worker.ended.await {
                tracing::error!(%error, "worker ended with an error");
            }
        }
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_empties_its_own_folder_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("platform/trainyard.db");
        drop(Yard::open(folder.path()).unwrap());
        fs::create_dir(folder.path().join("platform")).unwrap();
        fs::write(&left, "an earlier run").unwrap();
        let yard = Yard::open(folder.path()).unwrap();
        assert!(!left.exists());
        let told = Yard::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(told.contains("another demo"), "{told}");
        drop(yard);

        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("thesis.txt"), "years of work").unwrap();
        assert!(Yard::open(other.path()).is_err());
        assert!(other.path().join("thesis.txt").exists());
    }
}
