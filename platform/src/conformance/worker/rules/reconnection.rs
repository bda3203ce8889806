//! Coming back (source: Reconnection).

use std::time::Duration;

use tokio::time::Instant;

use super::check;
use super::shape::first;
use crate::conformance::report::{Outcome, Problem, expect};
use crate::conformance::worker::acts::{CUT_JOB, REFUSALS};
use crate::conformance::worker::story::{Act, Entry, Event, about_job, heard};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(required "reconnect.comes_back": "after its connection was cut it connects again", comes_back),
    check!(required "reconnect.authenticates": "then it authenticates again", authenticates),
    check!(required "reconnect.registers": "then it sends its hardware again", registers),
    check!(required "reconnect.delay": "it waits RECONNECT_DELAY before it tries", delay),
    check!(required "reconnect.doubles": "on failure the delay is doubled, up to its cap", doubles),
    check!(required "reconnect.resets": "on success the delay is reset", resets),
    check!(recommended "reconnect.job_goes_on": "a job goes on while the connection is lost", job_goes_on),
];

/// What happened after the first cut in a part of the play.
fn after_cut(told: &Told, act: Act) -> Outcome<&[Entry]> {
    let part = told.story.act(act)?;
    let cut = part.iter().position(|entry| entry.event == Event::Cut);
    cut.map(|cut| &part[cut..])
        .ok_or_else(|| Problem::Blocked("its connection was not cut".to_owned()))
}

fn comes_back(told: &Told) -> Outcome {
    let part = after_cut(told, Act::IdleCut)?;
    let opened = part
        .iter()
        .find(|entry| matches!(entry.event, Event::Opened(_)));
    first(opened, "a new connection").map(drop)
}

fn authenticates(told: &Told) -> Outcome {
    let part = after_cut(told, Act::IdleCut)?;
    comes_back(told).map_err(Problem::in_the_way)?;
    first(heard(part, "authenticate"), "authenticate").map(drop)
}

fn registers(told: &Told) -> Outcome {
    let part = after_cut(told, Act::IdleCut)?;
    authenticates(told).map_err(Problem::in_the_way)?;
    first(heard(part, "worker_register"), "worker_register").map(drop)
}

/// The times of the tries to connect.
fn tries(part: &[Entry]) -> Vec<Instant> {
    part.iter()
        .filter(|entry| entry.event == Event::Tried)
        .map(|entry| entry.at)
        .collect()
}

/// Whether a wait is what it has to be after so many failures: jitter of 10 % and the tolerance allowed for.
fn fits(told: &Told, waited: Duration, failures: usize) -> Outcome {
    let delay = told.timings.delay_before(failures);
    let (shortest, longest) = (
        delay.mul_f64(0.85),
        delay.mul_f64(1.2) + told.timings.tolerance,
    );
    expect(
        (shortest..=longest).contains(&waited),
        format!("a delay of about {delay:?} after {failures} failures"),
        || format!("{waited:?}"),
    )
}

fn delay(told: &Told) -> Outcome {
    slow(told)?;
    let part = after_cut(told, Act::IdleCut)?;
    let cut = part[0].at;
    let tried = tries(part).first().copied();
    let tried = tried.ok_or_else(|| Problem::Blocked("it did not come back".to_owned()))?;
    fits(told, tried - cut, 0)
}

fn slow(told: &Told) -> Outcome {
    match told.slow {
        true => Ok(()),
        false => Err(Problem::Blocked("slow: only with --timing".to_owned())),
    }
}

fn doubles(told: &Told) -> Outcome {
    slow(told)?;
    let tries = tries(after_cut(told, Act::Refusals)?);
    if tries.len() <= REFUSALS {
        let got = format!("{} tries while it was turned away", tries.len());
        return Err(Problem::broken("tries without end", got));
    }
    for (failures, pair) in tries[..=REFUSALS].windows(2).enumerate() {
        fits(told, pair[1] - pair[0], failures + 1)?;
    }
    Ok(())
}

fn resets(told: &Told) -> Outcome {
    slow(told)?;
    let part = after_cut(told, Act::Refusals)?;
    let again = part.iter().rposition(|entry| entry.event == Event::Cut);
    let part = &part[again.unwrap_or(0)..];
    let tried = tries(part).first().copied();
    let (Some(1..), Some(tried)) = (again, tried) else {
        return Err(Problem::Blocked("it did not come back twice".to_owned()));
    };
    fits(told, tried - part[0].at, 0)
}

fn job_goes_on(told: &Told) -> Outcome {
    let part = after_cut(told, Act::BusyCut)?;
    let opened = part
        .iter()
        .position(|entry| matches!(entry.event, Event::Opened(_)));
    let opened = opened.ok_or_else(|| Problem::Blocked("it did not come back".to_owned()))?;
    let progress = about_job(&part[opened..], CUT_JOB)
        .into_iter()
        .find(|message| message["type"] == "training_progress");
    first(progress, "training_progress after the reconnection").map(drop)
}
