//! What a worker does with what it cannot understand, and whether it speaks JSON itself.

use super::check;
use super::shape::first;
use crate::conformance::report::{Outcome, Problem, expect};
use crate::conformance::socket::Received;
use crate::conformance::worker::story::{Act, Event, heard};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(recommended "fault.unknown_type": "a type that is not known leaves it connected and answering", unknown_type),
    check!(recommended "fault.malformed": "a frame that is no JSON leaves it connected and answering", malformed),
    check!(recommended "fault.unknown_field": "a field that is not known is ignored", unknown_field),
    check!(required "format.json_with_type": "every message of it is a JSON object with a type", every_message_is_json),
    check!(required "format.timestamps": "every timestamp of it is RFC 3339", every_timestamp_is_rfc_3339),
];

/// It answered the ping that came after, on the same connection.
fn survives(told: &Told, act: Act) -> Outcome {
    let part = told.story.act(act)?;
    let closed = part.iter().find_map(|entry| match &entry.event {
        Event::Heard(closed @ Received::Closed(_)) => Some(closed.describe()),
        _ => None,
    });
    if let Some(closed) = closed {
        return Err(Problem::broken("a connection that stays", closed));
    }
    first(heard(part, "pong"), "pong to the next ping").map(drop)
}

fn unknown_type(told: &Told) -> Outcome {
    answers_pings(told)?;
    survives(told, Act::UnknownType)
}

fn malformed(told: &Told) -> Outcome {
    answers_pings(told)?;
    survives(told, Act::Malformed)
}

fn unknown_field(told: &Told) -> Outcome {
    answers_pings(told)?;
    survives(told, Act::UnknownField)
}

/// What is looked at by pings says nothing about a worker that answers none.
fn answers_pings(told: &Told) -> Outcome {
    let part = told.story.act(Act::Ping)?;
    first(heard(part, "pong"), "pong")
        .map(drop)
        .map_err(Problem::in_the_way)
}

fn every_message_is_json(told: &Told) -> Outcome {
    told.joined()?;
    let unreadable = told
        .story
        .entries
        .iter()
        .find_map(|entry| match &entry.event {
            Event::Heard(Received::Unreadable(what)) => Some(what.clone()),
            _ => None,
        });
    expect(unreadable.is_none(), "a JSON object with a type", || {
        unreadable.unwrap_or_default()
    })
}

fn every_timestamp_is_rfc_3339(told: &Told) -> Outcome {
    told.joined()?;
    for entry in &told.story.entries {
        if let Event::Heard(received @ Received::Message(message)) = &entry.event {
            let fits = message["timestamp"].as_str().map_or_else(
                || message["timestamp"].is_null(),
                |text| chrono::DateTime::parse_from_rfc3339(text).is_ok(),
            );
            expect(fits, "an RFC 3339 timestamp", || received.describe())?;
        }
    }
    Ok(())
}
