//! What a worker tells of itself, and what dashboards see of it (source: Registration, `heartbeat`,
//! `worker_metrics`, `worker_update`).

use serde_json::{Value, json};

use super::line::Line;
use super::yard::{Worker, Yard, heartbeat, register};
use super::{Check, check};
use crate::conformance::report::{Outcome, expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "register.worker_update": "a worker that registers is shown to dashboards by worker_update", shown),
    check!(required "register.status": "the worker_update of a worker that has registered does not say offline", status),
    check!(required "register.accepted": "worker_register of the source's example is taken without an error", register_taken),
    check!(required "heartbeat.accepted": "heartbeat of the source's example is taken without an error", heartbeat_taken),
    check!(required "metrics.accepted": "worker_metrics of the source's example is taken without an error", metrics_taken),
    check!(required "metrics.worker_update": "worker_metrics is forwarded to dashboards: GPU and processor as measured", metrics_forwarded),
    check!(required "metrics.current_job": "worker_update names the worker's current_job_id", current_job),
    check!(recommended "metrics.null": "a metric that is null is taken", null_metric),
    check!(recommended "register.unknown_field": "a field that is not known is ignored", unknown_field),
    check!(recommended "register.not_registered": "a heartbeat before worker_register is answered by error not_registered", not_registered),
];

fn is_update_of(message: &Value, uuid: &str) -> bool {
    message["type"] == "worker_update" && message["worker_id"] == uuid
}

/// A worker that has just registered, and the first `worker_update` about it.
async fn update(yard: &mut Yard) -> Outcome<(Worker, Value)> {
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.newcomer().await?;
    let uuid = worker.identity.uuid.clone();
    let expected = "worker_update with the worker's UUID as worker_id";
    let update = dashboard
        .wait_for(expected, yard.within(), |message| {
            is_update_of(message, &uuid)
        })
        .await?;
    Ok((worker, update))
}

async fn shown(yard: &mut Yard) -> Outcome {
    let (worker, _) = update(yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn status(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.newcomer().await?;
    let uuid = worker.identity.uuid.clone();
    needed(
        dashboard.wait_for("worker_update", yard.within(), |message| {
            is_update_of(message, &uuid)
        }),
    )
    .await?;
    worker.line.say(&metrics("idle"));
    let expected = "worker_update with data.status, text other than offline";
    let update = needed(dashboard.wait_for(expected, yard.within(), |message| {
        is_update_of(message, &uuid)
    }));
    let update = update.await?;
    yard.give_back(worker);
    let status = update["data"]["status"].as_str();
    expect(
        status.is_some_and(|status| status != "offline"),
        expected,
        || update.to_string(),
    )
}

/// Nothing that was said is answered by an error or a close.
async fn taken(worker: &mut Worker, yard: &Yard) -> Outcome {
    let expected = "no error and no close";
    worker
        .line
        .stays_quiet(expected, yard.pace.quiet_for, |message| {
            message["type"] == "error"
        })
        .await
}

async fn register_taken(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say(&register(&worker.identity.uuid));
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn heartbeat_taken(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say(&heartbeat(&worker.identity.uuid));
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

/// `worker_metrics` of the source document's example, with that status.
fn metrics(status: &str) -> Value {
    json!({
        "type": "worker_metrics",
        "data": {
            "gpu_utilization": 85.5, "gpu_memory_used": 18.2, "gpu_memory_total": 24.0,
            "cpu_utilization": 22.3, "ram_used": 8.5, "ram_total": 64.0,
            "status": status, "status_message": "Epoch 2/3, step 1500/3000"
        }
    })
}

async fn metrics_taken(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    worker.line.say(&metrics("idle"));
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn metrics_forwarded(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    let worker = yard.worker().await?;
    worker.line.say(&metrics("idle"));
    let uuid = worker.identity.uuid.clone();
    let wanted = json!({
        "gpu_utilization": 85.5, "gpu_memory_used": 18.2, "gpu_memory_total": 24.0, "cpu_utilization": 22.3
    });
    let expected = format!("worker_update with data {wanted}");
    dashboard
        .wait_for(&expected, yard.within(), |message| {
            is_update_of(message, &uuid) && agrees(&message["data"], &wanted)
        })
        .await?;
    yard.give_back(worker);
    Ok(())
}

/// Whether every number of `wanted` is in `data`.
pub fn agrees(data: &Value, wanted: &Value) -> bool {
    let wanted = wanted.as_object().into_iter().flatten();
    wanted.into_iter().all(
        |(name, value)| match (value.as_f64(), data[name].as_f64()) {
            (Some(wanted), Some(got)) => (wanted - got).abs() <= 1e-9 * wanted.abs(),
            _ => data[name] == *value,
        },
    )
}

async fn current_job(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    let (uuid, id) = (job.worker.identity.uuid.clone(), job.id);
    job.worker.line.say(&metrics("training"));
    let expected = format!("worker_update with data.current_job_id {id}");
    dashboard
        .wait_for(&expected, yard.within(), |message| {
            is_update_of(message, &uuid) && message["data"]["current_job_id"] == id
        })
        .await?;
    yard.finish(job);
    Ok(())
}

async fn null_metric(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    let mut metrics = metrics("idle");
    metrics["data"]["gpu_utilization"] = Value::Null;
    worker.line.say(&metrics);
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn unknown_field(yard: &mut Yard) -> Outcome {
    let mut worker = yard.worker().await?;
    let mut heartbeat = heartbeat(&worker.identity.uuid);
    heartbeat["of_a_later_version"] = json!({"x": [1]});
    worker.line.say(&heartbeat);
    taken(&mut worker, yard).await?;
    yard.give_back(worker);
    Ok(())
}

async fn not_registered(yard: &mut Yard) -> Outcome {
    let (mut line, identity): (Line, _) = needed(yard.enrol()).await?;
    line.say(&heartbeat(&identity.uuid));
    let expected = "error with code not_registered";
    let error = line
        .wait_for(expected, yard.within(), |message| {
            message["type"] == "error"
        })
        .await?;
    expect(error["code"] == "not_registered", expected, || {
        error.to_string()
    })
}
