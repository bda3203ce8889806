//! Requests whose worker is lost, silent, replaced, or of another time.

use reqwest::Method;
use serde_json::json;

use super::{QUIET, asked, shown_as};
use crate::testing::serving::{ask, events};
use crate::testing::sockets::{SHORT, TestWorker};
use crate::testing::{Platform, Session};

#[actix_web::test]
async fn a_worker_that_goes_on_with_what_nobody_knows_is_told_to_stop_and_stays() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for _ in 0..60 {
        worker.tokens("infer-of-another-time", &["x"]).await;
    }
    let sent = worker.everything_sent().await;
    let of = |kind: &str| {
        sent.iter()
            .filter(|message| message["type"] == kind)
            .count()
    };
    assert_eq!((of("error"), of("stop_inference")), (1, 1));
}

#[actix_web::test]
async fn a_request_whose_worker_is_lost_before_the_first_token_goes_to_another() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut first = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({"stream": false})).await;
    assert_eq!(first.take_inference().await, id);
    let mut second = TestWorker::ready(&admin).await;
    first.socket.reset();
    let retried = second.take_inference().await;
    assert_eq!(retried, format!("{id}.2"));
    second.complete(&retried, json!({"text": "at last"})).await;
    let shown = shown_as(&admin, &id, "completed").await;
    assert_eq!(
        (&shown["text"], &shown["worker_id"]),
        (&json!("at last"), &json!(second.id))
    );
}

#[actix_web::test]
async fn a_newer_connection_of_the_worker_takes_the_request_anew() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut older = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({})).await;
    assert_eq!(older.take_inference().await, id);
    let mut newer = older.again(&platform).await;
    newer.register().await;
    let retried = newer.take_inference().await;
    assert_eq!(retried, format!("{id}.2"));
    // What the first attempt still says is its own past: confirmed, and without effect.
    newer.complete(&id, json!({"text": "old"})).await;
    newer.complete(&retried, json!({"text": "new"})).await;
    assert_eq!(shown_as(&admin, &id, "completed").await["text"], "new");
}

#[actix_web::test]
async fn an_answer_that_was_begun_fails_with_its_worker() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let request = admin
        .request(Method::POST, "/api/inference")
        .json(&ask(json!({"stream": true})));
    let breaking = async {
        let id = worker.take_inference().await;
        worker.tokens(&id, &["half"]).await;
        shown_with_text(&admin, &id, "half").await;
        worker.socket.reset();
    };
    let (response, ()) = tokio::join!(request.send(), breaking);
    let events = events(&response.unwrap().text().await.unwrap());
    let (name, end) = events.last().unwrap();
    assert_eq!(name, "inference_failed");
    assert!(
        end["data"]["error"].as_str().unwrap().contains("lost"),
        "{end}"
    );
}

async fn shown_with_text(user: &Session<'_>, id: &str, text: &str) {
    user.wait(&format!("/api/inference/{id}"), |shown| {
        shown["text"] == text
    })
    .await;
}

#[actix_web::test]
async fn a_silent_worker_s_request_fails_and_is_stopped() {
    let settings = [
        ("WORKER_HEARTBEAT_TIMEOUT", "60"),
        ("INFERENCE_TIMEOUT", "0.3"),
    ];
    let platform = Platform::start(&settings).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({})).await;
    let shown = shown_as(&admin, &id, "failed").await;
    assert!(
        shown["error"].as_str().unwrap().contains("nothing for"),
        "{shown}"
    );
    assert_eq!(
        worker.socket.receive("stop_inference").await["inference_id"],
        id.as_str()
    );
}

#[actix_web::test]
async fn a_restarted_platform_knows_nothing_of_earlier_requests_and_says_so() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({})).await;
    worker.take_inference().await;
    let folder = platform.stop().await;
    let platform = Platform::start_in(folder, QUIET).await;
    let admin = platform.admin().await;
    let mut worker = worker.again(&platform).await;
    worker.register().await;
    assert_eq!(admin.get(&format!("/api/inference/{id}")).await.0, 404);
    let heartbeat =
        json!({"type": "heartbeat", "status": "inference", "current_inference_ids": [id]});
    worker.socket.send(heartbeat).await;
    let stop = worker.socket.receive("stop_inference").await;
    assert_eq!(stop["inference_id"], id.as_str());
    let message = json!({"type": "inference_completed", "inference_id": id, "data": {"text": "x"}});
    worker.socket.send(message).await;
    assert_eq!(worker.socket.receive("error").await["code"], "wrong_worker");
}

#[actix_web::test]
async fn a_platform_that_stops_ends_open_answers_and_says_why() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let body = ask(json!({"stream": true}));
    let request = admin.request(Method::POST, "/api/inference").json(&body);
    let (own, first) = tokio::join!(request.send(), worker.take_inference());
    let request = admin
        .request(Method::POST, "/v1/chat/completions")
        .json(&body);
    let (openai, second) = tokio::join!(request.send(), worker.take_inference());
    let ids = [first, second];
    let stopping = platform.stop();
    let reading = async { (own.unwrap().text().await, openai.unwrap().text().await) };
    let stopped = worker.socket.receive("stop_inference");
    let (_, (own, openai), stopped) = tokio::join!(stopping, reading, stopped);
    assert!(
        ids.iter().any(|id| stopped["inference_id"] == id.as_str()),
        "{ids:?}: {stopped}"
    );
    let own = events(&own.unwrap());
    let (name, end) = own.last().unwrap();
    assert_eq!(name, "inference_failed");
    assert_eq!(end["data"]["error"], "the platform is stopping");
    let openai = events(&openai.unwrap());
    let (_, end) = openai.last().unwrap();
    assert_eq!(end["error"]["message"], "the platform is stopping");
}
