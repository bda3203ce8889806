//! Tasks whose connection leads nowhere unless a test plays the platform: what they report stays in the outbox, where a
//! test looks at it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use trainyard_shared::message::{FromWorker, JobFailedData, ToWorker, WorkerRegisterData};
use trainyard_shared::{Secret, WorkerStatus};

use super::golden;
use crate::config::WorkerConfig;
use crate::connection::identity::IdentityFile;
use crate::connection::outbox::{Entry, Outbox};
use crate::connection::{Connection, Parts, Reports, SharedActivity, WaitingTokens};
use crate::hardware::free_memory_bytes;
use crate::platform_files::{PlatformFiles, SharedKey};
use crate::tasks::TaskContext;
use crate::tasks::base_model::ModelSource;
use crate::tasks::loaded::LoadedModels;
use crate::tasks::locks::PlaceLocks;
use crate::tasks::transfers::{Http, RetryPolicy};
use crate::tasks::{TaskCommand, Tasks};

/// Nothing in these tests takes longer unless it is broken.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Where there is nothing to wait on, a test looks this often.
const POLL: Duration = Duration::from_millis(2);

/// The tasks of a worker.
pub struct Worker {
    pub tasks: Addr<Tasks>,
    pub activity: SharedActivity,
    pub tokens: WaitingTokens,
    pub state: TempDir,
    outbox: Arc<Outbox>,
}

/// Starts them, with the base models in `STATE_DIR/models`.
pub fn start_worker() -> Worker {
    start_worker_with(|_| {})
}

/// The same with settings that `change` makes.
pub fn start_worker_with(change: impl FnOnce(&mut WorkerConfig)) -> Worker {
    let state = tempfile::tempdir().unwrap();
    let mut config = WorkerConfig::new("http://127.0.0.1:9", state.path().to_owned()).unwrap();
    change(&mut config);
    config.models.hub_offline = true;
    config.worker_key = Some(Secret::from("wkr_test"));
    // It never gets as far as a second try to connect.
    config.reconnect_delay = Duration::from_secs(3600);
    let outbox = Arc::new(Outbox::open(&state.path().join("outbox")).unwrap());
    let activity = SharedActivity::default();
    let http = Http::new(RetryPolicy {
        tries: 2,
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(1),
    })
    .unwrap();
    let key = SharedKey::default();
    let files = PlatformFiles::new(http.clone(), config.platform.clone(), key.clone());
    let connecting = Context::<Connection>::new();
    let tokens = WaitingTokens::default();
    let reports = Reports::new(
        outbox.clone(),
        activity.clone(),
        tokens.clone(),
        connecting.address(),
    );
    let context = TaskContext {
        reports,
        files: files.clone(),
        models: ModelSource::new(config.models.clone(), http),
        loaded: LoadedModels::new(free_memory_bytes),
        locks: PlaceLocks::default(),
        state_dir: state.path().to_owned(),
        token_cache_bytes: crate::engine::data::DEFAULT_CACHE_BYTES,
        device: config.device,
        worker_type: config.worker_type,
    };
    let tasks = Tasks::new(context, outbox.undelivered_ends()).start();
    connecting.run(Connection::new(Parts {
        identity: IdentityFile::open(state.path()).unwrap(),
        key,
        hardware: WorkerRegisterData::default(),
        outbox: outbox.clone(),
        activity: activity.clone(),
        tokens: tokens.clone(),
        files,
        tasks: tasks.clone().recipient(),
        tls: Arc::new(crate::tls::client_config()),
        config,
    }));
    Worker {
        tasks,
        outbox,
        activity,
        tokens,
        state,
    }
}

/// A worker that has the tiny model `yard/tiny`.
pub fn worker_with_model() -> Worker {
    worker_with_model_and(|_| {})
}

/// The same with settings that `change` makes.
pub fn worker_with_model_and(change: impl FnOnce(&mut WorkerConfig)) -> Worker {
    let worker = start_worker_with(change);
    worker.put_model("yard/tiny", "tied", |_| {});
    worker
}

impl Worker {
    pub async fn give(&self, command: TaskCommand) {
        self.tasks.send(command).await.unwrap();
    }

    /// Puts a golden model among those on disk, its config changed by `change`.
    pub fn put_model(&self, name: &str, variant: &str, change: impl FnOnce(&mut Value)) {
        let place = self.state.path().join("models").join(name);
        fs::create_dir_all(&place).unwrap();
        golden::put_model(variant, &place);
        let path = place.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(path, config.to_string()).unwrap();
    }

    /// Waits until this worker has nothing to do.
    pub async fn idle(&self) {
        let wait = async {
            while self.activity.get().status() != WorkerStatus::Idle {
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(DEADLINE, wait)
            .await
            .expect("the work does not end");
    }

    /// Every message that waits for delivery, in order.
    pub fn reports(&self) -> Vec<FromWorker> {
        self.entries()
            .into_iter()
            .map(|entry| entry.message)
            .collect()
    }

    /// The same with the messages' files.
    pub fn entries(&self) -> Vec<Entry> {
        let mut place = None;
        std::iter::from_fn(|| {
            let entry = self.outbox.next_after(place)?;
            place = Some(entry.place);
            Some(entry)
        })
        .collect()
    }

    /// Waits until the worker says that it does something with these words.
    pub async fn does(&self, words: &str) {
        let wait = async {
            let says = || self.activity.get().status_message.unwrap_or_default();
            while !says().contains(words) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("it never does {words}"));
    }

    /// How this attempt at a job has failed.
    pub fn failure(&self, of: (i64, u32)) -> JobFailedData {
        self.reports()
            .into_iter()
            .find_map(|message| match message {
                FromWorker::JobFailed(failed)
                    if (failed.job_id.get(), failed.attempt) == (of.0, Some(of.1)) =>
                {
                    Some(failed.data)
                }
                _ => None,
            })
            .unwrap_or_else(|| panic!("{of:?} has not failed: {:?}", self.reports()))
    }
}

/// A `start_training` of this attempt, changed by `change` before it is read.
pub fn start(job: (i64, u32), dataset_url: &str, change: impl FnOnce(&mut Value)) -> TaskCommand {
    let (job_id, attempt) = job;
    let mut frame = json!({
        "type": "start_training", "job_id": job_id, "attempt": attempt,
        "data": {
            "dataset": {"storage_path": "datasets/1/data.jsonl", "download_url": dataset_url,
                        "format": "jsonl", "id": 1},
            "base_model": {"huggingface_id": "yard/not-here"},
            "config": {},
            "output_path": format!("models/job-{job_id}/"),
        }
    });
    change(&mut frame["data"]);
    match ToWorker::decode(&frame.to_string()).unwrap() {
        ToWorker::StartTraining(start) => TaskCommand::Start(Box::new(start)),
        other => panic!("{other:?}"),
    }
}
