//! A deterministic simulation of the session, supervisor and job core: the platform's and the worker's own state
//! machines, driven by a virtual clock and a seeded network, with crashes, pauses, cuts, half-open links, delays,
//! repeats, unclear writes, full disks and lost power. After every event all invariants are checked
//! (`invariants.rs`); at the end everything is repaired and has to come to rest.
//!
//! Real: `workers::{state, lease, placement, job_messages}`, `jobs::{state, progress}`, `federated::state`, the
//! worker's `slot`, `backoff` and `waiting`. Played: what the actors do around them, the rounds of sessions, the
//! sockets, the database and the disk.
//!
//! `SIMULATION_SEED=n` replays one seed and prints its trace; `SIMULATION_SEEDS=n` runs so many (default 10,000).

mod chaos;
mod database;
mod delivery;
mod disk;
mod dispatcher;
mod invariants;
mod jobs;
mod network;
mod platform;
mod random;
mod rounds;
mod sessions;
mod storm;
mod supervisor;
mod training;
mod worker;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use world::{Broken, Finding, simulate};

const SEEDS: u64 = 10_000;
/// Lines of a trace that are printed.
const SHOWN_LINES: usize = 400;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

/// The finding of the lowest among so many seeds, on all processors.
fn first_finding(seeds: u64, broken: Option<Broken>) -> Option<Finding> {
    let next = AtomicU64::new(0);
    let end = AtomicU64::new(seeds);
    let found: Mutex<Option<Finding>> = Mutex::new(None);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(finding) = simulate(seed, broken) {
                        end.fetch_min(seed, Ordering::Relaxed);
                        let mut found = found.lock().unwrap();
                        if found.as_ref().is_none_or(|lowest| seed < lowest.seed) {
                            *found = Some(finding);
                        }
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

fn report(finding: &Finding) -> String {
    let from = finding.trace.len().saturating_sub(SHOWN_LINES);
    format!(
        "seed {} after {:.3} s of its own time: {}\nreplay it with SIMULATION_SEED={}\n{}",
        finding.seed,
        finding.at_ms as f64 / 1e3,
        finding.what,
        finding.seed,
        finding.trace[from..].join("\n")
    )
}

#[test]
fn every_invariant_holds_whatever_goes_wrong() {
    let finding = match number("SIMULATION_SEED") {
        Some(seed) => simulate(seed, None),
        None => first_finding(number("SIMULATION_SEEDS").unwrap_or(SEEDS), None),
    };
    if let Some(finding) = finding {
        panic!("{}", report(&finding));
    }
}

/// Within so many seeds the fault has to be found, and by the invariant that it breaks.
fn is_found(broken: Broken, seeds: u64, expected: &str) {
    let Some(finding) = first_finding(seeds, Some(broken)) else {
        panic!("{seeds} seeds do not find {broken:?}");
    };
    let (seed, what) = (finding.seed, finding.what);
    println!("{broken:?}: seed {seed}: {what}");
    assert!(what.contains(expected), "{broken:?}: seed {seed}: {what}");
}

#[test]
fn a_replaced_connection_that_is_still_heard_is_found() {
    is_found(
        Broken::StaleGenerationAccepted,
        500,
        "a replaced connection",
    );
}

#[test]
fn an_acknowledgement_before_the_commit_is_found() {
    is_found(
        Broken::AckBeforeCommit,
        500,
        "was acknowledged and is not stored",
    );
}

#[test]
fn an_outbox_that_is_not_synced_is_found() {
    is_found(Broken::OutboxNotSynced, 2_000, "was kept");
}

#[test]
fn a_commit_that_does_not_compare_is_found() {
    is_found(Broken::CommitWithoutComparing, 500, "job");
}

#[test]
fn a_restart_that_forgets_jobs_is_found() {
    is_found(Broken::RestartForgetsJobs, 500, "job");
}

#[test]
fn a_job_that_is_started_twice_is_found() {
    is_found(Broken::StartsTwice, 2_000, "a second time");
}

#[test]
fn a_restart_that_forgets_who_takes_part_in_sessions_is_found() {
    is_found(Broken::RestartForgetsSessions, 500, "session");
}

#[test]
fn a_session_that_is_not_told_of_a_lost_worker_is_found() {
    is_found(Broken::SessionNewsLost, 500, "session");
}

#[test]
fn a_worker_that_is_never_released_is_found() {
    is_found(Broken::ReleaseLost, 500, "everything was repaired long ago");
}
