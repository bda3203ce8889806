//! SQL of a transition: the job's new state, its row in the history and what belongs to it, in one transaction.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::JobStatus;
use trainyard_shared::ids::{JobId, WorkerId};
use trainyard_shared::message::{ArtifactFile, CheckpointSavedData};

use super::event::{Record, Transition, TransitionKind};
use super::state::JobState;
use crate::database::schema::{
    artifacts, checkpoints, job_attempts, job_events, jobs, metric_points,
};
use crate::database::{DatabaseError, DbConnection, to_json_text};

/// Why a transition was not written. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The job has changed since the state was read that the transition builds on.
    #[error("the job has changed meanwhile")]
    Stale,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Writes the transition to `next` over the given revision. Gives the new revision.
///
/// # Errors
/// [`CommitError::Stale`] when the job is not at that revision.
pub fn commit(
    connection: &mut DbConnection,
    revision: i64,
    next: &JobState,
    transition: &Transition,
    now: NaiveDateTime,
) -> Result<i64, CommitError> {
    update_job(connection, revision, next, transition, now)?;
    let id = next.id;
    // A retry ends one attempt and queues the next: its event belongs to the one that ended.
    let attempt = match transition.kind {
        TransitionKind::Retried => next.attempt.saturating_sub(1),
        _ => next.attempt,
    };
    diesel::insert_into(job_events::table)
        .values((
            job_events::job_id.eq(id.get()),
            job_events::attempt.eq(stored_count(attempt)),
            job_events::at.eq(now),
            job_events::kind.eq(transition.kind.as_str()),
            job_events::from_status.eq(transition.from.as_str()),
            job_events::to_status.eq(transition.to.as_str()),
            job_events::detail.eq(&transition.detail),
        ))
        .execute(connection)
        .map_err(DatabaseError::from)?;
    let attempt = stored_count(next.attempt);
    match &transition.record {
        None => {}
        Some(Record::Owner(worker)) => add_owner(connection, id, attempt, *worker)?,
        Some(Record::Started(data)) => {
            diesel::update(jobs::table.find(id.get()))
                .set(jobs::started.eq(to_json_text(data)?))
                .execute(connection)
                .map_err(DatabaseError::from)?;
            let kept = stored(next.resume_from.unwrap_or(0));
            void_points(connection, id, attempt, kept)?;
        }
        Some(Record::Checkpoint(data)) => {
            add_checkpoint(connection, id, attempt, data, now)?;
            forget_checkpoints(connection, next)?;
        }
        Some(Record::Result(data)) => {
            diesel::update(jobs::table.find(id.get()))
                .set(jobs::result.eq(to_json_text(data)?))
                .execute(connection)
                .map_err(DatabaseError::from)?;
            for file in &data.files {
                add_artifact(connection, id, attempt, None, file, now)?;
            }
        }
    }
    Ok(revision + 1)
}

fn update_job(
    connection: &mut DbConnection,
    revision: i64,
    next: &JobState,
    transition: &Transition,
    now: NaiveDateTime,
) -> Result<(), CommitError> {
    let row = jobs::table.find(next.id.get());
    let failure = next.failure.as_ref();
    let ended = next.status().is_ended();
    let changed = diesel::update(row.filter(jobs::revision.eq(revision)))
        .set((
            jobs::status.eq(next.status().as_str()),
            jobs::attempt.eq(stored_count(next.attempt)),
            jobs::retries_left.eq(stored_count(next.retries_left)),
            jobs::worker_id.eq(shown_worker(next).map(WorkerId::get)),
            jobs::resume_from.eq(next.resume_from.map(stored)),
            jobs::failure_kind.eq(failure.map(|failure| failure.kind.as_str())),
            jobs::error.eq(failure.map(|failure| failure.error.as_str())),
            jobs::revision.eq(revision + 1),
        ))
        .execute(connection)
        .map_err(DatabaseError::from)?;
    if changed == 0 {
        return Err(CommitError::Stale);
    }
    let set = match transition.kind {
        TransitionKind::Started => diesel::update(row)
            .set((
                jobs::started_at.eq(now),
                jobs::ended_at.eq(None::<NaiveDateTime>),
            ))
            .execute(connection),
        TransitionKind::Retried | TransitionKind::Resumed => diesel::update(row)
            .set((
                jobs::ended_at.eq(None::<NaiveDateTime>),
                jobs::progress.eq(None::<String>),
            ))
            .execute(connection),
        _ if ended && !transition.from.is_ended() => diesel::update(row)
            .set(jobs::ended_at.eq(now))
            .execute(connection),
        _ => Ok(0),
    };
    set.map_err(DatabaseError::from)?;
    Ok(())
}

/// The worker that has the job or, once it has ended, had it last.
fn shown_worker(next: &JobState) -> Option<WorkerId> {
    next.phase.worker().or_else(|| {
        let ended = next.status() != JobStatus::Queued;
        next.owners.get(&next.attempt).copied().filter(|_| ended)
    })
}

fn add_owner(
    connection: &mut DbConnection,
    id: JobId,
    attempt: i32,
    worker: WorkerId,
) -> Result<(), DatabaseError> {
    diesel::insert_into(job_attempts::table)
        .values((
            job_attempts::job_id.eq(id.get()),
            job_attempts::attempt.eq(attempt),
            job_attempts::worker_id.eq(worker.get()),
        ))
        .execute(connection)?;
    Ok(())
}

/// Earlier attempts went on beyond the checkpoint that this one starts from: what they reported there is void.
fn void_points(
    connection: &mut DbConnection,
    id: JobId,
    attempt: i32,
    kept: i64,
) -> Result<(), DatabaseError> {
    diesel::delete(
        metric_points::table
            .filter(metric_points::job_id.eq(id.get()))
            .filter(metric_points::attempt.lt(attempt))
            .filter(metric_points::step.gt(kept)),
    )
    .execute(connection)?;
    Ok(())
}

fn add_checkpoint(
    connection: &mut DbConnection,
    id: JobId,
    attempt: i32,
    data: &CheckpointSavedData,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let step = stored(data.step);
    diesel::delete(
        checkpoints::table
            .filter(checkpoints::job_id.eq(id.get()))
            .filter(checkpoints::attempt.eq(attempt))
            .filter(checkpoints::step.eq(step)),
    )
    .execute(connection)?;
    diesel::insert_into(checkpoints::table)
        .values((
            checkpoints::job_id.eq(id.get()),
            checkpoints::attempt.eq(attempt),
            checkpoints::step.eq(step),
            checkpoints::epoch.eq(data.epoch.map(stored)),
            checkpoints::path.eq(&data.path),
            checkpoints::metrics.eq(to_json_text(&data.metrics)?),
            checkpoints::verified.eq(!data.files.is_empty()),
            checkpoints::created_at.eq(now),
        ))
        .execute(connection)?;
    for file in &data.files {
        add_artifact(connection, id, attempt, Some(step), file, now)?;
    }
    Ok(())
}

/// Removes the checkpoints that are not kept any more. Their files are removed by who calls this, once it is
/// committed.
fn forget_checkpoints(connection: &mut DbConnection, next: &JobState) -> Result<(), DatabaseError> {
    let id = next.id.get();
    let known: Vec<(i32, i64)> = checkpoints::table
        .filter(checkpoints::job_id.eq(id))
        .select((checkpoints::attempt, checkpoints::step))
        .load(connection)?;
    let kept = |attempt: i32, step: i64| {
        let key = (attempt.cast_unsigned(), step.cast_unsigned());
        next.checkpoints.contains_key(&key)
    };
    for (attempt, step) in known {
        if kept(attempt, step) {
            continue;
        }
        diesel::delete(
            checkpoints::table
                .filter(checkpoints::job_id.eq(id))
                .filter(checkpoints::attempt.eq(attempt))
                .filter(checkpoints::step.eq(step)),
        )
        .execute(connection)?;
        diesel::delete(
            artifacts::table
                .filter(artifacts::job_id.eq(id))
                .filter(artifacts::attempt.eq(attempt))
                .filter(artifacts::step.eq(step)),
        )
        .execute(connection)?;
    }
    Ok(())
}

/// Lists a stored file among those of a job.
///
/// # Errors
/// Those of the database.
pub fn add_artifact(
    connection: &mut DbConnection,
    id: JobId,
    attempt: i32,
    step: Option<i64>,
    file: &ArtifactFile,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    diesel::delete(
        artifacts::table
            .filter(artifacts::job_id.eq(id.get()))
            .filter(artifacts::storage_key.eq(&file.key)),
    )
    .execute(connection)?;
    diesel::insert_into(artifacts::table)
        .values((
            artifacts::job_id.eq(id.get()),
            artifacts::attempt.eq(attempt),
            artifacts::step.eq(step),
            artifacts::storage_key.eq(&file.key),
            artifacts::size_bytes.eq(stored(file.size_bytes)),
            artifacts::sha256.eq(&file.sha256),
            artifacts::created_at.eq(now),
        ))
        .execute(connection)?;
    Ok(())
}

fn stored_count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
