//! The client's commands as a person at a terminal or a script uses them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::process::binary;
use crate::{DEADLINE, Platform};

/// A person's machine: a config folder and the platform's address.
pub struct Terminal {
    folder: TempDir,
    platform: String,
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output of a command that succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// What a command that printed JSON lines printed.
    #[track_caller]
    pub fn json(self) -> Vec<Value> {
        let lines = self.ok();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON line"))
            .collect()
    }

    /// Standard error of a command that failed with exit code 1.
    #[track_caller]
    pub fn failed(self) -> String {
        assert_eq!(self.code, 1, "{self:?}");
        self.stderr
    }
}

impl Terminal {
    /// One where nobody is logged in.
    pub fn new(platform: &Platform) -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
            platform: platform.url(),
        }
    }

    /// One where the administrator is logged in.
    pub async fn logged_in(platform: &Platform) -> Self {
        let terminal = Self::new(platform);
        let login = ["login", "--email", "admin@example.org", "--password-stdin"];
        terminal
            .run_with_input(&login, "correct horse battery staple\n")
            .await
            .ok();
        terminal
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "").await
    }

    /// A command that is not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("trainyard"));
        command
            .args(arguments)
            .env_clear()
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("TRAINYARD_PLATFORM", &self.platform);
        command
    }

    /// Runs a command to its end with something on its standard input.
    pub async fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        // A command that needs no input may end before it is written.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await;
        let output = output
            .expect("the command ends")
            .expect("it can be waited for");
        Ran {
            code: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// A file on this machine.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("a file can be written");
        path.display().to_string()
    }

    /// Where the client keeps its tokens.
    pub fn credentials(&self) -> PathBuf {
        self.folder.path().join("trainyard/credentials.json")
    }

    /// The machine's folder for settings and files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
