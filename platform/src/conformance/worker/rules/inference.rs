//! Answering chats and evaluating models (source: `inference_tokens`, `inference_completed`, `start_evaluation`).

use serde_json::Value;

use super::check;
use super::shape::{Kind, all_have, first};
use crate::conformance::report::{Outcome, Problem, excerpt, expect};
use crate::conformance::socket::Received;
use crate::conformance::worker::acts::inference::{
    BAD_CHAT, BAD_EVALUATION, CHAT, EVALUATION, LONG_CHAT,
};
use crate::conformance::worker::story::{Act, Entry, Event, heard};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(required "inference.completed": "start_inference is answered by inference_completed at the end", completed),
    check!(required "inference.completed_fields": "inference_completed carries tokens_generated and metrics: ttft_ms, tps, total_time_ms", completed_fields),
    check!(required "inference.tokens": "inference_tokens carries tokens, a list of texts", tokens),
    check!(required "inference.batches": "tokens come in batches of 5 at most", batches),
    check!(required "inference.order": "no tokens come after the end, and the end comes once", order),
    check!(recommended "inference.text": "where inference_completed carries the text, it is that of the tokens", text),
    check!(recommended "inference.stop": "after stop_inference the answer ends", stop),
    check!(recommended "inference.failed": "a start_inference that cannot be read is answered by inference_failed", failed),
    check!(recommended "evaluation.completed": "start_evaluation is answered by evaluation_completed with the metric", evaluation),
    check!(recommended "evaluation.failed": "a metric that is not known is answered by evaluation_failed", evaluation_failed),
];

/// The most tokens in one message.
const BATCH: usize = 5;

/// A part of the play for workers that answer chats.
fn act(told: &Told, act: Act) -> Outcome<&[Entry]> {
    let part = told.story.act(act)?;
    let registrations = told.story.heard("worker_register");
    let only_trains = registrations
        .iter()
        .any(|(_, message)| message["data"]["worker_type"] == "training");
    match only_trains {
        true => Err(Problem::Blocked("its worker_type is training".to_owned())),
        false => Ok(part),
    }
}

/// The messages of one type about an inference.
fn about<'a>(part: &'a [Entry], kind: &str, id: &str) -> Vec<&'a Value> {
    let messages = heard(part, kind).into_iter().map(|(_, message)| message);
    messages
        .filter(|message| message["inference_id"] == id)
        .collect()
}

fn completed(told: &Told) -> Outcome {
    let part = act(told, Act::Chat)?;
    let came = about(part, "inference_completed", CHAT);
    let failed = about(part, "inference_failed", CHAT);
    let got = failed.first().map_or_else(
        || "nothing".to_owned(),
        |message| excerpt(&message.to_string()),
    );
    expect(!came.is_empty(), "inference_completed", || got)
}

fn completed_fields(told: &Told) -> Outcome {
    all_have(
        about(act(told, Act::Chat)?, "inference_completed", CHAT),
        "inference_completed",
        &[
            ("/data/tokens_generated", Kind::Integer),
            ("/data/metrics/ttft_ms", Kind::NumberOrNull),
            ("/data/metrics/tps", Kind::NumberOrNull),
            ("/data/metrics/total_time_ms", Kind::Number),
        ],
    )
}

/// The batches of the short answer, where it came to its end.
fn streamed(told: &Told) -> Outcome<Vec<&Value>> {
    completed(told).map_err(Problem::in_the_way)?;
    Ok(about(act(told, Act::Chat)?, "inference_tokens", CHAT))
}

fn tokens(told: &Told) -> Outcome {
    let batches = streamed(told)?;
    first(&batches, "inference_tokens, since stream was true")?;
    for message in batches {
        let tokens = message["data"]["tokens"].as_array();
        let fits = tokens.is_some_and(|tokens| tokens.iter().all(Value::is_string));
        expect(fits, "data.tokens, a list of texts", || {
            excerpt(&message.to_string())
        })?;
    }
    Ok(())
}

fn batches(told: &Told) -> Outcome {
    tokens(told).map_err(Problem::in_the_way)?;
    for message in streamed(told)? {
        let count = message["data"]["tokens"].as_array().map_or(0, Vec::len);
        expect(count <= BATCH, format!("{BATCH} tokens at most"), || {
            excerpt(&message.to_string())
        })?;
    }
    Ok(())
}

fn order(told: &Told) -> Outcome {
    completed(told).map_err(Problem::in_the_way)?;
    let kinds: Vec<_> = act(told, Act::Chat)?
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Heard(Received::Message(message)) if message["inference_id"] == CHAT => {
                message["type"].as_str()
            }
            _ => None,
        })
        .collect();
    let ends = kinds.iter().filter(|kind| **kind != "inference_tokens");
    let is_last = kinds.last() == Some(&"inference_completed");
    expect(
        is_last && ends.count() == 1,
        "inference_tokens, then inference_completed once",
        || excerpt(&kinds.join(", ")),
    )
}

fn text(told: &Told) -> Outcome {
    tokens(told).map_err(Problem::in_the_way)?;
    let part = act(told, Act::Chat)?;
    let completed = first(about(part, "inference_completed", CHAT), "the end")?;
    let Some(text) = completed["data"]["text"].as_str() else {
        return Err(Problem::Blocked(
            "inference_completed carries no text".to_owned(),
        ));
    };
    let is_end =
        |entry: &Entry| !about(std::slice::from_ref(entry), "inference_completed", CHAT).is_empty();
    // What comes after the end is another rule's business.
    let end = part.iter().position(is_end).unwrap_or(part.len());
    let joined: String = about(&part[..end], "inference_tokens", CHAT)
        .iter()
        .filter_map(|message| message["data"]["tokens"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    expect(joined == text, format!("the text {text:?}"), || {
        format!("the tokens {joined:?}")
    })
}

fn stop(told: &Told) -> Outcome {
    let part = act(told, Act::LongChat)?;
    completed(told).map_err(Problem::in_the_way)?;
    let stop = part.iter().position(
        |entry| matches!(&entry.event, Event::Said(message) if message["type"] == "stop_inference"),
    );
    let stop = stop.unwrap_or(part.len());
    let ends = |part| {
        let mut ends = about(part, "inference_completed", LONG_CHAT);
        ends.extend(about(part, "inference_failed", LONG_CHAT));
        ends
    };
    if !ends(&part[..stop]).is_empty() {
        return Err(Problem::Blocked(
            "the answer ended before it was stopped".to_owned(),
        ));
    }
    first(
        ends(&part[stop..]),
        "inference_completed or inference_failed",
    )
    .map(drop)
}

fn failed(told: &Told) -> Outcome {
    let part = act(told, Act::BadChat)?;
    first(
        about(part, "inference_failed", BAD_CHAT),
        "inference_failed",
    )
    .map(drop)
}

/// The messages of one type about an evaluation.
fn about_evaluation<'a>(part: &'a [Entry], kind: &str, id: i64) -> Vec<&'a Value> {
    let messages = heard(part, kind).into_iter().map(|(_, message)| message);
    messages
        .filter(|message| message["evaluation_id"] == id)
        .collect()
}

fn evaluation(told: &Told) -> Outcome {
    let part = act(told, Act::Evaluation)?;
    let failed = about_evaluation(part, "evaluation_failed", EVALUATION);
    let got = failed.first().map_or_else(
        || "nothing".to_owned(),
        |message| excerpt(&message.to_string()),
    );
    let completed = about_evaluation(part, "evaluation_completed", EVALUATION);
    let expected = "evaluation_completed with data.metrics.perplexity, at least 1";
    let completed = completed
        .first()
        .ok_or_else(|| Problem::broken(expected, got))?;
    let perplexity = completed["data"]["metrics"]["perplexity"].as_f64();
    expect(perplexity >= Some(1.0), expected, || {
        excerpt(&completed.to_string())
    })
}

fn evaluation_failed(told: &Told) -> Outcome {
    let part = act(told, Act::BadEvaluation)?;
    let failed = about_evaluation(part, "evaluation_failed", BAD_EVALUATION);
    first(failed, "evaluation_failed").map(drop)
}
