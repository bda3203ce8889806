//! Evaluations with a tiny model: their figures, their progress, and how they end.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use trainyard_shared::ids::EvaluationId;
use trainyard_shared::message::{EvaluationMetrics, FromWorker, TaskFailedData, ToWorker};
use trainyard_shared::{FailureKind, WorkerStatus, WorkerType};

use super::golden;
use super::harness::{Worker, start_worker_with, worker_with_model};
use crate::tasks::TaskCommand;
use crate::tasks::transfers::test_server::{Reply, TestServer};

fn rows() -> String {
    (0..9)
        .map(|row| {
            format!(
                "{{\"text\":\"row {row} of {}\"}}\n",
                "the cargo ".repeat(row)
            )
        })
        .collect()
}

async fn data_server() -> TestServer {
    TestServer::start(|_, request| {
        let adapter = golden::path("tied").join("adapter");
        match request.target.strip_prefix("/adapter/") {
            Some(name) => Reply::new(200, fs::read(adapter.join(name)).unwrap()),
            None => Reply::new(200, rows()),
        }
    })
    .await
}

/// A `start_evaluation` of the tiny model, changed by `change` before it is read.
fn ask(id: i64, server: &TestServer, change: impl FnOnce(&mut Value)) -> TaskCommand {
    let mut frame = json!({
        "type": "start_evaluation", "evaluation_id": id,
        "data": {
            "model_url": null, "dataset_url": "datasets/43/eval.jsonl",
            "metrics": ["perplexity", "loss", "token_accuracy"],
            "base_model": {"huggingface_id": "yard/tiny"},
            "dataset": {"storage_path": "datasets/43/eval.jsonl", "format": "jsonl", "id": 43,
                        "download_url": server.url("/data"),
                        "sha256": hex::encode(Sha256::digest(rows()))},
        }
    });
    change(&mut frame["data"]);
    match ToWorker::decode(&frame.to_string()).unwrap() {
        ToWorker::StartEvaluation(start) => TaskCommand::StartTask(Box::new(start.into())),
        other => panic!("{other:?}"),
    }
}

fn ended(worker: &Worker, id: i64) -> Result<EvaluationMetrics, TaskFailedData> {
    let mut ends = worker
        .reports()
        .into_iter()
        .filter_map(|message| match message {
            FromWorker::EvaluationCompleted(end) if end.evaluation_id.get() == id => {
                Some(Ok(end.data.metrics))
            }
            FromWorker::EvaluationFailed(end) if end.evaluation_id.get() == id => {
                Some(Err(end.data))
            }
            _ => None,
        });
    let end = ends.next().unwrap_or_else(|| panic!("{id} has not ended"));
    assert!(ends.next().is_none(), "{id} has ended twice");
    end
}

async fn measure(
    worker: &Worker,
    id: i64,
    server: &TestServer,
    change: impl FnOnce(&mut Value),
) -> EvaluationMetrics {
    worker.give(ask(id, server, change)).await;
    worker.idle().await;
    ended(worker, id).unwrap_or_else(|failed| panic!("{failed:?}"))
}

async fn fail(
    worker: &Worker,
    id: i64,
    server: &TestServer,
    change: impl FnOnce(&mut Value),
) -> TaskFailedData {
    worker.give(ask(id, server, change)).await;
    worker.idle().await;
    match ended(worker, id) {
        Err(failed) => failed,
        Ok(metrics) => panic!("{metrics:?}"),
    }
}

#[actix_rt::test]
async fn g095_figures_do_not_depend_on_the_batch_size() {
    let server = data_server().await;
    let worker = worker_with_model();
    let one = measure(&worker, 1, &server, |data| data["batch_size"] = json!(1)).await;
    let four = measure(&worker, 2, &server, |data| data["batch_size"] = json!(4)).await;
    assert_eq!(one, four);
    let loss = one.loss.unwrap();
    assert_eq!(one.perplexity, Some(loss.exp()));
    assert!(one.tokens.unwrap() > 100);
    assert!((0.0..=1.0).contains(&one.token_accuracy.unwrap()));
    let only = measure(&worker, 3, &server, |data| {
        data["metrics"] = json!(["loss"])
    })
    .await;
    assert_eq!((only.loss, only.perplexity), (Some(loss), None));
    assert_eq!(server.requests().len(), 1, "the data set is fetched once");
}

#[actix_rt::test]
async fn an_adapter_changes_the_figures_and_names_its_base_model_in_the_plain_form() {
    let server = data_server().await;
    let worker = worker_with_model();
    let plain = measure(&worker, 1, &server, |_| {}).await;
    let urls = json!([
        {"key": "models/job-7/final/adapter_config.json", "url": server.url("/adapter/adapter_config.json")},
        {"key": "models/job-7/final/adapter_model.safetensors", "url": server.url("/adapter/adapter_model.safetensors")},
    ]);
    let adapted = measure(&worker, 2, &server, |data| {
        data["model_url"] = json!("models/job-7/final/");
        data["download_urls"] = urls.clone();
    })
    .await;
    assert_ne!(plain.loss, adapted.loss);
    assert_eq!(plain.tokens, adapted.tokens);

    let folder = golden::path("tied").join("adapter/adapter_config.json");
    let config: Value = serde_json::from_slice(&fs::read(folder).unwrap()).unwrap();
    let base = config["base_model_name_or_path"]
        .as_str()
        .unwrap_or_default();
    let failed = fail(&worker, 3, &server, |data| {
        data["base_model"] = Value::Null;
        data["model_url"] = json!("models/job-7/final/");
        data["download_urls"] = urls;
    })
    .await;
    let expected = if base.is_empty() { "base_model" } else { base };
    assert!(failed.error.contains(expected), "{failed:?}");
}

#[actix_rt::test]
async fn a_base_model_may_be_named_in_either_place_or_both() {
    let server = data_server().await;
    let worker = worker_with_model();
    let plain = measure(&worker, 1, &server, |_| {}).await;
    let both = measure(&worker, 2, &server, |data| {
        data["model_url"] = json!("yard/tiny")
    })
    .await;
    let only = measure(&worker, 3, &server, |data| {
        data["model_url"] = json!("yard/tiny");
        data["base_model"] = Value::Null;
    })
    .await;
    assert_eq!((&both, &only), (&plain, &plain));
}

#[actix_rt::test]
async fn what_cannot_be_measured_fails_and_the_field_or_the_reason_is_named() {
    let server = data_server().await;
    let worker = worker_with_model();
    let cases: [(&str, Value, FailureKind, &str); 6] = [
        (
            "metrics",
            json!(["bleu"]),
            FailureKind::BadConfig,
            "metrics: `bleu`",
        ),
        ("metrics", json!([]), FailureKind::BadConfig, "metrics"),
        ("batch_size", json!(0), FailureKind::BadConfig, "batch_size"),
        ("dataset", Value::Null, FailureKind::BadConfig, "dataset"),
        (
            "base_model",
            Value::Null,
            FailureKind::BadConfig,
            "base_model",
        ),
        (
            "base_model",
            json!({"huggingface_id": "yard/not-here"}),
            FailureKind::ModelUnavailable,
            "yard/not-here",
        ),
    ];
    for (index, (field, value, kind, named)) in cases.into_iter().enumerate() {
        let id = index as i64 + 1;
        let failed = fail(&worker, id, &server, |data| data[field] = value).await;
        assert_eq!(failed.failure_kind, Some(kind), "{failed:?}");
        assert!(failed.error.contains(named), "{failed:?}");
    }
    let bad = TestServer::start(|_, _| Reply::new(200, "{\"text\":\"a\"}\n{\"foo\":1}\n")).await;
    let failed = fail(&worker, 20, &server, |data| {
        data["dataset"]["download_url"] = json!(bad.url("/data"));
        data["dataset"]["sha256"] = Value::Null;
    })
    .await;
    assert_eq!(failed.failure_kind, Some(FailureKind::BadData));
    assert!(failed.error.contains("line 2"), "{failed:?}");
}

#[actix_rt::test]
async fn a_stop_ends_an_evaluation_and_repeats_of_anything_are_harmless() {
    let permits = Arc::new(Semaphore::new(0));
    let server = TestServer::start_gated(permits.clone(), |_, _| Reply::new(200, rows())).await;
    let worker = worker_with_model();
    worker.give(ask(1, &server, |_| {})).await;
    worker.give(ask(1, &server, |_| {})).await;
    worker.give(ask(2, &server, |_| {})).await;
    assert_eq!(worker.activity.get().status(), WorkerStatus::Evaluating);
    for id in [1, 1, 2, 3] {
        worker
            .give(TaskCommand::StopTask(EvaluationId(id).into()))
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

#[actix_rt::test]
async fn a_worker_for_training_measures_nothing() {
    let server = data_server().await;
    let worker = start_worker_with(|config| config.worker_type = WorkerType::Training);
    let failed = fail(&worker, 1, &server, |_| {}).await;
    assert_eq!(failed.failure_kind, Some(FailureKind::NotStarted));
}
