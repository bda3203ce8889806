//! Connecting, enrolling, authenticating, registering (source: Worker connection to Registration).

use serde_json::Value;
use uuid::Uuid;

use super::check;
use super::shape::{Kind, all_have, first};
use crate::conformance::report::{Outcome, Problem, excerpt, expect};
use crate::conformance::socket::Received;
use crate::conformance::worker::story::{Entry, Event};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(required "connect.address": "it connects to /ws/worker?worker_uuid={uuid}", address),
    check!(required "connect.uuid": "its worker_uuid is a UUID, the same on every connection", uuid),
    check!(required "auth.first": "the first message on every connection is authenticate", auth_first),
    check!(required "auth.fields": "authenticate carries api_key and the worker_uuid of the address", auth_fields),
    check!(required "auth.enrollment_key": "on its first connection it shows the enrolment key", shows_enrollment_key),
    check!(required "auth.own_key": "from then on it shows the key from enrollment_complete", shows_own_key),
    check!(required "register.sent": "after authenticated it sends worker_register", register_sent),
    check!(required "register.after_auth": "it says nothing but authenticate before authenticated", nothing_before),
    check!(required "register.hardware": "worker_register tells of the hardware", hardware),
    check!(required "register.worker_type": "worker_type is both, training or inference", worker_type),
    check!(required "register.benchmark": "worker_register carries the benchmark's results", benchmark),
];

/// The story of each connection: its address and what happened until the next one.
fn connections(told: &Told) -> Outcome<Vec<(&str, &[Entry])>> {
    let entries = &told.story.entries;
    let mut begins: Vec<usize> = (0..entries.len())
        .filter(|index| matches!(entries[*index].event, Event::Opened(_)))
        .collect();
    begins.push(entries.len());
    let connections: Vec<_> = begins
        .windows(2)
        .filter_map(|pair| {
            let part = &entries[pair[0]..pair[1]];
            match &part[0].event {
                Event::Opened(target) => Some((target.as_str(), part)),
                _ => None,
            }
        })
        .collect();
    if connections.is_empty() {
        return Err(Problem::Blocked("no worker connected".to_owned()));
    }
    Ok(connections)
}

fn uuid_of(target: &str) -> Option<&str> {
    let (path, query) = target.split_once('?')?;
    let named = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("worker_uuid="));
    named.filter(|_| path.ends_with("/ws/worker"))
}

fn address(told: &Told) -> Outcome {
    for (target, _) in connections(told)? {
        expect(
            uuid_of(target).is_some(),
            "/ws/worker?worker_uuid=…",
            || target.to_owned(),
        )?;
    }
    Ok(())
}

fn uuid(told: &Told) -> Outcome {
    let connections = connections(told)?;
    let named: Vec<_> = connections
        .iter()
        .filter_map(|(target, _)| uuid_of(target))
        .collect();
    let first = named
        .first()
        .ok_or_else(|| Problem::Blocked("no connection names a worker".to_owned()))?;
    let is_one = Uuid::parse_str(first).is_ok() && named.iter().all(|other| other == first);
    expect(is_one, "one UUID", || named.join(", "))
}

/// What a connection brought.
fn heard(part: &[Entry]) -> impl Iterator<Item = &Received> {
    part.iter().filter_map(|entry| match &entry.event {
        Event::Heard(received) => Some(received),
        _ => None,
    })
}

fn auth_first(told: &Told) -> Outcome {
    let expected = "authenticate as the first message";
    for (_, part) in connections(told)? {
        match heard(part).next() {
            Some(Received::Message(message)) if message["type"] == "authenticate" => {}
            Some(other) => return Err(Problem::broken(expected, other.describe())),
            // The play ended before it could say anything.
            None => {}
        }
    }
    Ok(())
}

/// Each `authenticate`, with the UUID of its connection's address.
fn authentications(told: &Told) -> Outcome<Vec<(Option<&str>, &Value)>> {
    let mut found = Vec::new();
    for (target, part) in connections(told)? {
        for received in heard(part) {
            if let Received::Message(message) = received
                && message["type"] == "authenticate"
            {
                found.push((uuid_of(target), message));
            }
        }
    }
    if found.is_empty() {
        return Err(Problem::Blocked("it never sent authenticate".to_owned()));
    }
    Ok(found)
}

/// A message without its key: reports are passed around.
fn hidden(message: &Value) -> String {
    let mut message = message.clone();
    if let Some(Value::String(key)) = message.get_mut("api_key") {
        key.truncate(key.find('_').map_or(0, |at| at + 1));
        key.push('…');
    }
    excerpt(&message.to_string())
}

fn auth_fields(told: &Told) -> Outcome {
    for (uuid, message) in authentications(told)? {
        let agrees = uuid.is_none() || message["worker_uuid"].as_str() == uuid;
        let complete = message["api_key"].is_string() && message["worker_uuid"].is_string();
        expect(
            complete && agrees,
            "api_key, and the worker_uuid of the address",
            || hidden(message),
        )?;
    }
    Ok(())
}

fn shows_enrollment_key(told: &Told) -> Outcome {
    let (_, message) = first(authentications(told)?, "authenticate")?;
    expect(
        message["api_key"] == told.enrollment_key.expose(),
        "the enrolment key that it was started with",
        || hidden(message),
    )
}

fn shows_own_key(told: &Told) -> Outcome {
    let authentications = authentications(told)?;
    if authentications.len() < 2 {
        return Err(Problem::Blocked("it authenticated only once".to_owned()));
    }
    let issued: Vec<_> = told
        .story
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Said(message) if message["type"] == "enrollment_complete" => {
                Some(&message["data"]["api_key"])
            }
            _ => None,
        })
        .collect();
    for (_, message) in &authentications[1..] {
        expect(
            issued.contains(&&message["api_key"]),
            "the wkr_ key from enrollment_complete",
            || hidden(message),
        )?;
    }
    Ok(())
}

fn register_sent(told: &Told) -> Outcome {
    authentications(told)?;
    first(told.story.heard("worker_register"), "worker_register").map(drop)
}

fn nothing_before(told: &Told) -> Outcome {
    let expected = "nothing but authenticate before authenticated";
    for (_, part) in connections(told)? {
        for entry in part {
            match &entry.event {
                Event::Said(message) if message["type"] == "authenticated" => break,
                Event::Heard(Received::Message(message)) if message["type"] != "authenticate" => {
                    return Err(Problem::broken(expected, excerpt(&message.to_string())));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn registrations(told: &Told) -> impl Iterator<Item = &Value> {
    let registrations = told.story.heard("worker_register");
    registrations.into_iter().map(|(_, message)| message)
}

fn hardware(told: &Told) -> Outcome {
    all_have(
        registrations(told),
        "worker_register",
        &[("/data/gpu_available", Kind::Flag)],
    )?;
    // A machine without a GPU has nothing to say of it.
    all_have(
        registrations(told).filter(|message| message["data"]["gpu_available"] == true),
        "worker_register of a machine with a GPU",
        &[
            ("/data/gpu_name", Kind::Text),
            ("/data/gpu_memory_gb", Kind::Number),
            ("/data/max_batch_size", Kind::Integer),
        ],
    )
    .or_else(|problem| match problem {
        Problem::Blocked(_) => Ok(()),
        broken @ Problem::Broken { .. } => Err(broken),
    })
}

fn worker_type(told: &Told) -> Outcome {
    all_have(
        registrations(told),
        "worker_register",
        &[("/data/worker_type", Kind::Text)],
    )?;
    for message in registrations(told) {
        let kind = &message["data"]["worker_type"];
        expect(
            ["both", "training", "inference"]
                .iter()
                .any(|known| kind == known),
            "both, training or inference",
            || kind.to_string(),
        )?;
    }
    Ok(())
}

fn benchmark(told: &Told) -> Outcome {
    let number = Kind::NumberOrNull;
    all_have(
        registrations(told),
        "worker_register",
        &[
            ("/data/benchmark", Kind::Object),
            ("/data/benchmark/gpu_score", number),
            ("/data/benchmark/tflops", number),
            ("/data/benchmark/memory_bandwidth_gbps", number),
            ("/data/benchmark/max_batch_size_tested", number),
            ("/data/benchmark/benchmark_version", Kind::Text),
            ("/data/benchmark/benchmark_duration_seconds", number),
            ("/data/benchmark/is_estimated", Kind::Flag),
        ],
    )
}
