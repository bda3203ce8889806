//! Heartbeats, metrics and pongs (source: `heartbeat`, `worker_metrics`, `pong`, Heartbeat mechanism).

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::check;
use super::shape::{Kind, all_have, first};
use crate::conformance::report::{Outcome, Problem, excerpt, expect};
use crate::conformance::worker::acts::LONG_JOB;
use crate::conformance::worker::story::{Act, Entry, Event, heard};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(required "heartbeat.sent": "it sends heartbeat", heartbeat_sent),
    check!(required "heartbeat.fields": "heartbeat carries worker_id and status", heartbeat_fields),
    check!(required "heartbeat.interval": "it sends a heartbeat every HEARTBEAT_INTERVAL", heartbeat_interval),
    check!(required "heartbeat.while_training": "heartbeats go on while it trains", heartbeat_while_training),
    check!(required "metrics.sent": "it sends worker_metrics", metrics_sent),
    check!(required "metrics.fields": "worker_metrics tells of memory, processor and status", metrics_fields),
    check!(required "metrics.interval": "it sends worker_metrics every METRICS_INTERVAL", metrics_interval),
    check!(required "pong.sent": "ping is answered by pong", pong_sent),
    check!(required "pong.fields": "pong carries worker_id, status and busy", pong_fields),
    check!(required "pong.idle": "the pong of a worker without a job says so: busy false, no current_job_id", pong_idle),
    check!(required "pong.training": "the pong of a worker that trains says so: busy true, current_job_id", pong_training),
    check!(recommended "pong.ping_id": "pong echoes the ping_id of its ping", ping_id),
];

fn messages<'a>(told: &'a Told, kind: &str) -> impl Iterator<Item = &'a Value> {
    told.story
        .heard(kind)
        .into_iter()
        .map(|(_, message)| message)
}

fn heartbeat_sent(told: &Told) -> Outcome {
    told.joined()?;
    first(told.story.heard("heartbeat"), "heartbeat").map(drop)
}

fn heartbeat_fields(told: &Told) -> Outcome {
    let fields = [("/worker_id", Kind::Text), ("/status", Kind::Text)];
    all_have(messages(told, "heartbeat"), "heartbeat", &fields)
}

fn metrics_sent(told: &Told) -> Outcome {
    told.joined()?;
    first(told.story.heard("worker_metrics"), "worker_metrics").map(drop)
}

fn metrics_fields(told: &Told) -> Outcome {
    let number = Kind::NumberOrNull;
    all_have(
        messages(told, "worker_metrics"),
        "worker_metrics",
        &[
            ("/data/cpu_utilization", number),
            ("/data/ram_used", number),
            ("/data/ram_total", number),
            ("/data/status", Kind::Text),
        ],
    )
}

fn slow(told: &Told) -> Outcome {
    let why = "slow: only with --timing";
    match told.slow {
        true => Ok(()),
        false => Err(Problem::Blocked(why.to_owned())),
    }
}

/// Messages of that type come with about that interval as long as `part` lasts.
fn regular(told: &Told, part: &[Entry], kind: &str, interval: Duration) -> Outcome {
    let (Some(begin), Some(end)) = (part.first(), part.last()) else {
        return Err(Problem::Blocked("nothing was played".to_owned()));
    };
    let longest = interval.mul_f64(1.2) + told.timings.tolerance;
    let expected = format!("a {kind} every {interval:?}, at most {longest:?} apart");
    let times = heard(part, kind).into_iter().map(|(at, _)| at);
    let mut last: Instant = begin.at;
    let mut count = 0;
    for at in times.chain([end.at]) {
        let gap = at - last;
        expect(gap <= longest, expected.clone(), || {
            format!("none for {gap:?}")
        })?;
        last = at;
        count += 1;
    }
    let lasted = end.at - begin.at;
    let most = lasted.as_secs_f64() / interval.as_secs_f64() * 2.0 + 3.0;
    expect(f64::from(count) <= most, expected, || {
        format!("{count} within {lasted:?}")
    })
}

fn heartbeat_interval(told: &Told) -> Outcome {
    slow(told)?;
    let idle = told.story.act(Act::Idle)?;
    regular(told, idle, "heartbeat", told.timings.heartbeat_interval)
}

fn metrics_interval(told: &Told) -> Outcome {
    slow(told)?;
    let idle = told.story.act(Act::Idle)?;
    regular(told, idle, "worker_metrics", told.timings.metrics_interval)
}

/// The long job from its first reported step to the request to stop it.
fn training(told: &Told) -> Outcome<&[Entry]> {
    let part = told.story.act(Act::LongJob)?;
    let blocked = || Problem::Blocked("the long job did not get under way".to_owned());
    let position = |wanted: &dyn Fn(&Entry) -> bool| part.iter().position(wanted);
    let begin =
        position(&|entry| !heard(std::slice::from_ref(entry), "training_progress").is_empty());
    let end = position(
        &|entry| matches!(&entry.event, Event::Said(message) if message["type"] == "stop_training"),
    );
    Ok(&part[begin.ok_or_else(blocked)?..end.ok_or_else(blocked)?])
}

fn heartbeat_while_training(told: &Told) -> Outcome {
    slow(told)?;
    regular(
        told,
        training(told)?,
        "heartbeat",
        told.timings.heartbeat_interval,
    )
}

/// The pong to the ping that was sent in `part`.
fn pong(part: &[Entry]) -> Outcome<&Value> {
    let (_, pong) = first(heard(part, "pong"), "pong")?;
    Ok(pong)
}

fn pong_sent(told: &Told) -> Outcome {
    pong(told.story.act(Act::Ping)?).map(drop)
}

fn pong_fields(told: &Told) -> Outcome {
    let fields = [
        ("/worker_id", Kind::Text),
        ("/status", Kind::Text),
        ("/busy", Kind::Flag),
    ];
    all_have(messages(told, "pong"), "pong", &fields)
}

/// The pong, for rules about what it says.
fn pong_of(part: &[Entry]) -> Outcome<&Value> {
    pong(part).map_err(Problem::in_the_way)
}

fn pong_idle(told: &Told) -> Outcome {
    let pong = pong_of(told.story.act(Act::Ping)?)?;
    expect(
        pong["busy"] == false && pong["current_job_id"].is_null(),
        "busy false, and current_job_id null or missing",
        || excerpt(&pong.to_string()),
    )
}

fn pong_training(told: &Told) -> Outcome {
    let pong = pong_of(training(told)?)?;
    expect(
        pong["busy"] == true && pong["current_job_id"] == LONG_JOB,
        format!("busy true, and current_job_id {LONG_JOB}"),
        || excerpt(&pong.to_string()),
    )
}

fn ping_id(told: &Told) -> Outcome {
    let part = told.story.act(Act::Ping)?;
    let pong = pong_of(part)?;
    let asked = part.iter().find_map(|entry| match &entry.event {
        Event::Said(message) if message["type"] == "ping" => Some(&message["ping_id"]),
        _ => None,
    });
    expect(
        asked == Some(&pong["ping_id"]),
        "the ping's ping_id",
        || excerpt(&pong.to_string()),
    )
}
