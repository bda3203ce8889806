//! Exports of a tiny model's adapter: their files, their progress, and how they end.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use trainyard_shared::ids::ExportId;
use trainyard_shared::message::{ArtifactFile, FromWorker, TaskFailedData, ToWorker};
use trainyard_shared::{FailureKind, WorkerStatus};

use super::golden;
use super::harness::{Worker, worker_with_model};
use crate::engine::weights::{ModelFiles, SafetensorsFile};
use crate::tasks::TaskCommand;
use crate::tasks::transfers::test_server::{Reply, TestServer};

fn adapter_file(target: &str) -> Reply {
    let name = target.trim_start_matches("/adapter/");
    let adapter = golden::path("tied").join("adapter");
    Reply::new(200, fs::read(adapter.join(name)).unwrap())
}

async fn adapter_server() -> TestServer {
    TestServer::start(|_, request| adapter_file(&request.target)).await
}

/// A `start_export` of the tiny model's adapter, changed by `change` before it is read.
fn ask(id: i64, server: &TestServer, change: impl FnOnce(&mut Value)) -> TaskCommand {
    let file = |name: &str| json!({"key": name, "url": server.url(&format!("/adapter/{name}"))});
    let mut frame = json!({
        "type": "start_export", "export_id": id, "job_id": 7,
        "data": {
            "format": "gguf_merged", "model_url": "models/job-7/final/",
            "download_urls": [file("adapter_config.json"), file("adapter_model.safetensors")],
            "base_model": {"huggingface_id": "yard/tiny"},
            "output_path": format!("models/job-7/exports/{id}/"),
        }
    });
    change(&mut frame["data"]);
    match ToWorker::decode(&frame.to_string()).unwrap() {
        ToWorker::StartExport(start) => TaskCommand::StartTask(Box::new(start.into())),
        other => panic!("{other:?}"),
    }
}

type Files = Vec<(ArtifactFile, PathBuf)>;

fn ended(worker: &Worker, id: i64) -> Result<Files, TaskFailedData> {
    let mut ends = worker.entries().into_iter().filter_map(|entry| {
        let files = entry
            .files
            .into_iter()
            .map(|file| (file.artifact, file.path));
        match entry.message {
            FromWorker::ExportCompleted(end) if end.export_id.get() == id => {
                Some(Ok(files.collect()))
            }
            FromWorker::ExportFailed(end) if end.export_id.get() == id => Some(Err(end.data)),
            _ => None,
        }
    });
    let end = ends.next().unwrap_or_else(|| panic!("{id} has not ended"));
    assert!(ends.next().is_none(), "{id} has ended twice");
    end
}

async fn export(
    worker: &Worker,
    id: i64,
    server: &TestServer,
    change: impl FnOnce(&mut Value),
) -> Result<Files, TaskFailedData> {
    worker.give(ask(id, server, change)).await;
    worker.idle().await;
    ended(worker, id)
}

fn keys(files: &Files) -> Vec<&str> {
    files.iter().map(|(file, _)| file.key.as_str()).collect()
}

#[actix_rt::test]
async fn a_result_is_written_in_every_form_under_the_export_s_own_keys() {
    let server = adapter_server().await;
    let worker = worker_with_model();
    let merged = export(&worker, 1, &server, |_| {}).await.unwrap();
    assert_eq!(keys(&merged), ["models/job-7/exports/1/job-7-f16.gguf"]);
    assert_eq!(&fs::read(&merged[0].1).unwrap()[..4], b"GGUF");
    assert_eq!(
        merged[0].0.size_bytes,
        fs::metadata(&merged[0].1).unwrap().len()
    );

    let lora = export(&worker, 2, &server, |data| {
        data["format"] = json!("gguf_lora")
    });
    let lora = lora.await.unwrap();
    assert_eq!(keys(&lora), ["models/job-7/exports/2/job-7-lora-f32.gguf"]);
    assert!(lora[0].0.size_bytes < merged[0].0.size_bytes);

    let folder = export(&worker, 3, &server, |data| {
        data["format"] = json!("merged_safetensors");
        data["type"] = json!("f32");
    });
    let folder = folder.await.unwrap();
    let place = tempfile::tempdir().unwrap();
    for (file, path) in &folder {
        let name = file.key.strip_prefix("models/job-7/exports/3/").unwrap();
        fs::copy(path, place.path().join(name)).unwrap();
    }
    ModelFiles::open(place.path()).unwrap();
    let of = |place: &std::path::Path| {
        let file = SafetensorsFile::open(&place.join("model.safetensors")).unwrap();
        file.tensor("model.layers.0.self_attn.q_proj.weight")
            .unwrap()
    };
    let base = worker.state.path().join("models/yard/tiny");
    assert_ne!(of(place.path()), of(&base), "the adapter is in the weights");
    let left = fs::read_dir(worker.state.path().join("jobs")).unwrap();
    assert_eq!(left.count(), 0, "only the outbox holds the files");
}

#[actix_rt::test]
async fn what_cannot_be_exported_fails_and_the_field_or_the_reason_is_named() {
    let server = adapter_server().await;
    let worker = worker_with_model();
    let cases: [(&str, Value, FailureKind, &str); 3] = [
        (
            "output_path",
            json!("x"),
            FailureKind::BadConfig,
            "output_path",
        ),
        (
            "base_model",
            json!({"huggingface_id": "yard/not-here"}),
            FailureKind::ModelUnavailable,
            "yard/not-here",
        ),
        (
            "download_urls",
            json!([{"key": "other", "url": "http://127.0.0.1:9/"}]),
            FailureKind::BadConfig,
            "adapter_config.json",
        ),
    ];
    for (index, (field, value, kind, named)) in cases.into_iter().enumerate() {
        let id = index as i64 + 1;
        let failed = export(&worker, id, &server, |data| data[field] = value)
            .await
            .unwrap_err();
        assert_eq!(failed.failure_kind, Some(kind), "{failed:?}");
        assert!(failed.error.contains(named), "{failed:?}");
    }
    let failed = export(&worker, 9, &server, |data| {
        data["format"] = json!("gguf_lora");
        data["type"] = json!("q8_0");
    });
    let failed = failed.await.unwrap_err();
    assert!(
        failed.error.contains("q8_0 goes with gguf_merged only"),
        "{failed:?}"
    );
}

#[actix_rt::test]
async fn a_stop_ends_an_export_and_repeats_of_anything_are_harmless() {
    let permits = Arc::new(Semaphore::new(0));
    let server =
        TestServer::start_gated(permits.clone(), |_, request| adapter_file(&request.target)).await;
    let worker = worker_with_model();
    for id in [1, 1, 2] {
        worker.give(ask(id, &server, |_| {})).await;
    }
    assert_eq!(worker.activity.get().status(), WorkerStatus::Exporting);
    for id in [1, 1, 2, 3] {
        worker
            .give(TaskCommand::StopTask(ExportId(id).into()))
            .await;
    }
    worker.idle().await;
    for id in [1, 2, 3] {
        assert_eq!(ended(&worker, id).unwrap_err().error, "cancelled", "{id}");
    }
    permits.add_permits(10);
    worker.give(ask(1, &server, |_| {})).await;
    worker.idle().await;
    assert_eq!(worker.reports().len(), 3, "ended is ended");
}
