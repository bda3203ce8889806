//! What OpenAI's clients send and read, over a worker played by hand.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::testing::Platform;
use crate::testing::serving::{ask, events};
use crate::testing::sockets::TestWorker;

const QUIET: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];
const PATH: &str = "/v1/chat/completions";

#[actix_web::test]
async fn a_completion_has_its_text_its_end_and_its_counts() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let body = ask(json!({
        "max_completion_tokens": 4, "temperature": 0, "seed": -1, "stop": ["a", "b"], "n": 1, "user": "u",
        "messages": [
            {"role": "developer", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
        ]
    }));
    let answering = async {
        let start = worker.socket.receive("start_inference").await;
        let data = &start["data"];
        assert_eq!(
            data["messages"],
            json!([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}])
        );
        assert_eq!(
            (&data["max_tokens"], &data["stream"]),
            (&json!(4), &json!(false))
        );
        assert_eq!(data["seed"], json!((1_u64 << 53) - 1));
        assert_eq!(data["stop"], json!(["a", "b"]));
        let id = start["inference_id"].as_str().unwrap();
        let data = json!({
            "tokens_generated": 4, "prompt_tokens": 9, "text": "Hello", "finish_reason": "length"
        });
        worker.complete(id, data).await;
    };
    let ((status, answer), ()) = tokio::join!(admin.post(PATH, body), answering);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "yard/tiny");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "Hello");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13})
    );
}

#[actix_web::test]
async fn g092_a_client_that_leaves_before_its_completion_is_there_stops_the_worker() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let body = ask(json!({"max_tokens": 500})).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        admin.token,
        body.len()
    );
    let mut client = TcpStream::connect(platform.server.address).await.unwrap();
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(body.as_bytes()).await.unwrap();
    let id = worker.take_inference().await;
    drop(client);
    let stop = worker.socket.receive("stop_inference").await;
    assert_eq!(stop["inference_id"], id.as_str());
    let data = json!({"text": "", "finish_reason": "cancelled"});
    worker.complete(&id, data).await;
    admin.wait_for_worker(worker.id, "idle").await;
}

#[actix_web::test]
async fn a_stream_is_chunks_then_usage_then_done() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let body = ask(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let request = admin.request(Method::POST, PATH).json(&body);
    let answering = async {
        let id = worker.take_inference().await;
        worker.tokens(&id, &["Gra", "dient"]).await;
        let data = json!({"tokens_generated": 3, "prompt_tokens": 9, "text": "Gradient d", "finish_reason": "stop"});
        worker.complete(&id, data).await;
    };
    let (response, ()) = tokio::join!(request.send(), answering);
    let chunks: Vec<Value> = events(&response.unwrap().text().await.unwrap())
        .into_iter()
        .map(|(name, data)| {
            assert_eq!(name, "");
            data
        })
        .collect();
    let [first, middle @ .., end, usage, done] = chunks.as_slice() else {
        panic!("{chunks:#?}");
    };
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let text: String = middle
        .iter()
        .map(|chunk| {
            assert!(chunk["choices"][0]["finish_reason"].is_null() && chunk["usage"].is_null());
            chunk["choices"][0]["delta"]["content"].as_str().unwrap()
        })
        .collect();
    assert_eq!(text, "Gradient d");
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 12);
    assert_eq!(done, "[DONE]");
}

#[actix_web::test]
async fn models_are_those_that_can_answer() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    let job = worker.train(&admin).await;
    let without_files = admin.job(json!({})).await;
    worker.take_job().await;
    worker
        .say_acked("job_completed", without_files, json!({}))
        .await;
    let ids = |models: &Value| -> Vec<String> {
        let data = models["data"].as_array().unwrap();
        data.iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let (_, models) = admin.get("/v1/models").await;
    assert_eq!(models["object"], "list");
    assert_eq!(ids(&models), ["yard/tiny", &format!("job-{job}")]);
    assert_eq!(ids(&member.get("/v1/models").await.1), ["yard/tiny"]);
    let (status, model) = admin.get(&format!("/v1/models/job-{job}")).await;
    assert_eq!((status.as_u16(), &model["object"]), (200, &json!("model")));
    for path in ["/v1/models/yard/tiny", "/v1/models/yard%2Ftiny"] {
        assert_eq!(admin.get(path).await.1["id"], "yard/tiny", "{path}");
    }
    let (status, error) = member.get(&format!("/v1/models/job-{job}")).await;
    assert_eq!(
        (status.as_u16(), &error["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[actix_web::test]
async fn refusals_have_openai_s_shape() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("training").await;
    admin.wait_for_worker(worker.id, "idle").await;
    for (more, param) in [
        (json!({"n": 2}), "n"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"stop": [""]}), "stop"),
        (json!({"tools": [{}]}), "tools"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"presence_penalty": 1}), "presence_penalty"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content",
        ),
    ] {
        let (status, answer) = admin.post(PATH, ask(more.clone())).await;
        assert_eq!(status, 400, "{more}: {answer}");
        let error = &answer["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], param, "{more}: {answer}");
    }
    let (status, answer) = admin.post(PATH, ask(json!({"model": "job-9"}))).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let (status, answer) = viewer.post(PATH, ask(json!({}))).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["type"]),
        (403, &json!("permission_error"))
    );
    let request = platform
        .request(Method::POST, PATH)
        .bearer_auth("usr_wrong");
    let (status, answer) =
        crate::testing::answer(request.json(&ask(json!({}))).send().await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (401, &json!("invalid_api_key"))
    );
    for stream in [false, true] {
        let body = ask(json!({ "stream": stream }));
        let response = admin
            .request(Method::POST, PATH)
            .json(&body)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "5");
        assert!(!response.headers().contains_key("x-should-retry"));
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["type"], "server_error");
    }
}

#[actix_web::test]
async fn a_stream_that_breaks_ends_with_an_error_and_without_done() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let request = admin
        .request(Method::POST, PATH)
        .json(&ask(json!({"stream": true})));
    let answering = async {
        let id = worker.take_inference().await;
        worker.tokens(&id, &["half"]).await;
        admin
            .wait(&format!("/api/inference/{id}"), |shown| {
                shown["text"] == "half"
            })
            .await;
        let data = json!({"error": "out of memory", "failure_kind": "out_of_memory"});
        worker
            .say_of(json!({"type": "inference_failed", "inference_id": id, "data": data}))
            .await;
    };
    let (response, ()) = tokio::join!(request.send(), answering);
    let events = events(&response.unwrap().text().await.unwrap());
    let (_, last) = events.last().unwrap();
    assert_eq!(last["error"]["message"], "out of memory");
}

#[actix_web::test]
async fn a_personal_token_is_the_key() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let (_, made) = admin.post("/api/api-tokens", json!({"name": "chat"})).await;
    let token = made["token"].as_str().unwrap();
    let request = platform
        .request(Method::GET, "/v1/models")
        .bearer_auth(token);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "no-store");
}
