//! Answers with a tiny model: what they are, how they are told, and how they end.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use trainyard_shared::message::{
    FromWorker, InferenceCompletedData, InferenceFailedData, ToWorker,
};
use trainyard_shared::{FailureKind, FinishReason, WorkerStatus, WorkerType};

use super::golden;
use super::harness::{DEADLINE, Worker, start_worker_with, worker_with_model};
use crate::tasks::transfers::test_server::{Reply, TestServer};
use crate::tasks::{FinishTasks, TaskCommand};

/// A `start_inference` of the tiny model, changed by `change` before it is read.
fn ask(id: &str, change: impl FnOnce(&mut Value)) -> TaskCommand {
    let mut frame = json!({
        "type": "start_inference", "inference_id": id,
        "data": {
            "model_path": null, "huggingface_id": "yard/tiny",
            "messages": [{"role": "user", "content": "what is cargo"}],
            "temperature": 0, "max_tokens": 24, "stream": true,
        }
    });
    change(&mut frame["data"]);
    match ToWorker::decode(&frame.to_string()).unwrap() {
        ToWorker::StartInference(start) => TaskCommand::StartInference(Box::new(start)),
        other => panic!("{other:?}"),
    }
}

fn stop(id: &str) -> TaskCommand {
    TaskCommand::StopInference(id.parse().unwrap())
}

/// How an answer has ended.
fn ended(worker: &Worker, id: &str) -> Result<InferenceCompletedData, InferenceFailedData> {
    let mut ends = worker
        .reports()
        .into_iter()
        .filter_map(|message| match message {
            FromWorker::InferenceCompleted(end) if end.inference_id.as_str() == id => {
                assert!(end.message_id.is_some());
                Some(Ok(end.data))
            }
            FromWorker::InferenceFailed(end) if end.inference_id.as_str() == id => {
                assert!(end.message_id.is_some());
                Some(Err(end.data))
            }
            _ => None,
        });
    let end = ends.next().unwrap_or_else(|| panic!("{id} has not ended"));
    assert!(ends.next().is_none(), "{id} has ended twice");
    end
}

fn completed(worker: &Worker, id: &str) -> InferenceCompletedData {
    ended(worker, id).unwrap_or_else(|failed| panic!("{failed:?}"))
}

fn failed(worker: &Worker, id: &str) -> InferenceFailedData {
    match ended(worker, id) {
        Err(failed) => failed,
        Ok(completed) => panic!("{completed:?}"),
    }
}

/// The tokens that wait to be sent, by answer.
fn tokens(worker: &Worker, id: &str) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(message) = worker.tokens.next() {
        let FromWorker::InferenceTokens(tokens) = message else {
            panic!("{message:?}");
        };
        if tokens.inference_id.as_str() == id {
            all.extend(tokens.data.tokens);
        }
    }
    all
}

/// Asks and waits for the end.
pub(super) async fn answer(
    worker: &Worker,
    id: &str,
    change: impl FnOnce(&mut Value),
) -> InferenceCompletedData {
    worker.give(ask(id, change)).await;
    worker.idle().await;
    completed(worker, id)
}

/// Serves the golden adapter, each answer for one permit; gives the `download_urls` too.
async fn adapter_server(variant: &str, permits: Arc<Semaphore>) -> (TestServer, Value) {
    let folder = golden::path(variant).join("adapter");
    let names = ["adapter_config.json", "adapter_model.safetensors"];
    let server = TestServer::start_gated(permits, {
        let folder = folder.clone();
        move |_, request| {
            Reply::new(
                200,
                fs::read(folder.join(request.target.trim_start_matches('/'))).unwrap(),
            )
        }
    })
    .await;
    let urls = names.map(|name| {
        let content = fs::read(folder.join(name)).unwrap();
        json!({
            "key": name, "url": server.url(&format!("/{name}")),
            "sha256": hex::encode(Sha256::digest(&content)), "size_bytes": content.len(),
        })
    });
    (server, json!(urls))
}

fn free() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(Semaphore::MAX_PERMITS))
}

#[actix_rt::test]
async fn g091_greedy_answers_are_identical_and_the_streamed_tokens_are_the_whole_text() {
    let worker = worker_with_model();
    let first = answer(&worker, "a", |_| {}).await;
    let streamed = tokens(&worker, "a");
    assert_eq!(streamed.concat(), first.text.clone().unwrap());
    assert_eq!(Some(streamed.len() as u64), first.tokens_generated);
    assert_eq!(first.tokens_generated, Some(24));
    assert_eq!(first.finish_reason, Some(FinishReason::Length));
    assert!(first.prompt_tokens.unwrap() > 10);
    let metrics = &first.metrics;
    assert!(metrics.ttft_ms.unwrap() >= 0.0 && metrics.tps.unwrap() > 0.0);
    assert!(metrics.total_time_ms.unwrap() >= metrics.ttft_ms.unwrap());

    let second = answer(&worker, "b", |data| data["stream"] = json!(false)).await;
    assert_eq!(second.text, first.text);
    assert!(tokens(&worker, "b").is_empty(), "not streamed");
}

#[actix_rt::test]
async fn g094_no_tokens_asked_for_are_no_tokens_given_and_no_figure_is_nan() {
    let worker = worker_with_model();
    let nothing = answer(&worker, "a", |data| data["max_tokens"] = json!(0)).await;
    assert_eq!(nothing.tokens_generated, Some(0));
    assert_eq!(nothing.text.as_deref(), Some(""));
    assert_eq!(nothing.finish_reason, Some(FinishReason::Length));
    let written = serde_json::to_value(&nothing.metrics).unwrap();
    assert_eq!(
        (&written["ttft_ms"], &written["tps"]),
        (&Value::Null, &Value::Null)
    );
    assert!(tokens(&worker, "a").is_empty());
}

#[actix_rt::test]
async fn a_stop_string_ends_the_answer_before_it_and_is_never_streamed() {
    let worker = worker_with_model();
    let sampled = |seed: u64| {
        move |data: &mut Value| {
            data["temperature"] = json!(1);
            data["seed"] = json!(seed);
            data["max_tokens"] = json!(60);
        }
    };
    let mut seed = 0;
    // Some of a random model's tokens are control tokens without a text.
    let whole = loop {
        let id = format!("whole-{seed}");
        let text = answer(&worker, &id, sampled(seed)).await.text.unwrap();
        if text.len() >= 20 {
            break text;
        }
        seed += 1;
    };
    let stop = &whole[6..9];
    let at = whole.find(stop).unwrap();
    tokens(&worker, "none");
    let cut = answer(&worker, "b", |data| {
        sampled(seed)(data);
        data["stop"] = json!([stop]);
    })
    .await;
    assert_eq!(cut.text.as_deref(), Some(&whole[..at]));
    assert_eq!(cut.finish_reason, Some(FinishReason::Stop));
    let streamed = tokens(&worker, "b");
    assert_eq!(streamed.concat(), whole[..at]);
    assert_eq!(Some(streamed.len() as u64), cut.tokens_generated);
}

#[actix_rt::test]
async fn several_answers_at_once_with_other_adapters_are_what_each_would_be_alone() {
    let (server, urls) = adapter_server("tied", free()).await;
    let with_adapter = |data: &mut Value| {
        data["model_path"] = json!("models/job-7/final/");
        data["download_urls"] = urls.clone();
    };
    let other_question = |data: &mut Value| data["messages"][0]["content"] = json!("ahoy");
    let alone = worker_with_model();
    let plain = answer(&alone, "plain", |_| {}).await.text;
    let adapted = answer(&alone, "adapted", with_adapter).await.text;
    let other = answer(&alone, "other", other_question).await.text;
    assert_ne!(plain, adapted);
    let fetched = server.requests().len();
    assert_eq!(fetched, 2);
    answer(&alone, "again", with_adapter).await;
    assert_eq!(server.requests().len(), fetched, "known by its digest");

    let together = worker_with_model();
    together.give(ask("plain", |_| {})).await;
    together.give(ask("adapted", with_adapter)).await;
    together.give(ask("other", other_question)).await;
    together.idle().await;
    assert_eq!(completed(&together, "plain").text, plain);
    assert_eq!(completed(&together, "adapted").text, adapted);
    assert_eq!(completed(&together, "other").text, other);
}

#[actix_rt::test]
async fn g092_a_stop_ends_a_running_answer_with_what_it_has_and_the_worker_is_free() {
    let worker = worker_with_model();
    worker.put_model("yard/long", "tied", |config| {
        config["max_position_embeddings"] = json!(1_000_000);
        config["eos_token_id"] = json!(127);
    });
    worker
        .give(ask("a", |data| {
            data["huggingface_id"] = json!("yard/long");
            data["max_tokens"] = json!(900_000);
        }))
        .await;
    assert_eq!(worker.activity.get().status(), WorkerStatus::Inference);
    let mut seen = Vec::new();
    let some = async {
        while seen.len() < 5 {
            seen.extend(tokens(&worker, "a"));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(DEADLINE, some).await.expect("tokens come");
    worker.give(stop("a")).await;
    worker.give(stop("a")).await;
    worker.idle().await;
    let end = completed(&worker, "a");
    assert_eq!(end.finish_reason, Some(FinishReason::Cancelled));
    seen.extend(tokens(&worker, "a"));
    assert_eq!(Some(seen.len() as u64), end.tokens_generated);
    assert_eq!(seen.concat(), end.text.unwrap());
    worker.give(stop("a")).await;
    worker.give(ask("a", |_| {})).await;
    worker.idle().await;
    assert_eq!(worker.reports().len(), 1, "ended is ended");
}

#[actix_rt::test]
async fn g093_answers_that_wait_are_cancelled_before_they_start_and_the_others_run() {
    let permits = Arc::new(Semaphore::new(0));
    let (server, urls) = adapter_server("tied", permits.clone()).await;
    let worker = worker_with_model();
    for index in 0..20 {
        let urls = urls.clone();
        let command = ask(&format!("a{index}"), move |data| {
            data["model_path"] = json!("models/job-7/final/");
            data["download_urls"] = urls;
        });
        worker.give(command).await;
    }
    for id in ["a0", "a17", "a18", "a19"] {
        worker.give(stop(id)).await;
    }
    permits.add_permits(1000);
    worker.idle().await;
    for index in 0..20 {
        let end = completed(&worker, &format!("a{index}"));
        let is_cancelled = [0, 17, 18, 19].contains(&index);
        let expected = if is_cancelled { 0 } else { 24 };
        assert_eq!(end.tokens_generated, Some(expected), "a{index}");
        assert_eq!(
            end.finish_reason == Some(FinishReason::Cancelled),
            is_cancelled,
            "a{index}"
        );
    }
    drop(server);
}

#[actix_rt::test]
async fn what_cannot_be_answered_fails_and_the_field_or_the_reason_is_named() {
    let worker = worker_with_model();
    let cases: [(&str, FailureKind, &str, Value); 6] = [
        (
            "temperature",
            FailureKind::BadConfig,
            "temperature",
            json!(-1),
        ),
        ("messages", FailureKind::BadConfig, "messages", json!([])),
        (
            "messages",
            FailureKind::BadConfig,
            "messages",
            json!([{"role": "user", "content": "x".repeat(5000)}]),
        ),
        (
            "huggingface_id",
            FailureKind::ModelUnavailable,
            "yard/not-here",
            json!("yard/not-here"),
        ),
        (
            "huggingface_id",
            FailureKind::ModelUnavailable,
            "../x",
            json!("../x"),
        ),
        (
            "model_path",
            FailureKind::Download,
            "models/job-7/final/adapter_config.json",
            json!("models/job-7/final/"),
        ),
    ];
    for (index, (field, kind, named, value)) in cases.into_iter().enumerate() {
        let id = format!("a{index}");
        worker.give(ask(&id, |data| data[field] = value)).await;
        worker.idle().await;
        let failure = failed(&worker, &id);
        assert_eq!(failure.failure_kind, Some(kind), "{failure:?}");
        assert!(failure.error.contains(named), "{failure:?}");
    }
    answer(&worker, "good", |_| {}).await;
}

#[actix_rt::test]
async fn g054_a_cut_adapter_fails_its_answer_by_name_and_is_fetched_afresh_by_the_next() {
    let folder = golden::path("tied").join("adapter");
    let whole = fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let weights = whole.len();
    let cuts = [0, 7, 8, 100, weights / 2, weights - 1];
    let served = std::sync::Mutex::new(cuts.into_iter());
    let server = TestServer::start(move |_, request| {
        let name = request.target.trim_start_matches('/');
        let content = fs::read(folder.join(name)).unwrap();
        let is_config = name == "adapter_config.json";
        let cut = if is_config {
            None
        } else {
            served.lock().unwrap().next()
        };
        Reply::new(200, content[..cut.unwrap_or(content.len())].to_vec())
    })
    .await;
    let urls = ["adapter_config.json", "adapter_model.safetensors"]
        .map(|name| json!({"key": name, "url": server.url(&format!("/{name}"))}));
    let worker = worker_with_model();
    let with_adapter = |data: &mut Value| {
        data["model_path"] = json!("models/job-7/final/");
        data["download_urls"] = json!(urls);
    };
    for cut in cuts {
        let id = format!("cut-{cut}");
        worker.give(ask(&id, with_adapter)).await;
        worker.idle().await;
        let error = failed(&worker, &id).error;
        assert!(
            error.contains("adapter_model.safetensors") && error.contains("corrupt"),
            "{error}"
        );
    }
    answer(&worker, "whole", with_adapter).await;
}

#[actix_rt::test]
async fn an_adapter_of_another_model_fails_its_answer_and_no_other() {
    let (_server, mut urls) = adapter_server("tied", free()).await;
    let worker = worker_with_model();
    worker.put_model("yard/narrow", "untied", |_| {});
    let incomplete = json!([urls[0].clone()]);
    worker
        .give(ask("incomplete", |data| {
            data["model_path"] = json!("models/job-7/final/");
            data["download_urls"] = incomplete;
        }))
        .await;
    worker.idle().await;
    let failure = failed(&worker, "incomplete");
    assert_eq!(
        failure.error,
        "download_urls: adapter_model.safetensors is missing"
    );
    urls[1]["sha256"] = json!("0".repeat(64));
    worker
        .give(ask("wrong", |data| {
            data["model_path"] = json!("models/job-7/final/");
            data["download_urls"] = urls;
        }))
        .await;
    worker.idle().await;
    assert_eq!(
        failed(&worker, "wrong").failure_kind,
        Some(FailureKind::Download)
    );
}

#[actix_rt::test]
async fn a_worker_for_training_refuses_and_a_stop_for_what_is_not_here_is_answered() {
    let worker = start_worker_with(|config| config.worker_type = WorkerType::Training);
    worker.give(ask("a", |_| {})).await;
    let failure = failed(&worker, "a");
    assert_eq!(failure.failure_kind, Some(FailureKind::NotStarted));
    assert!(failure.error.contains("WORKER_TYPE"), "{failure:?}");
    worker.give(stop("b")).await;
    let end = completed(&worker, "b");
    assert_eq!(end.finish_reason, Some(FinishReason::Cancelled));
    assert_eq!(end.tokens_generated, Some(0));
}

#[actix_rt::test]
async fn a_shutdown_ends_answers_and_takes_no_more() {
    let worker = worker_with_model();
    worker.put_model("yard/long", "tied", |config| {
        config["max_position_embeddings"] = json!(1_000_000);
        config["eos_token_id"] = json!(127);
    });
    worker
        .give(ask("a", |data| {
            data["huggingface_id"] = json!("yard/long");
            data["max_tokens"] = json!(900_000);
        }))
        .await;
    timeout(DEADLINE, worker.tasks.send(FinishTasks))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        failed(&worker, "a").failure_kind,
        Some(FailureKind::WorkerRestarted)
    );
    worker.give(ask("b", |_| {})).await;
    assert!(failed(&worker, "b").error.contains("shutting down"));
}
