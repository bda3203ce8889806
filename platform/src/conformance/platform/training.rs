//! Jobs: what a worker is sent, and what dashboards see of what it reports (source: `start_training` to
//! `stop_training`, `job_update`, `training_failed`).

use serde_json::{Value, json};
use uuid::Uuid;

use super::line::Line;
use super::registration::agrees;
use super::yard::{BASE_MODEL, Job, ROWS, Yard, training_config};
use super::{Check, check};
use crate::conformance::report::{Outcome, Problem, excerpt, expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "start_training.sent": "a submitted job comes to an idle worker as start_training with its job_id", sent),
    check!(required "start_training.dataset": "start_training names the data set: storage_path, download_url, format, id", dataset),
    check!(required "start_training.download": "the data set can be read at download_url without a credential", download),
    check!(required "start_training.base_model": "start_training names base_model.huggingface_id", base_model),
    check!(required "start_training.config": "start_training carries the config as it was submitted", config),
    check!(required "start_training.output_path": "start_training names output_path", output_path),
    check!(recommended "start_training.one_at_a_time": "a worker that has a job gets no second one", one_at_a_time),
    check!(required "job_update.running": "after job_started the job is running", running),
    check!(required "job_update.progress": "training_progress is forwarded as job_update with epoch, step, loss and learning_rate", progress),
    check!(required "job_update.gpu": "job_update carries gpu_utilization as the worker reported it", gpu),
    check!(recommended "job_update.not_back": "a step that comes late does not take the shown state back", not_back),
    check!(recommended "job_update.null_loss": "a loss that is null is taken", null_loss),
    check!(required "checkpoint.accepted": "checkpoint_saved of the source's example is taken without an error", checkpoint),
    check!(required "job_completed.job_update": "after job_completed the job is completed", completed),
    check!(required "job_failed.job_update": "after job_failed the job is failed", failed),
    check!(required "job_failed.training_failed": "job_failed is forwarded as training_failed with the worker's error", training_failed),
    check!(required "job_failed.last_checkpoint": "training_failed names last_checkpoint_step", last_checkpoint),
    check!(required "stop_training.sent": "a job that is stopped is stopped at the worker by stop_training with its job_id", stop_sent),
    check!(recommended "stop_training.ends_stopped": "a stopping job that the worker ends is stopped", ends_stopped),
    check!(recommended "job.ended_is_final": "nothing that comes later changes a job that has ended", ended_is_final),
    check!(recommended "ack.sent": "a message with a message_id is answered by ack with the same", ack),
    check!(recommended "ack.repeated": "the same message again is answered by ack again", ack_again),
];

async fn sent(yard: &mut Yard) -> Outcome {
    let job = yard.assigned().await?;
    job.started();
    yard.finish(job);
    Ok(())
}

/// A field of a `start_training`; the job is ended.
async fn field(yard: &mut Yard, pointer: &str) -> Outcome<Value> {
    let job = needed(yard.assigned()).await?;
    let found = job.start.pointer(pointer).cloned();
    let start = job.start.to_string();
    job.started();
    yard.finish(job);
    found.ok_or_else(|| Problem::broken(format!("the field {pointer}"), excerpt(&start)))
}

async fn dataset(yard: &mut Yard) -> Outcome {
    let wanted = needed(yard.dataset()).await?;
    let dataset = field(yard, "/data/dataset").await?;
    let is_text = |name: &str| dataset[name].as_str().is_some_and(|text| !text.is_empty());
    let complete = is_text("storage_path")
        && is_text("download_url")
        && dataset["format"] == "jsonl"
        && dataset["id"] == wanted;
    let expected = format!("storage_path, download_url, format jsonl and id {wanted}");
    expect(complete, expected, || excerpt(&dataset.to_string()))
}

async fn download(yard: &mut Yard) -> Outcome {
    let url = needed(field(yard, "/data/dataset/download_url")).await?;
    let url = url.as_str().unwrap_or_default();
    let expected = format!("the {} bytes that were uploaded", ROWS.len());
    match yard.rest.download(url).await {
        Ok(bytes) => expect(bytes == ROWS.as_bytes(), expected, || {
            format!("{} other bytes", bytes.len())
        }),
        Err(error) => Err(Problem::broken(expected, error)),
    }
}

async fn base_model(yard: &mut Yard) -> Outcome {
    let model = field(yard, "/data/base_model").await?;
    let expected = format!("huggingface_id {BASE_MODEL}");
    expect(model["huggingface_id"] == BASE_MODEL, expected, || {
        excerpt(&model.to_string())
    })
}

async fn config(yard: &mut Yard) -> Outcome {
    let config = field(yard, "/data/config").await?;
    let wanted = training_config();
    expect(agrees(&config, &wanted), wanted.to_string(), || {
        excerpt(&config.to_string())
    })
}

async fn output_path(yard: &mut Yard) -> Outcome {
    let path = field(yard, "/data/output_path").await?;
    expect(
        path.as_str().is_some_and(|path| !path.is_empty()),
        "output_path, text",
        || path.to_string(),
    )
}

async fn one_at_a_time(yard: &mut Yard) -> Outcome {
    let (mut job, _dashboard) = yard.running().await?;
    let waiting = needed(yard.submit(&job.worker)).await?;
    let expected = "no start_training while the worker has a job";
    let quiet = yard.pace.quiet_for;
    let line = &mut job.worker.line;
    line.stays_quiet(expected, quiet, |message| {
        message["type"] == "start_training"
    })
    .await?;
    yard.rest.stop_job(waiting).await?;
    yard.finish(job);
    Ok(())
}

fn is_update_of(message: &Value, job: i64) -> bool {
    message["type"] == "job_update" && message["job_id"] == job
}

/// Waits until a dashboard is shown the job with that status.
pub async fn shown(dashboard: &mut Line, yard: &Yard, job: i64, status: &str) -> Outcome<Value> {
    let expected = format!("job_update with data.status {status}");
    dashboard
        .wait_for(&expected, yard.within(), |message| {
            is_update_of(message, job) && message["data"]["status"] == status
        })
        .await
}

async fn running(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    shown(&mut dashboard, yard, job.id, "running").await?;
    yard.finish(job);
    Ok(())
}

/// The `job_update` at the step that a running job has just reported.
async fn update(yard: &mut Yard) -> Outcome<Value> {
    let (job, mut dashboard) = yard.running().await?;
    job.progress(1500, json!(0.3421));
    let (id, expected) = (job.id, "job_update with data.step 1500");
    let update = dashboard
        .wait_for(expected, yard.within(), |message| {
            is_update_of(message, id) && message["data"]["step"] == 1500
        })
        .await?;
    yard.finish(job);
    Ok(update)
}

async fn progress(yard: &mut Yard) -> Outcome {
    let update = update(yard).await?;
    let wanted = json!({
        "status": "running", "epoch": 2, "step": 1500, "loss": 0.3421, "learning_rate": 0.000018
    });
    expect(
        agrees(&update["data"], &wanted),
        format!("job_update with data {wanted}"),
        || excerpt(&update.to_string()),
    )
}

async fn gpu(yard: &mut Yard) -> Outcome {
    let update = needed(update(yard)).await?;
    let wanted = json!({"gpu_utilization": 98});
    expect(
        agrees(&update["data"], &wanted),
        format!("job_update with data {wanted}"),
        || excerpt(&update.to_string()),
    )
}

async fn not_back(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    let (id, within) = (job.id, yard.within());
    let at = |step: u64| {
        move |message: &Value| is_update_of(message, id) && message["data"]["step"] == step
    };
    job.progress(20, json!(0.5));
    needed(dashboard.wait_for("job_update at step 20", within, at(20))).await?;
    job.progress(10, json!(0.6));
    let expected = "no job_update at step 10 after one at step 20";
    dashboard
        .stays_quiet(expected, yard.pace.quiet_for, at(10))
        .await?;
    yard.finish(job);
    Ok(())
}

/// Nothing that the worker said is answered by an error or a close.
async fn taken(job: &mut Job, yard: &Yard) -> Outcome {
    let quiet = yard.pace.quiet_for;
    let line = &mut job.worker.line;
    line.stays_quiet("no error and no close", quiet, |message| {
        message["type"] == "error"
    })
    .await
}

async fn null_loss(yard: &mut Yard) -> Outcome {
    let (mut job, _dashboard) = yard.running().await?;
    job.progress(10, Value::Null);
    taken(&mut job, yard).await?;
    yard.finish(job);
    Ok(())
}

async fn checkpoint(yard: &mut Yard) -> Outcome {
    let (mut job, _dashboard) = yard.running().await?;
    job.checkpoint(1000);
    taken(&mut job, yard).await?;
    yard.finish(job);
    Ok(())
}

async fn completed(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    let id = job.id;
    yard.finish(job);
    shown(&mut dashboard, yard, id, "completed").await.map(drop)
}

/// The job's worker says that it failed, after a checkpoint at step 400.
async fn failing(yard: &mut Yard) -> Outcome<(Line, i64)> {
    let (job, dashboard) = yard.running().await?;
    job.checkpoint(400);
    job.failed("CUDA out of memory. Tried to allocate 2.5 GB...");
    let id = job.id;
    yard.give_back(job.worker);
    Ok((dashboard, id))
}

async fn failed(yard: &mut Yard) -> Outcome {
    let (mut dashboard, id) = failing(yard).await?;
    shown(&mut dashboard, yard, id, "failed").await.map(drop)
}

/// Waits for the `training_failed` of a job.
pub async fn told_of_failure(dashboard: &mut Line, yard: &Yard, job: i64) -> Outcome<Value> {
    let expected = format!("training_failed with job_id {job}");
    dashboard
        .wait_for(&expected, yard.within(), |message| {
            message["type"] == "training_failed" && message["job_id"] == job
        })
        .await
}

async fn training_failed(yard: &mut Yard) -> Outcome {
    let (mut dashboard, id) = failing(yard).await?;
    let told = told_of_failure(&mut dashboard, yard, id).await?;
    let expected = "data.error, the worker's text";
    let error = told["data"]["error"].as_str();
    expect(
        error.is_some_and(|error| error.contains("CUDA out of memory")),
        expected,
        || told.to_string(),
    )
}

async fn last_checkpoint(yard: &mut Yard) -> Outcome {
    let (mut dashboard, id) = failing(yard).await?;
    let told = needed(told_of_failure(&mut dashboard, yard, id)).await?;
    let step = &told["data"]["last_checkpoint_step"];
    expect(*step == 400, "data.last_checkpoint_step 400", || {
        told.to_string()
    })
}

/// Asks for a running job to be stopped, and waits until its worker is told.
async fn stopping(yard: &mut Yard) -> Outcome<(Job, Line)> {
    let (mut job, mut dashboard) = yard.running().await?;
    needed(shown(&mut dashboard, yard, job.id, "running")).await?;
    yard.rest.stop_job(job.id).await?;
    let (id, within) = (job.id, yard.within());
    let expected = format!("stop_training with job_id {id}");
    let line = &mut job.worker.line;
    line.wait_for(&expected, within, |message| {
        message["type"] == "stop_training" && message["job_id"] == id
    })
    .await?;
    Ok((job, dashboard))
}

async fn stop_sent(yard: &mut Yard) -> Outcome {
    let (job, _dashboard) = stopping(yard).await?;
    yard.finish(job);
    Ok(())
}

async fn ends_stopped(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = needed(stopping(yard)).await?;
    let id = job.id;
    job.checkpoint(10);
    yard.finish(job);
    shown(&mut dashboard, yard, id, "stopped").await.map(drop)
}

async fn ended_is_final(yard: &mut Yard) -> Outcome {
    let (mut dashboard, id) = failing(yard).await?;
    needed(shown(&mut dashboard, yard, id, "failed")).await?;
    let worker = yard.worker().await?;
    let late = json!({
        "type": "job_completed", "worker_id": worker.identity.uuid, "job_id": id,
        "data": {"final_loss": 0.1, "total_steps": 3000, "training_time_seconds": 1,
                 "s3_prefix": format!("models/job-{id}/final/")}
    });
    worker.line.say(&late);
    let expected = "no other status after failed";
    dashboard
        .stays_quiet(expected, yard.pace.quiet_for, |message| {
            is_update_of(message, id) && message["data"]["status"] != "failed"
        })
        .await?;
    yard.give_back(worker);
    Ok(())
}

/// Says `job_started` with an id to be acknowledged.
fn say_with_id(job: &Job, id: &str) {
    let mut message = job.message("job_started", json!({"total_steps": 3000}));
    message["message_id"] = json!(id);
    job.worker.line.say(&message);
}

async fn acknowledged(job: &mut Job, yard: &Yard, id: &str) -> Outcome {
    let expected = format!("ack with message_id {id}");
    let line = &mut job.worker.line;
    line.wait_for(&expected, yard.within(), |message| {
        message["type"] == "ack" && message["message_id"] == id
    })
    .await
    .map(drop)
}

async fn ack(yard: &mut Yard) -> Outcome {
    let mut job = needed(yard.assigned()).await?;
    let id = Uuid::new_v4().to_string();
    say_with_id(&job, &id);
    acknowledged(&mut job, yard, &id).await?;
    yard.finish(job);
    Ok(())
}

async fn ack_again(yard: &mut Yard) -> Outcome {
    let mut job = needed(yard.assigned()).await?;
    let id = Uuid::new_v4().to_string();
    say_with_id(&job, &id);
    needed(acknowledged(&mut job, yard, &id)).await?;
    say_with_id(&job, &id);
    acknowledged(&mut job, yard, &id).await?;
    yard.finish(job);
    Ok(())
}
