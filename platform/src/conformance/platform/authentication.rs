//! Authenticating (source: Worker connection, Authentication success, Authentication failure).

use serde_json::Value;
use uuid::Uuid;

use super::enrollment::refused;
use super::yard::{Yard, authenticate, heartbeat, register};
use super::{Check, check};
use crate::conformance::report::{Outcome, Problem, expect, needed};
use crate::conformance::socket::Received;

pub const CHECKS: &[Check] = &[
    check!(required "auth.status": "authenticated carries status ok", status),
    check!(required "auth.worker_id": "authenticated carries the worker's UUID", worker_id),
    check!(required "auth.failed": "a key that does not exist is answered by auth_failed", unknown_key),
    check!(required "auth.reason": "auth_failed carries a reason", reason),
    check!(required "auth.comes_first": "a worker that has not authenticated is not let in", comes_first),
    check!(recommended "auth.key_bound": "a worker's key does not open another worker's connection", key_bound),
    check!(recommended "auth.uuids_agree": "the worker_uuid of the message must be that of the address", uuids_agree),
    check!(recommended "auth.close_code": "after auth_failed the connection is closed with 4401", close_code),
    check!(recommended "auth.not_authenticated": "a message before authenticate is answered by error not_authenticated", not_authenticated),
    check!(recommended "auth.deadline": "a connection that does not authenticate in time is closed with 4408", deadline),
    check!(recommended "auth.takeover": "a newer connection of a worker takes over, and the older one is closed with 4409", takeover),
];

/// `authenticated`, and the UUID of the worker that it is for.
async fn authenticated(yard: &mut Yard) -> Outcome<(Value, String)> {
    needed(async {
        let worker = yard.worker().await?;
        let uuid = worker.identity.uuid.clone();
        let mut line = yard.worker_line(&uuid).await?;
        line.say(&authenticate(&uuid, &worker.identity.key));
        let message = line.wait_for_type("authenticated", yard.within()).await?;
        yard.give_back(worker);
        Ok((message, uuid))
    })
    .await
}

async fn status(yard: &mut Yard) -> Outcome {
    let (message, _) = authenticated(yard).await?;
    expect(message["status"] == "ok", "status ok", || {
        message.to_string()
    })
}

async fn worker_id(yard: &mut Yard) -> Outcome {
    let (message, uuid) = authenticated(yard).await?;
    expect(
        message["worker_id"] == uuid.as_str(),
        format!("worker_id {uuid}"),
        || message.to_string(),
    )
}

/// The answer to a worker's key that does not exist.
async fn failure(yard: &mut Yard) -> Outcome<(super::line::Line, Value)> {
    let uuid = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&uuid)).await?;
    let key = format!("wkr_{}", "x".repeat(43));
    line.say(&authenticate(&uuid, &key));
    let message = line.wait_for_type("auth_failed", yard.within()).await?;
    Ok((line, message))
}

async fn unknown_key(yard: &mut Yard) -> Outcome {
    failure(yard).await.map(drop)
}

async fn reason(yard: &mut Yard) -> Outcome {
    let (_, message) = needed(failure(yard)).await?;
    let reason = message["reason"].as_str();
    expect(
        reason.is_some_and(|reason| !reason.is_empty()),
        "reason, text",
        || message.to_string(),
    )
}

async fn comes_first(yard: &mut Yard) -> Outcome {
    let uuid = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&uuid)).await?;
    line.say(&register(&uuid));
    line.say(&heartbeat(&uuid));
    let expected = "no message but error, auth_failed or a close";
    loop {
        match line.next_within(yard.pace.quiet_for).await {
            None | Some(Received::Closed(_)) => return Ok(()),
            Some(Received::Message(message))
                if message["type"] == "error" || message["type"] == "auth_failed" => {}
            Some(other) => return Err(Problem::broken(expected, other.describe())),
        }
    }
}

async fn key_bound(yard: &mut Yard) -> Outcome {
    let worker = yard.worker().await?;
    let other = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&other)).await?;
    line.say(&authenticate(&other, &worker.identity.key));
    yard.give_back(worker);
    refused(&mut line, yard).await
}

async fn uuids_agree(yard: &mut Yard) -> Outcome {
    let worker = yard.worker().await?;
    let other = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&other)).await?;
    line.say(&authenticate(&worker.identity.uuid, &worker.identity.key));
    yard.give_back(worker);
    refused(&mut line, yard).await
}

async fn close_code(yard: &mut Yard) -> Outcome {
    let (mut line, _) = needed(failure(yard)).await?;
    let expected = "a close with code 4401";
    let code = line.closed_within(expected, yard.within()).await?;
    expect(code == Some(4401), expected, || {
        Received::Closed(code).describe()
    })
}

async fn not_authenticated(yard: &mut Yard) -> Outcome {
    let uuid = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&uuid)).await?;
    line.say(&heartbeat(&uuid));
    let expected = "error with code not_authenticated";
    let error = line
        .wait_for(expected, yard.within(), |message| {
            message["type"] == "error"
        })
        .await?;
    expect(error["code"] == "not_authenticated", expected, || {
        error.to_string()
    })
}

async fn deadline(yard: &mut Yard) -> Outcome {
    let within = yard.timings()?.authenticate_within;
    let mut line = needed(yard.worker_line(&Uuid::new_v4().to_string())).await?;
    let expected = "a close with code 4408";
    let code = line.closed_within(expected, within + yard.within()).await?;
    expect(code == Some(4408), expected, || {
        Received::Closed(code).describe()
    })
}

async fn takeover(yard: &mut Yard) -> Outcome {
    let mut older = yard.worker().await?;
    let _newer = yard.enter(&older.identity).await?;
    let expected = "a close of the older connection with code 4409";
    let code = older.line.closed_within(expected, yard.within()).await?;
    yard.give_back(older);
    expect(code == Some(4409), expected, || {
        Received::Closed(code).describe()
    })
}
