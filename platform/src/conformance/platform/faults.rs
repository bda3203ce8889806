//! What is answered to messages that do not fit, and that it harms nothing (decisions of ours: the source document
//! says nothing about faults).

use serde_json::json;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Bytes, Message};
use uuid::Uuid;

use super::training::shown;
use super::yard::{Worker, Yard, heartbeat};
use super::{Check, check};
use crate::conformance::report::{Outcome, expect, needed};
use crate::conformance::socket::Received;

pub const CHECKS: &[Check] = &[
    check!(recommended "fault.unknown_type": "a type that is not known is answered by error unknown_type", unknown_type),
    check!(recommended "fault.malformed": "a frame that is no JSON is answered by error invalid_message", malformed),
    check!(recommended "fault.no_type": "an object without a type is answered by error invalid_message", no_type),
    check!(recommended "fault.wrong_field": "a field of the wrong type is answered by error invalid_message", wrong_field),
    check!(recommended "fault.connection_stays": "none of these closes the connection", connection_stays),
    check!(recommended "fault.too_many": "20 of them within a minute close the connection with 4400", too_many),
    check!(recommended "fault.wrong_worker": "a message that names another worker is answered by error wrong_worker", wrong_worker),
    check!(recommended "fault.foreign_job": "a message about another worker's job is answered by an error and changes nothing", foreign_job),
    check!(recommended "frame.large": "a message of 300 KB is taken", large),
    check!(recommended "frame.oversize": "a message of more than 1 MiB closes the connection with 1009", oversize),
    check!(recommended "frame.fragments": "a message in fragments is put together", fragments),
    check!(recommended "frame.binary": "a binary frame closes the connection with 1003", binary),
    check!(recommended "frame.utf8": "a text frame that is no UTF-8 closes the connection with 1007", utf8),
];

/// What the platform must answer with `error` and a code of ours.
async fn answered(yard: &mut Yard, frame: &str, code: &str) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say_text(frame);
    error_with(&mut worker, yard, code).await?;
    yard.give_back(worker);
    Ok(())
}

async fn error_with(worker: &mut Worker, yard: &Yard, code: &str) -> Outcome {
    let expected = format!("error with code {code}");
    let error = worker
        .line
        .wait_for(&expected, yard.within(), |message| {
            message["type"] == "error"
        })
        .await?;
    expect(error["code"] == code, expected, || error.to_string())
}

const OF_A_LATER_VERSION: &str = r#"{"type": "of_a_later_version", "data": {}}"#;
const CUT_OFF: &str = r#"{"type": "heartbeat", "#;
const WITHOUT_TYPE: &str = r#"{"status": "idle"}"#;
const JOB_ID_AS_TEXT: &str = r#"{"type": "job_started", "job_id": "one"}"#;

async fn unknown_type(yard: &mut Yard) -> Outcome {
    answered(yard, OF_A_LATER_VERSION, "unknown_type").await
}

async fn malformed(yard: &mut Yard) -> Outcome {
    answered(yard, CUT_OFF, "invalid_message").await
}

async fn no_type(yard: &mut Yard) -> Outcome {
    answered(yard, WITHOUT_TYPE, "invalid_message").await
}

async fn wrong_field(yard: &mut Yard) -> Outcome {
    answered(yard, JOB_ID_AS_TEXT, "invalid_message").await
}

async fn connection_stays(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    for frame in [OF_A_LATER_VERSION, CUT_OFF, WITHOUT_TYPE, JOB_ID_AS_TEXT] {
        worker.line.say_text(frame);
    }
    let expected = "a connection that stays open";
    worker
        .line
        .stays_quiet(expected, yard.pace.quiet_for, |_| false)
        .await?;
    yard.give_back(worker);
    Ok(())
}

/// The platform closes with this code.
async fn closed_with(worker: &mut Worker, yard: &Yard, code: u16) -> Outcome {
    let expected = format!("a close with code {code}");
    let got = worker.line.closed_within(&expected, yard.within()).await?;
    expect(got == Some(code), expected, || {
        Received::Closed(got).describe()
    })
}

async fn too_many(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    for _ in 0..20 {
        worker.line.say_text(OF_A_LATER_VERSION);
    }
    closed_with(&mut worker, yard, 4400).await?;
    yard.give_back(worker);
    Ok(())
}

async fn wrong_worker(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say(&heartbeat(&Uuid::new_v4().to_string()));
    error_with(&mut worker, yard, "wrong_worker").await?;
    yard.give_back(worker);
    Ok(())
}

async fn foreign_job(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    needed(shown(&mut dashboard, yard, job.id, "running")).await?;
    let mut stranger = yard.worker().await?;
    stranger.line.say(&json!({
        "type": "job_failed", "worker_id": stranger.identity.uuid, "job_id": job.id,
        "data": {"error": "no business of mine", "step": 1, "last_checkpoint": null}
    }));
    let expected = "an error";
    stranger
        .line
        .wait_for(expected, yard.within(), |message| {
            message["type"] == "error"
        })
        .await?;
    let expected = "a job that goes on";
    dashboard
        .stays_quiet(expected, yard.pace.quiet_for, |message| {
            message["type"] == "training_failed" || message["data"]["status"] == "failed"
        })
        .await?;
    yard.give_back(stranger);
    yard.finish(job);
    Ok(())
}

/// A heartbeat with a field that makes it so many bytes longer.
fn padded(worker: &Worker, bytes: usize) -> String {
    let mut message = heartbeat(&worker.identity.uuid);
    message["padding"] = json!("x".repeat(bytes));
    message.to_string()
}

async fn large(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say_text(&padded(&worker, 300_000));
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn taken(worker: &mut Worker, yard: &Yard) -> Outcome {
    let expected = "no error and no close";
    worker
        .line
        .stays_quiet(expected, yard.pace.quiet_for, |message| {
            message["type"] == "error"
        })
        .await
}

async fn oversize(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say_text(&padded(&worker, 1024 * 1024));
    closed_with(&mut worker, yard, 1009).await?;
    yard.give_back(worker);
    Ok(())
}

/// One frame of a text message, sent as it is.
fn frame(payload: &[u8], code: Data, is_final: bool) -> Message {
    Message::Frame(Frame::message(
        Bytes::copy_from_slice(payload),
        OpCode::Data(code),
        is_final,
    ))
}

async fn fragments(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    // An unknown type, so that there is an answer to wait for.
    let text = OF_A_LATER_VERSION.as_bytes();
    worker.line.say_frame(frame(&text[..20], Data::Text, false));
    worker
        .line
        .say_frame(frame(&text[20..25], Data::Continue, false));
    worker
        .line
        .say_frame(frame(&text[25..], Data::Continue, true));
    error_with(&mut worker, yard, "unknown_type").await?;
    yard.give_back(worker);
    Ok(())
}

async fn binary(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say_frame(Message::binary(&b"{}"[..]));
    closed_with(&mut worker, yard, 1003).await?;
    yard.give_back(worker);
    Ok(())
}

async fn utf8(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker
        .line
        .say_frame(frame(b"{\"type\": \"\xff\"}", Data::Text, true));
    closed_with(&mut worker, yard, 1007).await?;
    yard.give_back(worker);
    Ok(())
}
