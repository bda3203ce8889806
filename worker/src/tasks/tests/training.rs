//! Jobs that train: a tiny model, real checkpoints, and what the platform would be told.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trainyard_shared::FailureKind;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{
    ArtifactFile, CheckpointSavedData, FromWorker, JobCompletedData, JobStoppedData,
};

use super::harness::{start, worker_with_model};
use crate::connection::outbox::Entry;
use crate::tasks::TaskCommand;
use crate::tasks::transfers::test_server::{Reply, TestServer};

fn rows() -> String {
    (0..12)
        .map(|row| format!("{{\"text\":\"row {row} of the cargo\"}}\n"))
        .collect()
}

/// Six steps, with a checkpoint after the third.
fn job(data: &mut Value) {
    data["base_model"] = json!({"huggingface_id": "yard/tiny"});
    data["config"] = json!({
        "epochs": 2, "batch_size": 4, "packing": false, "max_length": 32, "lora_r": 4,
        "learning_rate": 0.01, "save_steps": 3, "seed": 7
    });
}

async fn data_server() -> TestServer {
    TestServer::start(|_, _| Reply::new(200, rows())).await
}

fn checkpoint_of(entries: &[Entry]) -> (CheckpointSavedData, Vec<(ArtifactFile, PathBuf)>) {
    entries
        .iter()
        .find_map(|entry| match &entry.message {
            FromWorker::CheckpointSaved(saved) => Some((saved.data.clone(), files_of(entry))),
            _ => None,
        })
        .expect("a checkpoint was saved")
}

fn completed_of(entries: &[Entry]) -> (JobCompletedData, Vec<(ArtifactFile, PathBuf)>) {
    entries
        .iter()
        .find_map(|entry| match &entry.message {
            FromWorker::JobCompleted(completed) => Some((completed.data.clone(), files_of(entry))),
            _ => None,
        })
        .unwrap_or_else(|| panic!("the job has not completed: {entries:?}"))
}

fn files_of(entry: &Entry) -> Vec<(ArtifactFile, PathBuf)> {
    let files = entry.files.iter();
    files
        .map(|file| (file.artifact.clone(), file.path.clone()))
        .collect()
}

#[actix_rt::test]
async fn a_job_trains_and_reports_its_start_its_checkpoint_and_its_result_with_their_files() {
    let server = data_server().await;
    let worker = worker_with_model();
    worker.give(start((7, 1), &server.url("/data"), job)).await;
    worker.idle().await;

    let entries = worker.entries();
    let kinds: Vec<&str> = entries
        .iter()
        .map(|entry| entry.message.wire_type())
        .collect();
    assert_eq!(kinds, ["job_started", "checkpoint_saved", "job_completed"]);
    let FromWorker::JobStarted(started) = &entries[0].message else {
        unreachable!("its type was checked");
    };
    assert_eq!((started.job_id, started.attempt), (JobId(7), Some(1)));
    assert_eq!(started.data.total_steps, Some(6));
    assert_eq!(started.data.dataset_examples, Some(12));
    assert_eq!(started.data.device.as_deref(), Some("cpu"));

    let (checkpoint, _) = checkpoint_of(&entries);
    assert_eq!(
        (checkpoint.step, checkpoint.path.as_str()),
        (3, "checkpoints/job-7/step-3/")
    );
    let (completed, files) = completed_of(&entries);
    assert_eq!(completed.total_steps, Some(6));
    assert!(completed.final_loss.unwrap().is_finite());
    assert_eq!(completed.s3_prefix.as_deref(), Some("models/job-7/final/"));
    let names: Vec<&str> = files.iter().map(|(file, _)| file.key.as_str()).collect();
    assert!(
        names.contains(&"models/job-7/final/adapter_model.safetensors"),
        "{names:?}"
    );
    for (file, path) in &files {
        let content = fs::read(path).unwrap();
        assert_eq!(file.size_bytes, content.len() as u64);
        assert_eq!(
            file.sha256,
            hex::encode(Sha256::digest(content)),
            "{}",
            file.key
        );
    }
    let jobs = worker.state.path().join("jobs");
    assert_eq!(
        fs::read_dir(jobs).unwrap().count(),
        0,
        "the job's folder is gone"
    );
}

#[actix_rt::test]
async fn g075_an_attempt_that_goes_on_from_a_checkpoint_ends_as_if_it_had_never_stopped() {
    let server = data_server().await;
    let worker = worker_with_model();
    worker.give(start((7, 1), &server.url("/data"), job)).await;
    worker.idle().await;
    let (whole, _) = completed_of(&worker.entries());
    let (_, files) = checkpoint_of(&worker.entries());

    let stored = files.clone();
    let platform =
        TestServer::start(
            move |_, request| match request.target.strip_prefix("/file/") {
                Some(key) => match stored.iter().find(|(file, _)| file.key == key) {
                    Some((_, path)) => Reply::new(200, fs::read(path).unwrap()),
                    None => Reply::new(404, ""),
                },
                None => Reply::new(200, rows()),
            },
        )
        .await;
    let resumed = worker_with_model();
    let command = start((7, 2), &platform.url("/data"), |data| {
        job(data);
        let files: Vec<Value> = files
            .iter()
            .map(|(file, _)| {
                json!({"key": file.key, "download_url": platform.url(&format!("/file/{}", file.key)),
                       "sha256": file.sha256, "size_bytes": file.size_bytes})
            })
            .collect();
        data["resume"] = json!({"step": 3, "files": files});
    });
    resumed.give(command).await;
    resumed.idle().await;
    let (rest, _) = completed_of(&resumed.entries());
    assert_eq!(rest.total_steps, Some(6));
    assert_eq!(rest.final_loss, whole.final_loss, "the same bits");
}

#[actix_rt::test]
async fn g017_a_stopped_job_has_saved_a_checkpoint_and_ends_as_stopped() {
    let server = data_server().await;
    let worker = worker_with_model();
    let endless = |data: &mut Value| {
        job(data);
        data["config"]["epochs"] = json!(100_000);
        data["config"]["save_steps"] = json!(1_000_000);
    };
    worker
        .give(start((7, 1), &server.url("/data"), endless))
        .await;
    worker.does("step 2").await;
    worker.give(TaskCommand::Stop(JobId(7))).await;
    worker.idle().await;
    let entries = worker.entries();
    let (checkpoint, files) = checkpoint_of(&entries);
    assert!(checkpoint.step >= 2 && !files.is_empty(), "{checkpoint:?}");
    let end = entries.last().expect("it has ended");
    let FromWorker::JobStopped(stopped) = &end.message else {
        panic!("{:?}", end.message);
    };
    let expected = JobStoppedData {
        step: Some(checkpoint.step),
        last_checkpoint: Some(checkpoint.path),
    };
    assert_eq!(stopped.data, expected);
}

#[actix_rt::test]
async fn g064_a_bad_row_fails_the_job_with_its_line() {
    let server =
        TestServer::start(|_, _| Reply::new(200, format!("{}{{\"foo\":1}}\n", rows()))).await;
    let worker = worker_with_model();
    worker.give(start((7, 1), &server.url("/data"), job)).await;
    worker.idle().await;
    let failure = worker.failure((7, 1));
    assert_eq!(failure.failure_kind, Some(FailureKind::BadData));
    assert!(failure.error.contains("13"), "{failure:?}");
}
