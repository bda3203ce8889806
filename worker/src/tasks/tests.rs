//! Jobs that end before the engine is needed: refused, failed, stopped or replaced while they prepare.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{FromWorker, JobFailedData, ToWorker, WorkerRegisterData};
use trainyard_shared::{FailureKind, Secret};

use super::base_model::ModelSource;
use super::training::TrainingContext;
use super::transfers::test_server::{Reply, TestServer};
use super::transfers::{Http, RetryPolicy};
use super::*;
use crate::config::WorkerConfig;
use crate::connection::identity::IdentityFile;
use crate::connection::outbox::Outbox;
use crate::connection::{Connection, Parts, Reports, SharedActivity};
use crate::platform_files::{PlatformFiles, SharedKey};

const DEADLINE: Duration = Duration::from_secs(20);
const DATA: &str = "{\"text\":\"aye\"}\n";

/// Tasks without a connection: what they report stays in the outbox.
struct Worker {
    tasks: Addr<Tasks>,
    outbox: Arc<Outbox>,
    activity: SharedActivity,
    state: TempDir,
}

fn start_worker() -> Worker {
    let state = tempfile::tempdir().unwrap();
    let mut config = WorkerConfig::new("http://127.0.0.1:9", state.path().to_owned()).unwrap();
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
    let reports = Reports::new(outbox.clone(), activity.clone(), connecting.address());
    let context = TrainingContext {
        reports,
        files: files.clone(),
        models: ModelSource::new(config.models.clone(), http),
        state_dir: state.path().to_owned(),
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
        files,
        tasks: tasks.clone().recipient(),
        tls: Arc::new(crate::tls::client_config()),
        config,
    }));
    Worker {
        tasks,
        outbox,
        activity,
        state,
    }
}

impl Worker {
    async fn give(&self, command: TaskCommand) {
        self.tasks.send(command).await.unwrap();
    }

    /// Waits until this worker has nothing to do.
    async fn idle(&self) {
        let wait = async {
            while self.activity.get().job.is_some() {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, wait).await.expect("the job does not end");
    }

    fn reports(&self) -> Vec<FromWorker> {
        let mut place = None;
        std::iter::from_fn(|| {
            let entry = self.outbox.next_after(place)?;
            place = Some(entry.place);
            Some(entry.message)
        })
        .collect()
    }

    fn failure(&self, of: (i64, u32)) -> JobFailedData {
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

fn start(job_id: i64, attempt: u32, dataset_url: &str, config: serde_json::Value) -> TaskCommand {
    let frame = json!({
        "type": "start_training", "job_id": job_id, "attempt": attempt,
        "data": {
            "dataset": {"storage_path": "datasets/1/data.jsonl", "download_url": dataset_url,
                        "format": "jsonl", "id": 1},
            "base_model": {"huggingface_id": "yard/not-here"},
            "config": config,
            "output_path": format!("models/job-{job_id}/"),
        }
    });
    match ToWorker::decode(&frame.to_string()).unwrap() {
        ToWorker::StartTraining(start) => TaskCommand::Start(Box::new(start)),
        other => panic!("{other:?}"),
    }
}

/// A server whose answers wait for permits.
async fn slow_server() -> (TestServer, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let gate = permits.clone();
    let server = TestServer::start_gated(gate, |_, _| Reply::new(200, DATA)).await;
    (server, permits)
}

#[actix_rt::test]
async fn a_missing_model_fails_the_job_and_the_worker_is_free_again() {
    let server = TestServer::start(|_, _| Reply::new(200, DATA)).await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    worker.idle().await;
    let failure = worker.failure((7, 1));
    assert_eq!(failure.failure_kind, Some(FailureKind::ModelUnavailable));
    assert!(failure.error.contains("yard/not-here"), "{failure:?}");
    let jobs = worker.state.path().join("jobs");
    assert_eq!(
        std::fs::read_dir(jobs).unwrap().count(),
        0,
        "its folder is gone"
    );

    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    worker.idle().await;
    assert_eq!(
        worker.reports().len(),
        1,
        "a repeat of an ended attempt starts nothing"
    );
}

#[actix_rt::test]
async fn data_that_cannot_be_fetched_and_configs_that_cannot_be_read_fail_by_their_kind() {
    let server = TestServer::start(|_, _| Reply::new(404, "")).await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    worker.idle().await;
    assert_eq!(
        worker.failure((7, 1)).failure_kind,
        Some(FailureKind::Download)
    );
    worker
        .give(start(8, 1, &server.url("/data"), json!({"epochs": -1})))
        .await;
    worker.idle().await;
    let failure = worker.failure((8, 1));
    assert_eq!(failure.failure_kind, Some(FailureKind::BadConfig));
    assert!(failure.error.contains("epochs"), "{failure:?}");
}

#[actix_rt::test]
async fn a_stop_while_the_data_comes_ends_the_job_as_stopped() {
    let (server, _held) = slow_server().await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    assert_eq!(
        worker.activity.get().job.map(|job| job.job_id),
        Some(JobId(7))
    );
    worker.give(TaskCommand::Stop(JobId(7))).await;
    worker.give(TaskCommand::Stop(JobId(7))).await;
    worker.idle().await;
    let reports = worker.reports();
    assert!(
        matches!(&reports[..], [FromWorker::JobStopped(stopped)] if stopped.attempt == Some(1)),
        "{reports:?}"
    );
}

#[actix_rt::test]
async fn another_job_is_refused_while_one_runs_and_the_running_one_goes_on() {
    let (server, held) = slow_server().await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    worker
        .give(start(8, 1, &server.url("/data"), json!({})))
        .await;
    assert!(worker.failure((8, 1)).error.contains("busy with job 7"));
    held.add_permits(10);
    worker.idle().await;
    assert_eq!(
        worker.failure((7, 1)).failure_kind,
        Some(FailureKind::ModelUnavailable)
    );
}

#[actix_rt::test]
async fn a_newer_attempt_replaces_the_older_one_which_ends_without_a_word() {
    let (server, held) = slow_server().await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    worker
        .give(start(7, 2, &server.url("/data"), json!({})))
        .await;
    held.add_permits(10);
    worker.idle().await;
    assert_eq!(
        worker.failure((7, 2)).failure_kind,
        Some(FailureKind::ModelUnavailable)
    );
    assert_eq!(worker.reports().len(), 1, "{:?}", worker.reports());
}

#[actix_rt::test]
async fn a_shutdown_fails_the_running_job_as_restarted_and_takes_no_other() {
    let (server, _held) = slow_server().await;
    let worker = start_worker();
    worker
        .give(start(7, 1, &server.url("/data"), json!({})))
        .await;
    timeout(DEADLINE, worker.tasks.send(FinishTasks))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        worker.failure((7, 1)).failure_kind,
        Some(FailureKind::WorkerRestarted)
    );
    worker
        .give(start(8, 1, &server.url("/data"), json!({})))
        .await;
    assert!(worker.failure((8, 1)).error.contains("shutting down"));
}

#[actix_rt::test]
async fn a_stop_for_a_job_that_is_not_here_is_answered() {
    let worker = start_worker();
    worker.give(TaskCommand::Stop(JobId(3))).await;
    let reports = worker.reports();
    assert!(
        matches!(&reports[..], [FromWorker::JobStopped(stopped)] if stopped.job_id == JobId(3)),
        "{reports:?}"
    );
}

#[actix_rt::test]
async fn a_data_set_with_a_known_digest_is_fetched_once_for_several_jobs() {
    use sha2::{Digest, Sha256};
    let server = TestServer::start(|_, _| Reply::new(200, DATA)).await;
    let worker = start_worker();
    for job in 1..=2 {
        let TaskCommand::Start(mut command) = start(job, 1, &server.url("/data"), json!({})) else {
            unreachable!("start gives a start");
        };
        command.data.dataset.sha256 = Some(hex::encode(Sha256::digest(DATA)));
        command.data.dataset.size_bytes = Some(DATA.len() as u64);
        worker.give(TaskCommand::Start(command)).await;
        worker.idle().await;
    }
    assert_eq!(server.requests().len(), 1);
}
