//! A child process whose output is kept and which does not outlive its test.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::DEADLINE;

/// The path of one of the project's binaries, beside the running test's executable.
///
/// # Panics
///
/// Where it has not been built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has an executable");
    let path = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build --workspace --bins` first")
    })
}

/// A running process. It is killed when this value is dropped.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<Vec<String>>>,
    lines_seen: watch::Receiver<usize>,
}

impl Process {
    /// Starts `command` with both of its outputs kept and no standard input.
    pub fn start(name: &str, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let output = Arc::new(Mutex::new(Vec::new()));
        let (seen, lines_seen) = watch::channel(0);
        let seen = Arc::new(seen);
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(keep_lines(stdout, output.clone(), seen.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep_lines(stderr, output.clone(), seen));
        }
        Self {
            name: name.to_owned(),
            child,
            output,
            lines_seen,
        }
    }

    /// Everything that the process has printed so far, one line a line.
    pub fn output(&self) -> String {
        self.output.lock().expect("no holder panics").join("\n")
    }

    /// Waits for the first printed line from which `pick` takes a value.
    ///
    /// # Panics
    ///
    /// When the process ends without it or the deadline passes.
    pub async fn line<T>(&mut self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        self.line_within(DEADLINE, what, pick).await
    }

    /// The same with another deadline, for what takes its time.
    ///
    /// # Panics
    ///
    /// As [`Process::line`].
    pub async fn line_within<T>(
        &mut self,
        deadline: Duration,
        what: &str,
        pick: impl Fn(&str) -> Option<T>,
    ) -> T {
        let wait = async {
            let mut from = 0;
            loop {
                self.lines_seen.borrow_and_update();
                {
                    let lines = self.output.lock().expect("no holder panics");
                    if let Some(found) = lines[from..].iter().find_map(|line| pick(line)) {
                        return Some(found);
                    }
                    from = lines.len();
                }
                if self.lines_seen.changed().await.is_err() {
                    return None;
                }
            }
        };
        match tokio::time::timeout(deadline, wait).await {
            Ok(Some(found)) => found,
            Ok(None) => panic!("{} ended without {what}:\n{}", self.name, self.output()),
            Err(_) => panic!("{} did not print {what}:\n{}", self.name, self.output()),
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child
            .id()
            .expect("the process has not been waited for")
    }

    /// The largest amount of memory that the process has held, in MiB.
    pub fn peak_memory_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))
            .expect("a running process has a status");
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse::<u64>().ok())
            .expect("Linux tells the peak of the resident set");
        kib / 1024
    }

    /// Asks the process to end (SIGTERM) and waits for it. Returns its exit code, if it has one.
    pub async fn stop(&mut self) -> Option<i32> {
        signal(self.id(), "TERM");
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        match ended {
            Ok(status) => status.expect("a child can be waited for").code(),
            Err(_) => panic!(
                "{} did not end after SIGTERM:\n{}",
                self.name,
                self.output()
            ),
        }
    }

    /// Stops the process where it is (SIGSTOP), until [`Process::go_on`].
    pub fn pause(&self) {
        signal(self.id(), "STOP");
    }

    /// Lets a stopped process go on (SIGCONT).
    pub fn go_on(&self) {
        signal(self.id(), "CONT");
    }

    /// Ends the process as a crash would (SIGKILL) and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Waits until the process ends by itself. Returns its exit code, if it has one.
    pub async fn ended(&mut self) -> Option<i32> {
        match tokio::time::timeout(DEADLINE, self.child.wait()).await {
            Ok(status) => status.expect("a child can be waited for").code(),
            Err(_) => panic!("{} did not end:\n{}", self.name, self.output()),
        }
    }
}

impl Drop for Process {
    /// Shows what the process printed when a test fails while it runs.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- {} printed:\n{}\n----", self.name, self.output());
        }
    }
}

fn signal(process_id: u32, name: &str) {
    std::process::Command::new("kill")
        .arg(format!("-{name}"))
        .arg(process_id.to_string())
        .status()
        .expect("kill is a standard command");
}

async fn keep_lines(
    stream: impl AsyncRead + Unpin,
    output: Arc<Mutex<Vec<String>>>,
    seen: Arc<watch::Sender<usize>>,
) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        output.lock().expect("no holder panics").push(line);
        seen.send_modify(|count| *count += 1);
    }
}
