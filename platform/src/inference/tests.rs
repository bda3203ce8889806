//! Inference over real sockets, with workers and clients played by hand.

mod loss;
mod rights;
mod waiting;

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::placement::SLOTS;
use crate::testing::serving::{ask, events};
use crate::testing::sockets::TestWorker;
use crate::testing::{Platform, Session};

const QUIET: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

async fn asked(user: &Session<'_>, more: Value) -> String {
    let (status, accepted) = user.post("/api/inference", ask(more)).await;
    assert_eq!(status, 202, "{accepted}");
    accepted["inference_id"].as_str().unwrap().to_owned()
}

async fn shown_as(user: &Session<'_>, id: &str, status: &str) -> Value {
    user.wait(&format!("/api/inference/{id}"), |shown| {
        shown["status"] == status
    })
    .await
}

fn joined(message: &Value) -> String {
    let tokens = message["data"]["tokens"].as_array().unwrap();
    tokens.iter().map(|token| token.as_str().unwrap()).collect()
}

/// Promise P11.
#[actix_web::test]
async fn an_answer_reaches_who_asked_and_administrators_and_nobody_else() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let other = platform.user("other@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut own = member.dashboard().await;
    let mut of_admin = admin.dashboard().await;
    let mut of_other = other.dashboard().await;

    let id = asked(
        &member,
        json!({
            "system_prompt": "S", "temperature": 0, "max_tokens": 5, "top_p": 0.5, "top_k": 3,
            "repetition_penalty": 1.5, "seed": 7, "stop": "END"
        }),
    )
    .await;
    let start = worker.socket.receive("start_inference").await;
    assert_eq!(start["inference_id"], id.as_str());
    let data = &start["data"];
    assert_eq!(data["huggingface_id"], "yard/tiny");
    assert!(data["model_path"].is_null());
    assert_eq!(data["messages"], json!([{"role": "user", "content": "hi"}]));
    assert_eq!(data["system_prompt"], "S");
    assert_eq!(
        (&data["temperature"], &data["max_tokens"]),
        (&json!(0.0), &json!(5))
    );
    assert_eq!((&data["top_p"], &data["top_k"]), (&json!(0.5), &json!(3)));
    assert_eq!(data["repetition_penalty"], 1.5);
    assert_eq!((&data["seed"], &data["stop"]), (&json!(7), &json!(["END"])));
    assert_eq!(data["stream"], false);
    admin.wait_for_worker(worker.id, "inference").await;

    worker.tokens(&id, &["Gra", "dient"]).await;
    for dashboard in [&mut own, &mut of_admin] {
        let tokens = dashboard.receive("inference_tokens").await;
        assert_eq!(tokens["inference_id"], id.as_str());
        assert_eq!(joined(&tokens), "Gradient");
    }
    worker
        .complete(
            &id,
            json!({
                "tokens_generated": 3, "prompt_tokens": 9, "text": "Gradient descent", "finish_reason": "length",
                "metrics": {"ttft_ms": 125.3, "tps": 42.5, "total_time_ms": 6234.5}
            }),
        )
        .await;
    for dashboard in [&mut own, &mut of_admin] {
        let completed = dashboard.receive("inference_completed").await;
        assert_eq!(completed["data"]["text"], "Gradient descent");
        assert_eq!(completed["data"]["metrics"]["ttft_ms"], 125.3);
    }
    let shown = shown_as(&member, &id, "completed").await;
    assert_eq!(shown["text"], "Gradient descent");
    assert_eq!(
        (&shown["tokens_generated"], &shown["prompt_tokens"]),
        (&json!(3), &json!(9))
    );
    assert_eq!(shown["finish_reason"], "length");
    assert_eq!(shown["worker_id"], worker.id);
    admin.wait_for_worker(worker.id, "idle").await;

    for stranger in [&other, &viewer] {
        let path = format!("/api/inference/{id}");
        assert_eq!(stranger.get(&path).await.0, 404);
        assert_eq!(stranger.delete(&path).await.0, 404);
    }
    assert_eq!(viewer.post("/api/inference", ask(json!({}))).await.0, 403);
    of_other
        .send(json!({"type": "subscribe_job", "job_id": 99}))
        .await;
    let passed = of_other
        .collect_until(|message| message["type"] == "error")
        .await;
    assert!(
        passed
            .iter()
            .all(|message| !message["type"].as_str().unwrap().starts_with("inference"))
    );
}

#[actix_web::test]
async fn a_stream_joined_is_the_whole_text() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let request = admin
        .request(Method::POST, "/api/inference")
        .json(&ask(json!({"stream": true})));
    let answering = async {
        let id = worker.take_inference().await;
        worker.tokens(&id, &["a\n", "\n\u{1f60a}"]).await;
        worker.tokens(&id, &["", "c"]).await;
        worker
            .complete(
                &id,
                json!({"tokens_generated": 5, "text": "a\n\n\u{1f60a}cd", "finish_reason": "stop"}),
            )
            .await;
    };
    let (response, ()) = tokio::join!(request.send(), answering);
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let events = events(&response.text().await.unwrap());
    let (name, end) = events.last().unwrap();
    assert_eq!(name, "inference_completed");
    assert_eq!(end["data"]["tokens_generated"], 5);
    let streamed: String = events[..events.len() - 1]
        .iter()
        .map(|(name, event)| {
            assert_eq!(name, "inference_tokens");
            joined(event)
        })
        .collect();
    assert_eq!(streamed, "a\n\n\u{1f60a}cd");
    assert_eq!(end["data"]["text"], streamed.as_str());
}

#[actix_web::test]
async fn g094_an_answer_of_no_tokens_is_an_answer() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({"max_tokens": 0})).await;
    let start = worker.socket.receive("start_inference").await;
    assert_eq!(start["data"]["max_tokens"], 0);
    let metrics = json!({"ttft_ms": null, "tps": null, "total_time_ms": 1.0});
    worker
        .complete(
            &id,
            json!({"tokens_generated": 0, "metrics": metrics, "text": ""}),
        )
        .await;
    let shown = shown_as(&admin, &id, "completed").await;
    assert_eq!(
        (&shown["text"], &shown["tokens_generated"]),
        (&json!(""), &json!(0))
    );
}

#[actix_web::test]
async fn g092_a_client_that_goes_away_stops_its_answer() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut dashboard = admin.dashboard().await;
    let request = admin
        .request(Method::POST, "/api/inference")
        .json(&ask(json!({"stream": true, "max_tokens": 500})));
    let (response, id) = tokio::join!(request.send(), worker.take_inference());
    let mut body = response.unwrap().bytes_stream();
    for _ in 0..20 {
        worker.tokens(&id, &["x"]).await;
    }
    body.next().await.unwrap().unwrap();
    drop(body);
    let stop = worker.socket.receive("stop_inference").await;
    assert_eq!(stop["inference_id"], id.as_str());
    let end = dashboard.receive("inference_completed").await;
    assert_eq!(end["data"]["finish_reason"], "cancelled");
    admin.wait_for_worker(worker.id, "idle").await;
    // Until the worker has stopped, what it sends reaches nobody, and it is told again.
    worker.tokens(&id, &["late"]).await;
    worker.socket.receive("stop_inference").await;
    worker
        .complete(&id, json!({"text": "late", "finish_reason": "cancelled"}))
        .await;
    let shown = shown_as(&admin, &id, "cancelled").await;
    let text = shown["text"].as_str().unwrap();
    assert!(!text.is_empty() && text.chars().all(|c| c == 'x'), "{text}");
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": 99}))
        .await;
    let passed = dashboard
        .collect_until(|message| message["type"] == "error")
        .await;
    assert!(
        passed
            .iter()
            .all(|message| message["type"] == "worker_update" || message["type"] == "error"),
        "{passed:#?}"
    );
}

#[actix_web::test]
async fn only_the_worker_that_has_a_request_is_heard_and_its_repeats_are_confirmed() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({})).await;
    assert_eq!(worker.take_inference().await, id);
    let mut stranger = TestWorker::ready(&admin).await;
    stranger.tokens(&id, &["forged"]).await;
    assert_eq!(
        stranger.socket.receive("error").await["code"],
        "wrong_worker"
    );
    stranger
        .socket
        .send(json!({
            "type": "inference_completed", "inference_id": id, "data": {"text": "forged"},
            "message_id": "0b8f3a3e-6a0f-4b52-8d0c-6a7f6f0b9d11"
        }))
        .await;
    let error = stranger.socket.receive("error").await;
    assert_eq!(error["code"], "wrong_worker");
    assert_eq!(error["message_id"], "0b8f3a3e-6a0f-4b52-8d0c-6a7f6f0b9d11");
    for text in ["own", "again"] {
        worker.complete(&id, json!({ "text": text })).await;
    }
    let shown = shown_as(&admin, &id, "completed").await;
    assert_eq!(shown["text"], "own");
}

#[actix_web::test]
async fn what_a_worker_refuses_is_told_to_who_asked() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut dashboard = admin.dashboard().await;
    let id = asked(&admin, json!({})).await;
    worker.take_inference().await;
    let data = json!({"error": "the chat is longer than the model's context"});
    worker
        .say_of(json!({"type": "inference_failed", "inference_id": id, "data": data}))
        .await;
    let failed = dashboard.receive("inference_failed").await;
    assert_eq!(failed["data"]["error"], data["error"]);
    assert_eq!(
        shown_as(&admin, &id, "failed").await["error"],
        data["error"]
    );
}

#[actix_web::test]
async fn a_job_s_adapter_goes_with_signed_addresses_to_who_may_see_the_job() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = worker.train(&admin).await;
    let bare = json!({"messages": [{"role": "user", "content": "hi"}], "job_id": job});
    let (status, _) = member.post("/api/inference", bare.clone()).await;
    assert_eq!(status, 404);
    for body in [bare.clone(), ask(json!({"model": format!("job-{job}")}))] {
        let (status, _) = admin.post("/api/inference", body).await;
        assert_eq!(status, 202);
        let start = worker.socket.receive("start_inference").await;
        let data = &start["data"];
        assert_eq!(data["model_path"], format!("models/job-{job}/final/"));
        assert_eq!(data["huggingface_id"], "yard/tiny");
        let urls = data["download_urls"].as_array().unwrap();
        let keys: Vec<_> = urls
            .iter()
            .map(|url| url["key"].as_str().unwrap())
            .collect();
        assert_eq!(keys, ["adapter_config.json", "adapter_model.safetensors"]);
        let response = platform
            .client
            .get(urls[0]["url"].as_str().unwrap())
            .send()
            .await;
        assert_eq!(response.unwrap().text().await.unwrap(), "hello");
    }
    let unfinished = admin.job(json!({})).await;
    let (status, answer) = admin
        .post(
            "/api/inference",
            json!({"messages": [{"role": "user", "content": "hi"}], "job_id": unfinished}),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (409, &json!("conflict"))
    );
}

#[actix_web::test]
async fn every_field_that_does_not_fit_is_named() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for (wrong, field) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"seed": -1}), "seed"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": 1}), "stop"),
        (json!({"messages": []}), "messages"),
        (json!({"model": "../etc"}), "model"),
        (json!({"model": null}), "model"),
        (json!({"job_id": 1}), "model"),
        (json!({"temprature": 1}), "temprature"),
    ] {
        let (status, answer) = admin.post("/api/inference", ask(wrong.clone())).await;
        assert_eq!(status, 400, "{wrong}: {answer}");
        assert_eq!(
            answer["error"]["details"][0]["field"], field,
            "{wrong}: {answer}"
        );
    }
    let both = ask(json!({"temperature": -1, "top_p": 2}));
    let (_, answer) = admin.post("/api/inference", both).await;
    assert_eq!(answer["error"]["details"].as_array().unwrap().len(), 2);
}

#[actix_web::test]
async fn g031_a_long_chat_fits_and_one_that_no_frame_can_carry_is_refused() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let chat =
        |bytes: usize| ask(json!({"messages": [{"role": "user", "content": "x".repeat(bytes)}]}));
    assert_eq!(admin.post("/api/inference", chat(200_000)).await.0, 202);
    let start = worker.socket.receive("start_inference").await;
    assert_eq!(
        start["data"]["messages"][0]["content"]
            .as_str()
            .unwrap()
            .len(),
        200_000
    );
    let (status, answer) = admin.post("/api/inference", chat((1 << 20) - 200)).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["details"][0]["field"]),
        (400, &json!("messages"))
    );
}

#[actix_web::test]
async fn a_reader_that_takes_nothing_holds_nobody_up() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let request = admin
        .request(Method::POST, "/api/inference")
        .json(&ask(json!({"stream": true})));
    let (response, id) = tokio::join!(request.send(), worker.take_inference());
    let response = response.unwrap();
    let piece = "x".repeat(64 << 10);
    for _ in 0..40 {
        worker.tokens(&id, &[&piece]).await;
    }
    worker.complete(&id, json!({"finish_reason": "stop"})).await;
    let events = events(&response.text().await.unwrap());
    let streamed: usize = events[..events.len() - 1]
        .iter()
        .map(|(_, event)| joined(event).len())
        .sum();
    assert_eq!(streamed, 40 * (64 << 10));
}

#[actix_web::test]
async fn a_worker_gets_a_new_address_of_an_adapter_as_long_as_it_answers_with_it() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut trainer = TestWorker::ready(&admin).await;
    let job = trainer.train(&admin).await;
    let mut worker = TestWorker::ready(&admin).await;
    let (_, drained) = admin
        .post(&format!("/api/workers/{}/drain", trainer.id), json!({}))
        .await;
    assert!(drained["error"].is_null(), "{drained}");
    let own = Session {
        platform: &platform,
        token: worker.key.clone(),
    };
    let at = |key: String| format!("/api/worker/downloads?job_id={job}&key={key}");
    let adapter = at(format!("models/job-{job}/final/adapter_config.json"));
    assert_eq!(own.get(&adapter).await.0, 404);

    let id = asked(&admin, json!({"model": format!("job-{job}")})).await;
    assert_eq!(worker.take_inference().await, id);
    let (status, grant) = own.get(&adapter).await;
    assert_eq!(status, 200, "{grant}");
    let file = platform.client.get(grant["url"].as_str().unwrap());
    assert_eq!(file.send().await.unwrap().text().await.unwrap(), "hello");
    let checkpoint = at(format!("checkpoints/job-{job}/step-1/x"));
    assert_eq!(own.get(&checkpoint).await.0, 404);

    worker.complete(&id, json!({"text": "x"})).await;
    shown_as(&admin, &id, "completed").await;
    assert_eq!(own.get(&adapter).await.0, 404);
}
