//! What is said of a frame that is no message of ours, so that it can be answered and nothing else
//! happens because of it.

use serde_json::{Value, json};
use trainyard_shared::ids::{JobId, MessageId};
use trainyard_shared::message::{
    DecodeError, DecodeErrorKind, ErrorCode, FromDashboard, FromWorker, ToWorker, TrainingProgress,
};

fn progress_with(field: &str, value: Value) -> Value {
    let mut frame = json!({"type": "training_progress", "job_id": 123, "data": {"epoch": 1, "step": 10, "loss": 0.5}});
    match field {
        "job_id" => frame[field] = value,
        _ => frame["data"][field] = value,
    }
    frame
}

fn refused(text: &str) -> DecodeError {
    match FromWorker::decode(text) {
        Ok(message) => panic!("{text} was taken as {message:?}"),
        Err(error) => error,
    }
}

fn taken(frame: &Value) -> TrainingProgress {
    match FromWorker::decode(&frame.to_string()) {
        Ok(FromWorker::TrainingProgress(message)) => message,
        other => panic!("{frame}: {other:?}"),
    }
}

#[test]
fn g036_null_is_a_metric_that_is_not_finite_and_bare_nan_is_malformed() {
    let message = taken(&progress_with("loss", Value::Null));
    assert!(message.data.loss.is_some_and(f64::is_nan));
    assert_eq!(message.data.grad_norm, None);
    let written = FromWorker::from(message).encode();
    assert!(written.contains(r#""loss":null"#), "{written}");
    assert!(!written.contains("grad_norm"), "{written}");

    let error =
        refused(r#"{"type":"training_progress","job_id":123,"data":{"step":10,"loss":NaN}}"#);
    assert_eq!(error.kind, DecodeErrorKind::InvalidMessage);
    assert_eq!(error.to_error().code, ErrorCode::InvalidMessage);
}

#[test]
fn g036_infinity_is_written_as_null() {
    let mut message = taken(&progress_with("loss", json!(0.5)));
    message.data.loss = Some(f64::INFINITY);
    message.data.token_throughput = Some(f64::NEG_INFINITY);
    let written = FromWorker::from(message).to_value();
    assert_eq!(written["data"]["loss"], Value::Null);
    assert_eq!(written["data"]["token_throughput"], Value::Null);
}

#[test]
fn g037_a_subscription_keeps_an_id_above_2_to_the_53_exactly() {
    let frame = r#"{"type":"subscribe_job","job_id":9007199254740993}"#;
    let Ok(FromDashboard::SubscribeJob(message)) = FromDashboard::decode(frame) else {
        panic!("not taken");
    };
    assert_eq!(message.job_id, JobId(9_007_199_254_740_993));
    assert!(
        FromDashboard::decode(r#"{"type":"subscribe_job","job_id":9223372036854775808}"#).is_err()
    );
}

#[test]
fn g038_a_wrong_type_is_one_error_that_names_the_field() {
    for (field, value, path) in [
        ("job_id", json!("123"), "job_id"),
        ("job_id", json!(123.0), "job_id"),
        ("job_id", json!(1.23e2), "job_id"),
        ("job_id", json!(-1), "job_id"),
        ("job_id", json!(0), "job_id"),
        ("job_id", json!(true), "job_id"),
        ("job_id", Value::Null, "job_id"),
        ("job_id", json!([123]), "job_id"),
        (
            "total_steps",
            json!(9_223_372_036_854_775_808_u64),
            "data.total_steps",
        ),
        ("epoch", json!(2.5), "data.epoch"),
        ("step", json!("10"), "data.step"),
        ("loss", json!("0.5"), "data.loss"),
        ("eta_seconds", json!([]), "data.eta_seconds"),
    ] {
        let error = refused(&progress_with(field, value.clone()).to_string());
        assert_eq!(error.kind, DecodeErrorKind::InvalidMessage);
        assert_eq!(error.field.as_deref(), Some(path), "{value}");
        assert!(error.message.contains(path), "{}", error.message);
        assert_eq!(error.in_reply_to.as_deref(), Some("training_progress"));
    }
    // Written with an exponent, as a JSON writer of another make may do.
    let error = refused(r#"{"type":"training_progress","job_id":1.23e2,"data":{"step":1}}"#);
    assert_eq!(error.field.as_deref(), Some("job_id"));

    let register =
        json!({"type": "worker_register", "data": {"gpu_available": true, "gpu_memory_gb": "80"}});
    assert_eq!(
        refused(&register.to_string()).field.as_deref(),
        Some("data.gpu_memory_gb")
    );
}

#[test]
fn g039_a_lone_surrogate_makes_the_frame_malformed_and_names_its_place() {
    let error = refused(r#"{"type":"job_failed","job_id":1,"data":{"error":"hi \ud83d"}}"#);
    assert!(
        error.message.contains("lone surrogate"),
        "{}",
        error.message
    );
    assert!(error.message.contains("column 59"), "{}", error.message);
    let pair = r#"{"type":"job_failed","job_id":1,"data":{"error":"hi \ud83d\ude0a"}}"#;
    let Ok(FromWorker::JobFailed(message)) = FromWorker::decode(pair) else {
        panic!("not taken")
    };
    assert_eq!(message.data.error, "hi 😊");
}

#[test]
fn a_missing_field_is_named() {
    let error = refused(r#"{"type":"training_progress","data":{"step":1}}"#);
    assert!(error.message.contains("job_id"), "{}", error.message);
    let error = refused(r#"{"type":"training_progress","job_id":1,"data":{}}"#);
    assert_eq!(error.field.as_deref(), Some("data"));
    assert!(error.message.contains("step"), "{}", error.message);
}

#[test]
fn an_unknown_type_is_told_apart_and_answered_with_its_name_shortened() {
    let error = refused(r#"{"type":"start_dreaming","job_id":7}"#);
    assert_eq!(error.kind, DecodeErrorKind::UnknownType);
    assert_eq!(error.to_error().code, ErrorCode::UnknownType);
    assert_eq!(
        error.to_error().in_reply_to.as_deref(),
        Some("start_dreaming")
    );
    let long = refused(&json!({"type": "x".repeat(10_000)}).to_string());
    assert!(long.in_reply_to.unwrap().len() < 100);
    // A type of the other direction is unknown here.
    assert_eq!(
        refused(r#"{"type":"start_training"}"#).kind,
        DecodeErrorKind::UnknownType
    );
}

#[test]
fn what_is_no_object_with_a_type_is_invalid() {
    for text in [
        "",
        "hello",
        "[]",
        "null",
        "7",
        "{}",
        r#"{"type":null}"#,
        r#"{"type":["heartbeat"]}"#,
    ] {
        assert_eq!(
            refused(text).kind,
            DecodeErrorKind::InvalidMessage,
            "{text}"
        );
    }
}

#[test]
fn duplicate_keys_nesting_and_numbers_that_do_not_fit_are_invalid() {
    let deep = format!(
        r#"{{"type":"heartbeat","x":{}1{}}}"#,
        "[".repeat(64),
        "]".repeat(64)
    );
    for text in [
        r#"{"type":"heartbeat","type":"heartbeat"}"#,
        r#"{"type":"training_progress","job_id":1,"data":{"step":1,"step":2}}"#,
        r#"{"type":"training_progress","job_id":1,"data":{"step":1,"loss":1e400}}"#,
        deep.as_str(),
    ] {
        assert_eq!(
            refused(text).kind,
            DecodeErrorKind::InvalidMessage,
            "{text}"
        );
    }
}

#[test]
fn an_error_carries_the_message_id_and_the_ids_that_could_be_read() {
    let id = "0b8f3a3e-6a0f-4b52-8d0c-6a7f6f0b9d11";
    let frame =
        json!({"type": "job_completed", "job_id": 5, "attempt": 2, "message_id": id, "data": 7});
    let error = refused(&frame.to_string());
    assert_eq!(error.message_id, Some(MessageId(id.parse().unwrap())));
    assert_eq!(
        (error.ids.job_id, error.ids.attempt),
        (Some(JobId(5)), Some(2))
    );
    assert_eq!(error.to_error().message_id, error.message_id);

    let start = json!({"type": "start_training", "job_id": 9, "data": {"dataset": {}}});
    let error = ToWorker::decode(&start.to_string()).unwrap_err();
    assert_eq!(error.ids.job_id, Some(JobId(9)));
    assert_eq!(error.field.as_deref(), Some("data.dataset"));
}

#[test]
fn g009_a_timestamp_of_any_kind_decides_nothing() {
    for timestamp in [
        json!("2099-01-01T00:00:00Z"),
        json!("not-a-date"),
        json!(17),
        Value::Null,
    ] {
        let frame = json!({"type": "heartbeat", "status": "idle", "timestamp": timestamp});
        assert!(FromWorker::decode(&frame.to_string()).is_ok(), "{frame}");
    }
}

#[test]
fn a_worker_by_the_source_documents_alone_is_understood() {
    for frame in [
        json!({"type": "job_started", "job_id": 123}),
        json!({"type": "job_started", "worker_id": "abc12345", "job_id": 123, "data": {}}),
        json!({"type": "heartbeat"}),
        json!({"type": "heartbeat", "status": "some words of its own"}),
        json!({"type": "pong", "status": "idle", "busy": false, "current_job_id": null}),
        json!({"type": "worker_register", "data": {"gpu_available": false, "gpu_name": null, "gpu_memory_gb": null}}),
        json!({"type": "worker_metrics", "data": {"gpu_utilization": null, "cpu_utilization": 12}}),
        json!({"type": "training_progress", "job_id": 1, "data": {"step": 1}}),
        json!({"type": "job_failed", "job_id": 1, "data": {"error": "x", "step": null, "last_checkpoint": null}}),
    ] {
        if let Err(error) = FromWorker::decode(&frame.to_string()) {
            panic!("{frame}: {error}");
        }
    }
}

#[test]
fn g022_no_secret_of_a_message_is_shown_by_debug() {
    let text = include_str!("golden/from_worker/authenticate.json");
    let shown = format!("{:?}", FromWorker::decode(text).unwrap());
    assert!(!shown.contains("wkr_"), "{shown}");
    let text = include_str!("golden/to_worker/start_training.json");
    let shown = format!("{:?}", ToWorker::decode(text).unwrap());
    assert!(
        !shown.contains("signature") && !shown.contains("presigned"),
        "{shown}"
    );
}

#[test]
fn every_worker_message_can_name_its_worker() {
    let worker: trainyard_shared::ids::WorkerUuid =
        "6f9c1d52-8a53-4b0e-9c3f-2b7f0c5d1e90".parse().unwrap();
    let mut message = FromWorker::from(taken(&progress_with("loss", json!(0.5))));
    assert_eq!(message.worker_id(), None);
    message.set_worker_id(worker);
    assert_eq!(
        message.worker_id(),
        Some("6f9c1d52-8a53-4b0e-9c3f-2b7f0c5d1e90")
    );
}
