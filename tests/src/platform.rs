//! A running `trainyard serve` with a data folder and a port of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::client::Client;
use crate::process::{Process, binary};
use crate::socket::Socket;

const ADMIN_EMAIL: &str = "admin@example.org";
const ADMIN_PASSWORD: &str = "correct horse battery staple";

/// A platform in a process of its own. It is killed, and its data removed, when this value is dropped.
pub struct Platform {
    process: Process,
    settings: BTreeMap<String, String>,
    address: String,
    earlier_output: String,
    data: PathBuf,
    _temporary: Option<TempDir>,
}

impl Platform {
    /// Starts a platform with short timings: a silent worker is lost within about two seconds.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with some settings of the test's own, which win.
    pub async fn start_with(own: &[(&str, &str)]) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder can be made");
        let started = Self::start_at(temporary.path(), own).await;
        Self {
            _temporary: Some(temporary),
            ..started
        }
    }

    /// The same with its data in a folder that stays.
    pub async fn start_at(data: &Path, own: &[(&str, &str)]) -> Self {
        let defaults = [
            ("BIND", "127.0.0.1:0"),
            ("ADMIN_EMAIL", ADMIN_EMAIL),
            ("ADMIN_PASSWORD", ADMIN_PASSWORD),
            ("HEARTBEAT_INTERVAL", "0.3"),
            ("WORKER_HEARTBEAT_TIMEOUT", "1.5"),
            ("WORKER_CHECK_INTERVAL", "0.25"),
            ("WORKER_PING_GRACE", "0.5"),
            ("LOG", "info"),
        ];
        let mut settings: BTreeMap<String, String> = defaults
            .iter()
            .chain(own)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        settings.insert("DATA_DIR".to_owned(), data.display().to_string());
        let mut process = spawn(&settings);
        let address = wait_until_ready(&mut process).await;
        settings.insert("BIND".to_owned(), address.clone());
        Self {
            process,
            settings,
            address,
            earlier_output: String::new(),
            data: data.to_owned(),
            _temporary: None,
        }
    }

    /// `host:port` of the platform.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The platform's base address, `http://…`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The folder that holds the platform's database and files.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// The platform's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// All that the platform has printed, restarts included.
    pub fn output(&self) -> String {
        format!("{}\n{}", self.earlier_output, self.process.output())
    }

    /// A client that has not logged in.
    pub fn anonymous(&self) -> Client {
        Client::new(&self.url())
    }

    /// The administrator's client.
    pub async fn admin(&self) -> Client {
        self.anonymous().login(ADMIN_EMAIL, ADMIN_PASSWORD).await
    }

    /// A dashboard's socket for the user of `client`.
    pub async fn dashboard(&self, client: &Client) -> Socket {
        let (user_id, token) = client.ws_token().await;
        Socket::open(&self.address, &format!("/ws/user/{user_id}?token={token}"))
            .await
            .expect("a fresh token opens a dashboard")
    }

    /// Kills the platform as a crash would and starts it again on the same port and data.
    pub async fn crash_and_restart(&mut self) {
        self.crash().await;
        self.restart().await;
    }

    /// Kills the platform as a crash would.
    pub async fn crash(&mut self) {
        self.process.kill().await;
    }

    /// Ends the platform in an orderly way (SIGTERM).
    pub async fn stop(&mut self) {
        let code = self.process.stop().await;
        assert_eq!(code, Some(0), "{}", self.output());
    }

    /// Starts it again on the same port and data.
    pub async fn restart(&mut self) {
        self.earlier_output = self.output();
        self.process = spawn(&self.settings);
        wait_until_ready(&mut self.process).await;
    }
}

fn spawn(settings: &BTreeMap<String, String>) -> Process {
    let mut command = Command::new(binary("trainyard"));
    command.arg("serve").env_clear().envs(settings);
    Process::start("trainyard serve", command)
}

/// Waits for the line that tells the address, which the platform prints once it accepts connections.
async fn wait_until_ready(process: &mut Process) -> String {
    process
        .line("the address that it listens on", |line| {
            let (_, rest) = line.split_once("listening on ")?;
            let (_, rest) = rest.split_once("://")?;
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:".contains(c)));
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        })
        .await
}
