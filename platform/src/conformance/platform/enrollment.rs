//! Connecting and enrolling (source: Worker connection, Enrollment flow).

use serde_json::Value;
use uuid::Uuid;

use super::line::Line;
use super::yard::{Yard, authenticate};
use super::{Check, check};
use crate::conformance::report::{Outcome, Problem, expect, needed};
use crate::conformance::socket::Received;

pub const CHECKS: &[Check] = &[
    check!(required "connect.upgrade": "/ws/worker?worker_uuid={uuid} is upgraded to a WebSocket", upgrade),
    check!(recommended "connect.uuid_checked": "a worker_uuid that is missing or no UUID is refused at the upgrade", bad_uuid),
    check!(required "enroll.complete": "an enrolment key is answered by enrollment_complete before anything else", complete_comes_first),
    check!(required "enroll.worker_id": "enrollment_complete carries the worker's number", worker_id),
    check!(required "enroll.worker_name": "enrollment_complete carries the worker's name", worker_name),
    check!(required "enroll.api_key": "enrollment_complete carries a key of the worker's own, wkr_…", api_key),
    check!(required "enroll.then_authenticated": "after enrollment_complete comes authenticated", then_authenticated),
    check!(required "enroll.own_key_lets_in": "the key from enrollment_complete lets the worker in from then on", own_key),
    check!(required "enroll.once": "a worker that shows its own key is not enrolled again", not_again),
    check!(required "enroll.unknown_key": "an enrolment key that does not exist is answered by auth_failed", unknown_key),
    check!(recommended "enroll.own_key_each": "two workers that enrol with one key get numbers and keys of their own", apart),
    check!(recommended "enroll.lost_answer": "a worker whose key was never used may enrol once more, and the first key is void", lost_answer),
    check!(recommended "enroll.no_takeover": "an enrolment key does not take over a worker whose own key was used", no_takeover),
];

async fn upgrade(yard: &mut Yard) -> Outcome {
    yard.worker_line(&Uuid::new_v4().to_string())
        .await
        .map(drop)
}

async fn bad_uuid(yard: &mut Yard) -> Outcome {
    for query in [&[][..], &[("worker_uuid", "not-a-uuid")]] {
        if yard.open("ws/worker", query).await.is_ok() {
            let expected = "HTTP 400 at the upgrade";
            return Err(Problem::broken(
                expected,
                format!("an upgrade for {query:?}"),
            ));
        }
    }
    Ok(())
}

/// A connection on which an enrolment key was shown.
async fn enrolling(yard: &mut Yard, uuid: &str) -> Outcome<Line> {
    needed(async {
        let key = yard.enrollment_key().await?;
        let line = yard.worker_line(uuid).await?;
        line.say(&authenticate(uuid, &key));
        Ok(line)
    })
    .await
}

async fn complete(yard: &mut Yard) -> Outcome<Value> {
    let mut line = enrolling(yard, &Uuid::new_v4().to_string()).await?;
    needed(line.wait_for_type("enrollment_complete", yard.within())).await
}

async fn complete_comes_first(yard: &mut Yard) -> Outcome {
    let mut line = enrolling(yard, &Uuid::new_v4().to_string()).await?;
    let expected = "enrollment_complete as the first message";
    match line.next_within(yard.within()).await {
        Some(Received::Message(message)) if message["type"] == "enrollment_complete" => Ok(()),
        Some(other) => Err(Problem::broken(expected, other.describe())),
        None => Err(Problem::broken(expected, "nothing")),
    }
}

async fn worker_id(yard: &mut Yard) -> Outcome {
    let message = complete(yard).await?;
    let number = &message["data"]["worker_id"];
    expect(
        number.is_i64() || number.is_u64(),
        "data.worker_id, an integer",
        || message.to_string(),
    )
}

async fn worker_name(yard: &mut Yard) -> Outcome {
    let message = complete(yard).await?;
    let name = message["data"]["worker_name"].as_str();
    expect(
        name.is_some_and(|name| !name.is_empty()),
        "data.worker_name, text",
        || message.to_string(),
    )
}

async fn api_key(yard: &mut Yard) -> Outcome {
    let message = complete(yard).await?;
    let key = message["data"]["api_key"].as_str();
    expect(
        key.is_some_and(|key| key.starts_with("wkr_") && key.len() > "wkr_".len()),
        "data.api_key, which begins with wkr_",
        || message.to_string(),
    )
}

async fn then_authenticated(yard: &mut Yard) -> Outcome {
    let mut line = enrolling(yard, &Uuid::new_v4().to_string()).await?;
    let within = yard.within();
    needed(line.wait_for_type("enrollment_complete", within)).await?;
    let expected = "authenticated after enrollment_complete";
    line.wait_for(expected, within, |message| {
        message["type"] == "authenticated"
    })
    .await
    .map(drop)
}

async fn own_key(yard: &mut Yard) -> Outcome {
    let (_, identity) = needed(yard.enrol()).await?;
    yard.enter(&identity).await.map(drop)
}

async fn not_again(yard: &mut Yard) -> Outcome {
    let (_, identity) = needed(yard.enrol()).await?;
    let mut line = needed(yard.worker_line(&identity.uuid)).await?;
    line.say(&authenticate(&identity.uuid, &identity.key));
    let expected = "authenticated without enrollment_complete";
    let answer = needed(line.wait_for(expected, yard.within(), |message| {
        message["type"] == "enrollment_complete" || message["type"] == "authenticated"
    }));
    let answer = answer.await?;
    expect(answer["type"] == "authenticated", expected, || {
        answer.to_string()
    })
}

async fn unknown_key(yard: &mut Yard) -> Outcome {
    let uuid = Uuid::new_v4().to_string();
    let mut line = needed(yard.worker_line(&uuid)).await?;
    let key = format!("enroll_{}", "x".repeat(43));
    line.say(&authenticate(&uuid, &key));
    refused(&mut line, yard).await
}

/// The next message is `auth_failed`.
pub async fn refused(line: &mut Line, yard: &Yard) -> Outcome {
    let expected = "auth_failed";
    match line.next_within(yard.within()).await {
        Some(Received::Message(message)) if message["type"] == "auth_failed" => Ok(()),
        Some(other) => Err(Problem::broken(expected, other.describe())),
        None => Err(Problem::broken(expected, "nothing")),
    }
}

async fn apart(yard: &mut Yard) -> Outcome {
    let (_first, one) = needed(yard.enrol()).await?;
    let (_second, other) = needed(yard.enrol()).await?;
    expect(
        one.number != other.number && one.key != other.key,
        "two numbers and two keys",
        || format!("the numbers {} and {}", one.number, other.number),
    )
}

async fn lost_answer(yard: &mut Yard) -> Outcome {
    let uuid = Uuid::new_v4().to_string();
    let within = yard.within();
    let mut first = enrolling(yard, &uuid).await?;
    let complete = needed(first.wait_for_type("enrollment_complete", within)).await?;
    drop(first);
    let mut second = enrolling(yard, &uuid).await?;
    second.wait_for_type("enrollment_complete", within).await?;
    let mut old = needed(yard.worker_line(&uuid)).await?;
    let key = complete["data"]["api_key"].as_str().unwrap_or_default();
    old.say(&authenticate(&uuid, key));
    refused(&mut old, yard).await
}

async fn no_takeover(yard: &mut Yard) -> Outcome {
    let (_, identity) = needed(yard.enrol()).await?;
    let _used = needed(yard.enter(&identity)).await?;
    let mut thief = enrolling(yard, &identity.uuid).await?;
    refused(&mut thief, yard).await
}
