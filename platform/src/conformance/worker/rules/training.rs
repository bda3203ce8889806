//! Jobs (source: `start_training` to `stop_training`).

use serde_json::Value;

use super::check;
use super::shape::{Kind, all_have, first};
use crate::conformance::report::{Outcome, Problem, excerpt, expect};
use crate::conformance::worker::acts::{
    BAD_JOB, LONG_JOB, LOST_DATA, SAVE_STEPS, SHORT_JOB, is_end,
};
use crate::conformance::worker::files::{MISSING, ROWS};
use crate::conformance::worker::story::{Act, Entry, Event, about_job, heard};
use crate::conformance::worker::{Check, Told};

pub const CHECKS: &[Check] = &[
    check!(required "training.fetches_data": "it fetches the data set from download_url", fetches_data),
    check!(required "training.started": "it sends job_started once model and data are ready", started),
    check!(required "training.progress": "training_progress carries the step and its metrics", progress),
    check!(required "training.every_step": "training_progress comes for every step, in order", every_step),
    check!(required "training.checkpoint": "after save_steps steps it sends checkpoint_saved", checkpoint),
    check!(required "training.checkpoint_fields": "checkpoint_saved carries step, epoch, path and metrics", checkpoint_fields),
    check!(required "training.completed": "at the end it sends job_completed", completed),
    check!(required "training.completed_fields": "job_completed carries final_loss, total_steps, training_time_seconds and s3_prefix", completed_fields),
    check!(required "training.order": "job_started comes first, the end last and only once", order),
    check!(recommended "training.started_once": "start_training that comes twice starts once", started_once),
    check!(required "stop.checkpoint": "after stop_training it saves a checkpoint before it ends", stop_checkpoint),
    check!(required "stop.ends": "after stop_training the job ends", stop_ends),
    check!(recommended "stop.idle": "after a stopped job it is idle again", stop_idle),
    check!(required "failure.data": "a data set that is not there is answered by job_failed", lost_data),
    check!(required "failure.fields": "job_failed carries error", failure_fields),
    check!(recommended "failure.bad_start": "a start_training that cannot be read is answered by job_failed", bad_start),
];

/// What was said about the short job.
fn short_job(told: &Told) -> Outcome<Vec<&Value>> {
    Ok(about_job(told.story.act(Act::ShortJob)?, SHORT_JOB))
}

fn of_type<'a>(messages: Vec<&'a Value>, kind: &str) -> Vec<&'a Value> {
    let is_kind = |message: &&Value| message["type"] == kind;
    messages.into_iter().filter(is_kind).collect()
}

fn fetches_data(told: &Told) -> Outcome {
    let fetched = Event::Fetched(ROWS.to_owned());
    let part = told.story.act(Act::ShortJob)?;
    expect(
        part.iter().any(|entry| entry.event == fetched),
        "GET of download_url",
        || "none".to_owned(),
    )
}

fn started(told: &Told) -> Outcome {
    first(of_type(short_job(told)?, "job_started"), "job_started").map(drop)
}

fn progress(told: &Told) -> Outcome {
    let steps = of_type(short_job(told)?, "training_progress");
    first(&steps, "training_progress")?;
    all_have(
        steps,
        "training_progress",
        &[
            ("/data/epoch", Kind::Integer),
            ("/data/step", Kind::Integer),
            ("/data/total_steps", Kind::Integer),
            ("/data/loss", Kind::NumberOrNull),
            ("/data/learning_rate", Kind::NumberOrNull),
        ],
    )
}

fn every_step(told: &Told) -> Outcome {
    let messages = short_job(told)?;
    let completed = of_type(messages.clone(), "job_completed");
    let total = completed
        .first()
        .and_then(|message| message["data"]["total_steps"].as_u64())
        .ok_or_else(|| Problem::Blocked("no job_completed with total_steps".to_owned()))?;
    let steps: Vec<_> = of_type(messages, "training_progress")
        .iter()
        .filter_map(|message| message["data"]["step"].as_u64())
        .collect();
    if steps.is_empty() {
        return Err(Problem::Blocked(
            "no training_progress with a step".to_owned(),
        ));
    }
    expect(
        steps.iter().copied().eq(1..=total),
        format!("the steps 1 to {total}"),
        || excerpt(&format!("{steps:?}")),
    )
}

fn checkpoint(told: &Told) -> Outcome {
    let saved = of_type(short_job(told)?, "checkpoint_saved");
    let steps: Vec<_> = saved
        .iter()
        .map(|message| &message["data"]["step"])
        .collect();
    expect(
        steps.iter().any(|step| **step == SAVE_STEPS),
        format!("checkpoint_saved at step {SAVE_STEPS}"),
        || format!("checkpoints at the steps {steps:?}"),
    )
}

fn checkpoint_fields(told: &Told) -> Outcome {
    let saved = told.story.heard("checkpoint_saved");
    all_have(
        saved.into_iter().map(|(_, message)| message),
        "checkpoint_saved",
        &[
            ("/data/step", Kind::Integer),
            ("/data/epoch", Kind::Integer),
            ("/data/path", Kind::Text),
            ("/data/metrics", Kind::Object),
        ],
    )
}

fn completed(told: &Told) -> Outcome {
    let messages = short_job(told)?;
    let end = messages.iter().rfind(|message| is_end(message, SHORT_JOB));
    let expected = "job_completed";
    let end = first(end, expected)?;
    expect(end["type"] == expected, expected, || {
        excerpt(&end.to_string())
    })
}

fn completed_fields(told: &Told) -> Outcome {
    all_have(
        of_type(short_job(told)?, "job_completed"),
        "job_completed",
        &[
            ("/data/final_loss", Kind::NumberOrNull),
            ("/data/total_steps", Kind::Integer),
            ("/data/training_time_seconds", Kind::Number),
            ("/data/s3_prefix", Kind::Text),
        ],
    )
}

fn order(told: &Told) -> Outcome {
    let kinds: Vec<_> = short_job(told)?
        .iter()
        .filter_map(|message| message["type"].as_str())
        // Says nothing of how far the job is.
        .filter(|kind| *kind != "worker_log")
        .collect();
    let (Some(begin), Some(end)) = (
        kinds.iter().position(|kind| *kind == "job_started"),
        kinds.iter().position(|kind| *kind == "job_completed"),
    ) else {
        return Err(Problem::Blocked(
            "the job did not run to its end".to_owned(),
        ));
    };
    expect(
        begin == 0 && end == kinds.len() - 1,
        "job_started, then progress and checkpoints, then job_completed",
        || excerpt(&kinds.join(", ")),
    )
}

fn started_once(told: &Told) -> Outcome {
    let messages = about_job(told.story.act(Act::LongJob)?, LONG_JOB);
    let count = of_type(messages, "job_started").len();
    if count == 0 {
        return Err(Problem::Blocked("the long job did not start".to_owned()));
    }
    expect(count == 1, "one job_started", || count.to_string())
}

/// What was said about the long job after `stop_training`.
fn after_stop(told: &Told) -> Outcome<&[Entry]> {
    let part = told.story.act(Act::LongJob)?;
    let stop = part.iter().position(
        |entry| matches!(&entry.event, Event::Said(message) if message["type"] == "stop_training"),
    );
    stop.map(|stop| &part[stop..])
        .ok_or_else(|| Problem::Blocked("the long job did not get under way".to_owned()))
}

fn stop_ends(told: &Told) -> Outcome {
    let messages = about_job(after_stop(told)?, LONG_JOB);
    let end = messages
        .iter()
        .position(|message| is_end(message, LONG_JOB));
    let end = first(end, "job_stopped, job_completed or job_failed")?;
    let after = messages[end + 1..]
        .iter()
        .find(|message| message["type"] == "training_progress");
    expect(
        after.is_none(),
        "no training_progress after the end",
        || after.map_or_else(String::new, |message| excerpt(&message.to_string())),
    )
}

fn stop_checkpoint(told: &Told) -> Outcome {
    let messages = about_job(after_stop(told)?, LONG_JOB);
    let end = messages
        .iter()
        .position(|message| is_end(message, LONG_JOB));
    let end = end.ok_or_else(|| Problem::Blocked("the job did not end".to_owned()))?;
    let last_step = messages[..end]
        .iter()
        .rfind(|message| message["type"] == "training_progress")
        .and_then(|message| message["data"]["step"].as_u64());
    let saved = messages[..end]
        .iter()
        .rfind(|message| message["type"] == "checkpoint_saved");
    let saved = first(saved, "checkpoint_saved before the end")?;
    let step = saved["data"]["step"].as_u64();
    expect(
        step >= last_step,
        "a checkpoint of the last step that was reported",
        || format!("step {last_step:?}, then {}", excerpt(&saved.to_string())),
    )
}

fn stop_idle(told: &Told) -> Outcome {
    let part = after_stop(told)?;
    let (_, pong) = first(heard(part, "pong"), "pong").map_err(Problem::in_the_way)?;
    expect(
        pong["busy"] == false && pong["current_job_id"].is_null(),
        "busy false, and no current_job_id",
        || excerpt(&pong.to_string()),
    )
}

fn lost_data(told: &Told) -> Outcome {
    let part = told.story.act(Act::LostData)?;
    let tried = Event::Fetched(MISSING.to_owned());
    if !part.iter().any(|entry| entry.event == tried) {
        return Err(Problem::Blocked(
            "it did not ask for the data set".to_owned(),
        ));
    }
    let failed = of_type(about_job(part, LOST_DATA), "job_failed");
    first(failed, "job_failed").map(drop)
}

fn failure_fields(told: &Told) -> Outcome {
    let failed = told.story.heard("job_failed");
    all_have(
        failed.into_iter().map(|(_, message)| message),
        "job_failed",
        &[("/data/error", Kind::Text)],
    )
}

fn bad_start(told: &Told) -> Outcome {
    let messages = about_job(told.story.act(Act::BadJob)?, BAD_JOB);
    first(of_type(messages, "job_failed"), "job_failed").map(drop)
}
