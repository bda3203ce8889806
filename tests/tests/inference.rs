//! Chats with, and evaluations of, what a real worker has trained.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::yard::{Yard, asked};

/// The events of a stream that has ended.
fn events(stream: &str) -> Vec<Value> {
    stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect()
}

#[tokio::test]
async fn a_trained_adapter_answers_as_it_was_taught_and_its_base_model_does_not() {
    let yard = Yard::with_a_trained_job().await;
    let taught = yard
        .answer(&yard.adapter(), json!({"max_tokens": 16}))
        .await;
    assert_eq!(taught["text"], "aye aye", "{taught}");
    assert_eq!(taught["finish_reason"], "stop");
    assert_eq!(taught["tokens_generated"], 7);
    assert!(taught["prompt_tokens"].as_u64().expect("a count") > 10);
    assert!(taught["metrics"]["ttft_ms"].as_f64().expect("a time") > 0.0);
    let base = yard.answer(TINY_MODEL_ID, json!({"max_tokens": 16})).await;
    assert_ne!(base["text"], taught["text"]);

    // The same as a stream: its tokens joined are the text.
    let body = asked(&yard.adapter(), json!({"max_tokens": 16, "stream": true}));
    let request = yard
        .admin
        .request(Method::POST, "/api/inference")
        .json(&body);
    let stream = request.send().await.expect("an answer").text().await;
    let events = events(&stream.expect("the stream is whole"));
    let streamed: String = events
        .iter()
        .filter(|event| event["type"] == "inference_tokens")
        .flat_map(|event| event["data"]["tokens"].as_array().expect("tokens").clone())
        .map(|token| token.as_str().expect("text").to_owned())
        .collect();
    assert_eq!(streamed, "aye aye");
    assert_eq!(events.last().expect("an end")["data"]["text"], "aye aye");
}

#[tokio::test]
async fn several_chats_at_once_with_adapter_and_base_are_answered_as_each_alone() {
    let yard = Yard::with_a_trained_job().await;
    let (adapter, sampled) = (
        yard.adapter(),
        json!({"max_tokens": 24, "temperature": 1.0, "seed": 7}),
    );
    let alone = [
        yard.answer(&adapter, json!({"max_tokens": 24})).await,
        yard.answer(TINY_MODEL_ID, json!({"max_tokens": 24})).await,
        yard.answer(TINY_MODEL_ID, sampled.clone()).await,
    ];
    let (a, b, c, d, e, f) = tokio::join!(
        yard.answer(&adapter, json!({"max_tokens": 24})),
        yard.answer(TINY_MODEL_ID, json!({"max_tokens": 24})),
        yard.answer(TINY_MODEL_ID, sampled.clone()),
        yard.answer(&adapter, json!({"max_tokens": 24})),
        yard.answer(TINY_MODEL_ID, json!({"max_tokens": 24})),
        yard.answer(TINY_MODEL_ID, sampled),
    );
    for (together, alone) in [a, b, c, d, e, f].iter().zip(alone.iter().cycle()) {
        assert_eq!(together["text"], alone["text"]);
    }
}

#[tokio::test]
async fn g091_g094_greedy_answers_repeat_and_no_tokens_are_an_answer() {
    let yard = Yard::with_a_trained_job().await;
    let greedy = json!({"max_tokens": 8});
    let first = yard.answer(TINY_MODEL_ID, greedy.clone()).await;
    let second = yard.answer(TINY_MODEL_ID, greedy).await;
    assert_eq!(first["text"], second["text"]);
    let nothing = yard.answer(TINY_MODEL_ID, json!({"max_tokens": 0})).await;
    assert_eq!(nothing["text"], "");
    assert_eq!(nothing["tokens_generated"], 0);
    assert!(nothing["metrics"]["ttft_ms"].is_null(), "{nothing}");
}

#[tokio::test]
async fn g092_g093_a_client_that_goes_away_frees_its_worker_within_a_second() {
    let yard = Yard::with_a_trained_job().await;
    let mut dashboard = yard.platform.dashboard(&yard.admin).await;
    // A chat so long that it is still being read when the client goes away, and one that is being answered.
    let long = "x".repeat(1_500);
    for messages in [
        json!([{"role": "user", "content": long}]),
        json!([{"role": "user", "content": "load car 3"}]),
    ] {
        let more = json!({
            "stream": true, "max_tokens": 500, "temperature": 1.0, "seed": 1, "messages": messages
        });
        let request = yard
            .admin
            .request(Method::POST, "/api/inference")
            .json(&asked(TINY_MODEL_ID, more));
        let response = request.send().await.expect("an answer");
        let id = response.headers()["x-inference-id"]
            .to_str()
            .expect("text")
            .to_owned();
        let mut body = response.bytes_stream();
        body.next().await.expect("a beginning").expect("bytes");
        drop(body);
        let gone = Instant::now();
        let (end, _) = dashboard
            .receive_until(|message| {
                message["inference_id"] == id.as_str() && message["type"] == "inference_completed"
            })
            .await;
        let reason = end["data"]["finish_reason"].as_str().expect("a reason");
        assert!(["cancelled", "stop"].contains(&reason), "{end}");
        // Generous beside the second that is promised: the machine may be busy with other tests.
        assert!(
            gone.elapsed() < Duration::from_secs(20),
            "{:?}",
            gone.elapsed()
        );
        yard.worker.ready(&yard.admin).await;
    }
    let (path, body) = (
        "/api/inference",
        asked(TINY_MODEL_ID, json!({"max_tokens": 4})),
    );
    let id = yard.admin.post(path, body).await.ok()["inference_id"].clone();
    let (_, passed) = dashboard
        .receive_until(|message| {
            message["type"] == "inference_completed" && message["inference_id"] == id
        })
        .await;
    for message in passed {
        let kind = message["type"].as_str().expect("a type");
        assert!(
            !kind.starts_with("inference") || message["inference_id"] == id,
            "{message}"
        );
    }
}

#[tokio::test]
async fn an_answer_whose_worker_dies_ends_with_a_reason() {
    let mut yard = Yard::with_a_trained_job().await;
    let more = json!({"stream": true, "max_tokens": 1_900, "temperature": 1.0, "seed": 1, "repetition_penalty": 1.1});
    let request = yard
        .admin
        .request(Method::POST, "/api/inference")
        .json(&asked(TINY_MODEL_ID, more));
    let response = request.send().await.expect("an answer");
    let mut body = response.bytes_stream();
    let mut text = String::new();
    let mut is_killed = false;
    while let Some(piece) = body.next().await {
        text.push_str(&String::from_utf8_lossy(&piece.expect("bytes")));
        if !is_killed && text.contains("inference_tokens") {
            yard.worker.crash_and_restart().await;
            is_killed = true;
        }
    }
    let events = events(&text);
    let end = events.last().expect("an end");
    // The answer may have been whole before the worker died.
    if end["type"] == "inference_failed" {
        let error = end["data"]["error"].as_str().expect("a reason");
        assert!(error.contains("lost"), "{error}");
    } else {
        assert_eq!(end["type"], "inference_completed", "{end}");
    }
    // The worker is of use again.
    let again = yard
        .answer(&yard.adapter(), json!({"max_tokens": 16}))
        .await;
    assert_eq!(again["text"], "aye aye");
}

#[tokio::test]
async fn an_evaluation_measures_a_job_and_its_base_whatever_the_batch() {
    let yard = Yard::with_a_trained_job().await;
    let trained = yard
        .evaluation(json!({"job_id": yard.job_id, "batch_size": 1}))
        .await;
    let base = yard
        .evaluation(json!({"model": TINY_MODEL_ID, "batch_size": 7}))
        .await;
    let again = yard
        .evaluation(json!({"job_id": yard.job_id, "batch_size": 7}))
        .await;
    let figure = |evaluation: &Value, name: &str| {
        evaluation["result"][name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name} in {evaluation}"))
    };
    assert!(figure(&trained, "loss") < figure(&base, "loss") * 0.5);
    assert!(figure(&trained, "token_accuracy") > figure(&base, "token_accuracy"));
    let difference = figure(&trained, "perplexity") - figure(&again, "perplexity");
    assert!(difference.abs() < 1e-4, "{trained} {again}");
    let of_loss = figure(&trained, "loss").exp();
    assert!((figure(&trained, "perplexity") - of_loss).abs() < 1e-6 * of_loss);
    assert_eq!(trained["result"]["tokens"], again["result"]["tokens"]);
    assert!(
        trained["progress"].is_null() && trained["worker_id"].is_i64(),
        "{trained}"
    );
    let only = yard
        .evaluation(json!({"job_id": yard.job_id, "metrics": ["perplexity"]}))
        .await;
    assert!(only["result"]["loss"].is_null(), "{only}");
}

#[tokio::test]
async fn chat_and_evaluate_commands_print_what_came_of_them() {
    let yard = Yard::with_a_trained_job().await;
    let job = yard.job_id.to_string();
    let turn = [
        "chat",
        "--job",
        &job,
        "-m",
        "load car 3",
        "--temperature",
        "0",
    ];
    assert_eq!(yard.command(&turn).await, "aye aye\n");
    let as_json = yard.command(&[turn.as_slice(), &["--json"]].concat()).await;
    let last = as_json.lines().last().expect("an end");
    let end: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(end["data"]["text"], "aye aye");

    let dataset = yard.dataset_id.to_string();
    let measured = [
        "evaluate",
        "--job",
        &job,
        "--dataset",
        &dataset,
        "--metrics",
        "loss,perplexity",
    ];
    let words = yard.command(&measured).await;
    assert!(
        words.contains("perplexity") && words.contains("completed"),
        "{words}"
    );
    let as_json = yard
        .command(&[measured.as_slice(), &["--json"]].concat())
        .await;
    let evaluation: Value = serde_json::from_str(&as_json).expect("JSON");
    assert!(
        evaluation["result"]["loss"].as_f64().is_some(),
        "{evaluation}"
    );
}
