//! Tasks from their start to their end. In this file: jobs that end before the engine is needed, refused, failed,
//! stopped or replaced while they prepare.

mod evaluation;
mod export;
mod federated;
pub(super) mod golden;
mod harness;
mod inference;
mod results;
mod training;

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::FromWorker;
use trainyard_shared::{FailureKind, WorkerStatus};

use super::transfers::test_server::{Reply, TestServer};
use super::*;
use harness::{DEADLINE, start, start_worker};

const DATA: &str = "{\"text\":\"aye\"}\n";

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
        .give(start((7, 1), &server.url("/data"), |_| {}))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
        .await;
    worker.idle().await;
    assert_eq!(
        worker.failure((7, 1)).failure_kind,
        Some(FailureKind::Download)
    );
    worker
        .give(start((8, 1), &server.url("/data"), |data| {
            data["config"] = json!({"epochs": -1});
        }))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
        .await;
    worker
        .give(start((8, 1), &server.url("/data"), |_| {}))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
        .await;
    worker
        .give(start((7, 2), &server.url("/data"), |_| {}))
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
        .give(start((7, 1), &server.url("/data"), |_| {}))
        .await;
    timeout(DEADLINE, worker.tasks.send(FinishTasks))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        worker.failure((7, 1)).failure_kind,
        Some(FailureKind::WorkerRestarted)
    );
    assert_eq!(worker.activity.get().status(), WorkerStatus::Draining);
    worker
        .give(start((8, 1), &server.url("/data"), |_| {}))
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
    let server = TestServer::start(|_, _| Reply::new(200, DATA)).await;
    let worker = start_worker();
    for job in 1..=2 {
        let command = start((job, 1), &server.url("/data"), |data| {
            data["dataset"]["sha256"] = json!(hex::encode(Sha256::digest(DATA)));
            data["dataset"]["size_bytes"] = json!(DATA.len());
        });
        worker.give(command).await;
        worker.idle().await;
    }
    assert_eq!(server.requests().len(), 1);
}
