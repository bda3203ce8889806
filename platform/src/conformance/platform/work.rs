//! Chats and evaluations: what a worker is sent, and what becomes of its answers (source: `start_inference`,
//! `inference_tokens`, `inference_completed`, `start_evaluation`).

use serde_json::{Value, json};

use super::line::Line;
use super::yard::{BASE_MODEL, Worker, Yard};
use super::{Check, check};
use crate::conformance::report::{Outcome, excerpt, expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "start_inference.sent": "a chat that is asked for comes to an idle worker as start_inference with its inference_id", chat_sent),
    check!(required "start_inference.fields": "start_inference carries model_path, huggingface_id, download_urls, messages, system_prompt, temperature, max_tokens and stream", chat_fields),
    check!(required "inference.accepted": "inference_tokens and inference_completed are taken without an error", answer_taken),
    check!(recommended "inference.tokens_forwarded": "the tokens go to the dashboard of whoever asked", tokens_forwarded),
    check!(recommended "inference.end_forwarded": "inference_completed goes to the dashboard of whoever asked", end_forwarded),
    check!(recommended "stop_inference.sent": "a chat that is cancelled is stopped at the worker by stop_inference", stop_sent),
    check!(required "start_evaluation.sent": "an evaluation that is asked for comes to an idle worker as start_evaluation with its evaluation_id", evaluation_sent),
    check!(required "start_evaluation.fields": "start_evaluation carries model_url, dataset_url and metrics", evaluation_fields),
    check!(recommended "evaluation.end_forwarded": "evaluation_completed goes to the dashboard of whoever asked", evaluation_end_forwarded),
];

/// A chat that the only worker has been asked for.
struct Chat {
    worker: Worker,
    start: Value,
}

/// Asks for a chat and waits until the only worker is told.
async fn asked(yard: &mut Yard) -> Outcome<Chat> {
    let mut worker = yard.only_worker().await?;
    let body = json!({
        "model": BASE_MODEL,
        "messages": [{"role": "user", "content": "Explain gradient descent."}],
        "system_prompt": "You are a helpful ML tutor.",
        "temperature": 0.7,
        "max_tokens": 500
    });
    let answer = needed(yard.rest.post("api/inference", &body)).await?;
    let id = answer["inference_id"].clone();
    let expected = format!("start_inference with inference_id {id}");
    let wanted =
        |message: &Value| message["type"] == "start_inference" && message["inference_id"] == id;
    let start = worker
        .line
        .wait_for(&expected, yard.within(), wanted)
        .await?;
    Ok(Chat { worker, start })
}

impl Chat {
    fn say(&self, kind: &str, data: Value) {
        let id = &self.start["inference_id"];
        let message = json!({"type": kind, "inference_id": id, "data": data});
        self.worker.line.say(&message);
    }

    fn tokens(&self) {
        let tokens = ["Gradient", " descent", " is", " an", " optimization"];
        self.say("inference_tokens", json!({"tokens": tokens}));
    }

    fn completed(&self) {
        let metrics = json!({"ttft_ms": 125.3, "tps": 42.5, "total_time_ms": 6234.5});
        let data = json!({"tokens_generated": 5, "metrics": metrics});
        self.say("inference_completed", data);
    }

    /// Ends the chat and gives the worker back.
    fn finish(self, yard: &mut Yard) {
        self.completed();
        yard.give_back(self.worker);
    }
}

async fn chat_sent(yard: &mut Yard) -> Outcome {
    asked(yard).await?.finish(yard);
    Ok(())
}

async fn chat_fields(yard: &mut Yard) -> Outcome {
    let chat = needed(asked(yard)).await?;
    let start = chat.start.clone();
    chat.finish(yard);
    let data = &start["data"];
    let wanted = json!({
        "huggingface_id": BASE_MODEL,
        "messages": [{"role": "user", "content": "Explain gradient descent."}],
        "system_prompt": "You are a helpful ML tutor.",
        "temperature": 0.7,
        "max_tokens": 500
    });
    let as_asked = wanted
        .as_object()
        .into_iter()
        .flatten()
        .all(|(name, value)| data[name] == *value);
    let complete = start["inference_id"].is_string()
        && data.get("model_path").is_some()
        && data["download_urls"].is_array()
        && data["stream"].is_boolean();
    let expected = format!("model_path, download_urls, stream, and as asked {wanted}");
    expect(as_asked && complete, expected, || {
        excerpt(&start.to_string())
    })
}

async fn answer_taken(yard: &mut Yard) -> Outcome {
    let mut chat = needed(asked(yard)).await?;
    chat.tokens();
    chat.completed();
    let expected = "no error and no close";
    let quiet = yard.pace.quiet_for;
    let line = &mut chat.worker.line;
    line.stays_quiet(expected, quiet, |message| message["type"] == "error")
        .await?;
    yard.give_back(chat.worker);
    Ok(())
}

/// A chat with a dashboard of whoever asked for it.
async fn watched(yard: &mut Yard) -> Outcome<(Chat, Line)> {
    let dashboard = needed(yard.dashboard()).await?;
    Ok((needed(asked(yard)).await?, dashboard))
}

/// Waits until the dashboard is told of something of that type and id.
async fn told(dashboard: &mut Line, yard: &Yard, kind: &str, id: (&str, &Value)) -> Outcome<Value> {
    let expected = format!("{kind} with {} {}", id.0, id.1);
    let wanted = |message: &Value| message["type"] == kind && message[id.0] == *id.1;
    dashboard.wait_for(&expected, yard.within(), wanted).await
}

async fn tokens_forwarded(yard: &mut Yard) -> Outcome {
    let (chat, mut dashboard) = watched(yard).await?;
    chat.tokens();
    let id = ("inference_id", &chat.start["inference_id"].clone());
    chat.finish(yard);
    let told = told(&mut dashboard, yard, "inference_tokens", id).await?;
    expect(
        told["data"]["tokens"][0] == "Gradient",
        "the tokens that the worker sent",
        || excerpt(&told.to_string()),
    )
}

async fn end_forwarded(yard: &mut Yard) -> Outcome {
    let (chat, mut dashboard) = watched(yard).await?;
    let id = ("inference_id", &chat.start["inference_id"].clone());
    chat.finish(yard);
    told(&mut dashboard, yard, "inference_completed", id)
        .await
        .map(drop)
}

async fn stop_sent(yard: &mut Yard) -> Outcome {
    let mut chat = needed(asked(yard)).await?;
    let id = chat.start["inference_id"].clone();
    let path = format!("api/inference/{}", id.as_str().unwrap_or_default());
    needed(yard.rest.delete(&path)).await?;
    let expected = format!("stop_inference with inference_id {id}");
    let wanted =
        |message: &Value| message["type"] == "stop_inference" && message["inference_id"] == id;
    let line = &mut chat.worker.line;
    line.wait_for(&expected, yard.within(), wanted).await?;
    chat.finish(yard);
    Ok(())
}

/// Asks for an evaluation and waits until the only worker is told.
async fn evaluating(yard: &mut Yard) -> Outcome<(Worker, Value)> {
    let mut worker = yard.only_worker().await?;
    let body = json!({
        "model": BASE_MODEL, "dataset_id": yard.dataset().await?, "metrics": ["perplexity"]
    });
    let answer = needed(yard.rest.post("api/evaluations", &body)).await?;
    let id = answer["id"].clone();
    let expected = format!("start_evaluation with evaluation_id {id}");
    let wanted =
        |message: &Value| message["type"] == "start_evaluation" && message["evaluation_id"] == id;
    let start = worker
        .line
        .wait_for(&expected, yard.within(), wanted)
        .await?;
    Ok((worker, start))
}

/// Ends an evaluation and gives the worker back.
fn evaluated(yard: &mut Yard, worker: Worker, id: &Value) {
    worker.line.say(&json!({
        "type": "evaluation_completed", "evaluation_id": id, "data": {"metrics": {"perplexity": 12.5}}
    }));
    yard.give_back(worker);
}

async fn evaluation_sent(yard: &mut Yard) -> Outcome {
    let (worker, start) = evaluating(yard).await?;
    evaluated(yard, worker, &start["evaluation_id"]);
    Ok(())
}

async fn evaluation_fields(yard: &mut Yard) -> Outcome {
    let (worker, start) = needed(evaluating(yard)).await?;
    evaluated(yard, worker, &start["evaluation_id"]);
    let data = &start["data"];
    let is_text = |name: &str| data[name].as_str().is_some_and(|text| !text.is_empty());
    let complete = data.get("model_url").is_some()
        && is_text("dataset_url")
        && data["metrics"] == json!(["perplexity"]);
    let expected = "model_url, dataset_url and metrics [\"perplexity\"]";
    expect(complete, expected, || excerpt(&start.to_string()))
}

async fn evaluation_end_forwarded(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    let (worker, start) = needed(evaluating(yard)).await?;
    let id = ("evaluation_id", &start["evaluation_id"]);
    evaluated(yard, worker, id.1);
    told(&mut dashboard, yard, "evaluation_completed", id)
        .await
        .map(drop)
}
