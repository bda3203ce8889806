//! Who is alive, in real time (source: Heartbeat mechanism, Reconnection). Slow: the platform's own timings are
//! waited for.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::dashboards::shut_out;
use super::line::Line;
use super::yard::{Job, Yard, heartbeat};
use super::{Check, Timings, check};
use crate::conformance::report::{Outcome, Problem, expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "liveness.heartbeats_suffice": "a worker that beats in time is not marked offline", heartbeats_suffice),
    check!(required "liveness.ping": "a worker that misses its heartbeats is sent a ping before it is marked offline", ping),
    check!(required "liveness.pong_saves": "a worker that answers the ping is not marked offline", pong_saves),
    check!(required "liveness.offline": "a worker that does not answer is marked offline, and dashboards are told", offline),
    check!(required "liveness.not_early": "a worker is not marked offline before the heartbeat timeout", not_early),
    check!(required "liveness.job_fails": "the running job of a lost worker is failed, with training_failed", job_fails),
    check!(required "liveness.training_failed": "that training_failed carries error and last_checkpoint_step", failure_fields),
    check!(recommended "liveness.one_failure": "one outage is told once: one training_failed", one_failure),
    check!(recommended "reconnect.job_goes_on": "a worker that is back in time keeps its job", job_goes_on),
    check!(required "dashboard.token_expires": "a dashboard's token is void after its lifetime", token_expires),
];

impl Timings {
    /// When a silent worker is marked offline at the latest: the timeout and the ping may each wait for a check.
    fn lost_within(&self) -> Duration {
        self.heartbeat_timeout + self.ping_grace + 3 * self.check_interval
    }
}

fn is_offline(message: &Value, uuid: &str) -> bool {
    message["type"] == "worker_update"
        && message["worker_id"] == uuid
        && message["data"]["status"] == "offline"
}

/// Lets time pass in which a worker must not be marked offline.
async fn stays_online(yard: &Yard, dashboard: &mut Line, uuid: &str, wait: Duration) -> Outcome {
    let expected = "no worker_update with status offline";
    dashboard
        .stays_quiet(expected, wait + yard.pace.quiet_for, |message| {
            is_offline(message, uuid)
        })
        .await
}

async fn heartbeats_suffice(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.worker().await?;
    worker.line.fall_silent();
    let uuid = worker.identity.uuid.clone();
    let end = Instant::now() + timings.lost_within();
    while Instant::now() < end {
        worker.line.say(&heartbeat(&uuid));
        let third = timings.heartbeat_timeout / 3;
        let expected = "no worker_update with status offline";
        dashboard
            .stays_quiet(expected, third, |message| is_offline(message, &uuid))
            .await?;
    }
    yard.give_back(worker);
    Ok(())
}

async fn ping(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let mut worker = yard.worker().await?;
    let within = timings.lost_within() + yard.within();
    worker
        .line
        .wait_for("ping to a worker that is silent", within, |message| {
            message["type"] == "ping"
        })
        .await?;
    yard.give_back(worker);
    Ok(())
}

async fn pong_saves(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let mut dashboard = needed(yard.dashboard()).await?;
    // It says nothing but the pongs that every connection answers with.
    let worker = yard.worker().await?;
    let uuid = worker.identity.uuid.clone();
    stays_online(yard, &mut dashboard, &uuid, timings.lost_within()).await?;
    yard.give_back(worker);
    Ok(())
}

async fn offline(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.worker().await?;
    worker.line.fall_silent();
    let uuid = worker.identity.uuid.clone();
    let within = timings.lost_within() + yard.within();
    dashboard
        .wait_for("worker_update with status offline", within, |message| {
            is_offline(message, &uuid)
        })
        .await
        .map(drop)
}

async fn not_early(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.worker().await?;
    worker.line.fall_silent();
    let uuid = worker.identity.uuid.clone();
    // The clock here starts after the worker's last message was sent.
    let begun = Instant::now();
    let expected = "no worker_update with status offline before the timeout";
    let left = timings.heartbeat_timeout.saturating_sub(begun.elapsed());
    dashboard
        .stays_quiet(expected, left.mul_f64(0.9), |message| {
            is_offline(message, &uuid)
        })
        .await
}

/// The job of a worker that has fallen silent after a checkpoint at step 400.
async fn losing(yard: &mut Yard) -> Outcome<(Job, Line, Duration)> {
    let timings = yard.timings()?;
    let (job, dashboard) = yard.running().await?;
    job.checkpoint(400);
    job.worker.line.fall_silent();
    let within = timings.lost_within() + yard.within();
    Ok((job, dashboard, within))
}

fn is_failure(message: &Value, job: i64) -> bool {
    message["type"] == "training_failed" && message["job_id"] == job
}

async fn job_fails(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard, within) = losing(yard).await?;
    let (mut told, mut shown) = (false, false);
    let expected = "training_failed, and job_update with status failed";
    dashboard
        .wait_for(expected, within, |message| {
            told |= is_failure(message, job.id);
            shown |= message["type"] == "job_update" && message["data"]["status"] == "failed";
            told && shown
        })
        .await
        .map(drop)
}

async fn failure_fields(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard, within) = losing(yard).await?;
    let told = dashboard.wait_for("training_failed", within, |message| {
        is_failure(message, job.id)
    });
    let told = needed(told).await?;
    let data = &told["data"];
    let error = data["error"].as_str().unwrap_or_default();
    expect(
        !error.is_empty() && data["last_checkpoint_step"] == 400,
        "data.error, text, and data.last_checkpoint_step 400",
        || told.to_string(),
    )
}

async fn one_failure(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let (job, mut dashboard, within) = losing(yard).await?;
    let told = dashboard.wait_for("training_failed", within, |message| {
        is_failure(message, job.id)
    });
    needed(told).await?;
    let expected = "no second training_failed";
    let wait = timings.heartbeat_timeout + timings.check_interval;
    dashboard
        .stays_quiet(expected, wait, |message| is_failure(message, job.id))
        .await
}

async fn job_goes_on(yard: &mut Yard) -> Outcome {
    let timings = yard.timings()?;
    let (job, mut dashboard) = yard.running().await?;
    let (id, identity) = (job.id, job.worker.identity.clone());
    drop(job);
    let line = needed(yard.enter(&identity)).await?;
    line.work_on(Some(id));
    line.say(&super::yard::register(&identity.uuid));
    line.say(&json!({
        "type": "heartbeat", "worker_id": identity.uuid, "status": "training", "current_job_id": id
    }));
    let expected = "a job that goes on";
    let wait = timings.lost_within() + yard.pace.quiet_for;
    dashboard
        .stays_quiet(expected, wait, |message| {
            is_failure(message, id) || message["data"]["status"] == "failed"
        })
        .await
}

async fn token_expires(yard: &mut Yard) -> Outcome {
    let lifetime = yard.timings()?.token_lifetime;
    let Some((token, fetched)) = yard.aging.take() else {
        return Err(Problem::Blocked("no token was to be had".to_owned()));
    };
    let void_at = fetched + lifetime + Duration::from_secs(1);
    tokio::time::sleep_until(void_at).await;
    let opened = yard.dashboard_with(&token).await;
    shut_out(yard, opened)
        .await
        .map_err(|problem| match problem {
            Problem::Broken { expected, got } => {
                Problem::broken(expected, format!("{got}, {lifetime:?} after it was issued"))
            }
            blocked @ Problem::Blocked(_) => blocked,
        })
}
