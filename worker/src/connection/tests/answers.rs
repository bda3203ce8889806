//! Answers and evaluations on the wire: tokens in order before the end, and the end whatever happens to the link.

use trainyard_shared::FinishReason;
use trainyard_shared::ids::InferenceId;
use trainyard_shared::message::{InferenceCompleted, InferenceCompletedData};

use super::*;

fn id() -> InferenceId {
    "infer-1".parse().unwrap()
}

fn completed(text: &str) -> FromWorker {
    FromWorker::InferenceCompleted(InferenceCompleted {
        worker_id: None,
        inference_id: id(),
        message_id: Some(MessageId::random()),
        data: InferenceCompletedData {
            text: Some(text.to_owned()),
            finish_reason: Some(FinishReason::Stop),
            ..InferenceCompletedData::default()
        },
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[actix_rt::test]
async fn tokens_come_before_the_end_and_pass_a_checkpoint_that_cannot_be_stored_yet() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let stalled = TestServer::start(|_, _| Reply::new(503, "")).await;
    let worker = start_with_files_at(&stalled.url(""), config(&platform, state.path()));
    let (mut session, _) = platform.registered().await;
    let path = state.path().join("adapter");
    std::fs::write(&path, "x").unwrap();
    let file = ArtifactFile {
        key: "models/job-123/final/adapter".to_owned(),
        size_bytes: 1,
        sha256: "0".repeat(64),
    };
    worker
        .reports
        .keep(job_completed(vec![file.clone()]), vec![(file, path)])
        .unwrap();
    worker.reports.send_tokens(&id(), words(&["one", " two"]));
    worker.reports.send_tokens(&id(), words(&[" three"]));
    worker
        .reports
        .keep(completed("one two three"), Vec::new())
        .unwrap();
    let mut text = String::new();
    let end = loop {
        let message = session
            .receive_where("a part of the answer", |message| {
                message["inference_id"] == "infer-1"
            })
            .await;
        if message["type"] == "inference_completed" {
            break message;
        }
        for token in message["data"]["tokens"].as_array().unwrap() {
            text.push_str(token.as_str().unwrap());
        }
    };
    assert_eq!(text, "one two three");
    assert_eq!(end["data"]["text"], text);
    session.ack(&end).await;
    let end_id = serde_json::from_value(end["message_id"].clone()).unwrap();
    within("the ack to be heeded", async {
        while worker.outbox.find(end_id).is_some() {
            session.receive("heartbeat").await;
        }
    })
    .await;
    assert!(!worker.outbox.is_empty(), "the job's end still waits");
}

#[actix_rt::test]
async fn an_answer_goes_on_while_the_link_is_down_and_its_end_brings_the_whole_text() {
    let (platform, _state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    worker
        .reports
        .change_activity(|activity| activity.inferences = vec![id()]);
    let busy = |message: &Value| {
        message["type"] == "heartbeat" && message["current_inference_ids"] == json!(["infer-1"])
    };
    let beat = session.receive_where("a heartbeat", busy).await;
    assert_eq!(beat["status"], "inference");
    worker.reports.send_tokens(&id(), words(&["one"]));
    session.receive("inference_tokens").await;
    drop(session);

    let (mut session, _) = platform.registered().await;
    worker.reports.send_tokens(&id(), words(&[" two"]));
    worker
        .reports
        .keep(completed("one two"), Vec::new())
        .unwrap();
    worker
        .reports
        .change_activity(|activity| activity.inferences.clear());
    let kinds = session.kinds_up_to("inference_completed").await;
    assert_eq!(
        kinds,
        ["inference_completed"],
        "what the lost link swallowed is not known, so no token may follow it"
    );
    session.send(json!({"type": "ping"})).await;
    let pong = session.receive("pong").await;
    assert_eq!(
        (&pong["status"], &pong["busy"]),
        (&json!("idle"), &json!(false))
    );
    assert_eq!(
        pong["current_inference_ids"],
        json!(["infer-1"]),
        "it is not delivered yet"
    );
}

#[actix_rt::test]
async fn starts_and_stops_of_answers_and_evaluations_reach_the_tasks_and_bad_ones_fail_by_field() {
    let (platform, _state, mut worker) = started().await;
    let (mut session, _) = platform.registered().await;
    for (kind, field, value) in [
        ("stop_inference", "inference_id", json!("infer-1")),
        ("stop_evaluation", "evaluation_id", json!(78)),
        ("stop_export", "export_id", json!(78)),
    ] {
        session.send(json!({"type": kind, field: value})).await;
        let command = within("a command", worker.commands.recv()).await.unwrap();
        let named = format!("{command:?}");
        assert!(named.contains("infer-1") || named.contains("78"), "{named}");
    }
    session
        .send(json!({"type": "start_inference", "inference_id": "infer-2", "data": {
            "huggingface_id": "a/b", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}}))
        .await;
    let failed = session.receive("inference_failed").await;
    assert_eq!(failed["inference_id"], "infer-2");
    assert_eq!(failed["data"]["failure_kind"], "bad_config");
    let error = failed["data"]["error"].as_str().unwrap();
    assert!(error.contains("max_tokens"), "{error}");
    session
        .send(
            json!({"type": "start_evaluation", "evaluation_id": 5, "data": {
            "dataset_url": "d", "metrics": "perplexity"}}),
        )
        .await;
    let failed = session.receive("evaluation_failed").await;
    let error = failed["data"]["error"].as_str().unwrap();
    assert!(error.contains("metrics"), "{error}");
    session
        .send(json!({"type": "start_export", "export_id": 5, "job_id": 1, "data": {"format": "pickle"}}))
        .await;
    let failed = session.receive("export_failed").await;
    let error = failed["data"]["error"].as_str().unwrap();
    assert!(error.contains("format"), "{error}");
}
