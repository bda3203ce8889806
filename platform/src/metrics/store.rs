//! SQL of metric points and log lines.

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{LogLevel, TrainingProgressData};

use crate::database::schema::{job_logs, jobs, metric_points};
use crate::database::{DatabaseError, DbConnection, from_json_text, to_json_text};
use crate::jobs::progress::new_points;

/// Lines of a job's log that are kept.
pub const KEPT_LINES: i64 = 1_000;
/// Rows that are read at most for one curve; of more, every so manyth.
const MAX_READ: i64 = 100_000;

/// A step that a worker reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The job.
    pub job: JobId,
    /// The attempt that reported it.
    pub attempt: u32,
    /// What is shown of the job with it, where it is the newest step of the attempt: with what the last evaluation found.
    pub shown: Option<TrainingProgressData>,
    /// The step with its metrics.
    pub data: TrainingProgressData,
}

/// A line of a job's log.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: u32,
    /// When it came.
    pub at: NaiveDateTime,
    /// How serious it is.
    pub level: LogLevel,
    /// The text.
    pub line: String,
}

/// Writes points and lines; those of jobs that have been deleted are dropped.
///
/// # Errors
/// Those of the database.
pub fn write(
    connection: &mut DbConnection,
    points: &[Point],
    lines: &[Line],
) -> Result<(), DatabaseError> {
    let mut by_job: BTreeMap<JobId, (Vec<&Point>, Vec<&Line>)> = BTreeMap::new();
    for point in points {
        by_job.entry(point.job).or_default().0.push(point);
    }
    for line in lines {
        by_job.entry(line.job).or_default().1.push(line);
    }
    for (job, (points, lines)) in by_job {
        let attempt: Option<i32> = jobs::table
            .find(job.get())
            .select(jobs::attempt)
            .first(connection)
            .optional()?;
        if let Some(attempt) = attempt {
            write_points(connection, job, &points)?;
            write_progress(connection, job, attempt, &points)?;
            write_lines(connection, job, &lines)?;
        }
    }
    Ok(())
}

fn write_points(
    connection: &mut DbConnection,
    job: JobId,
    points: &[&Point],
) -> Result<(), DatabaseError> {
    let steps = points.iter().map(|point| stored(point.data.step));
    let (Some(first), Some(last)) = (steps.clone().min(), steps.max()) else {
        return Ok(());
    };
    let kept: Vec<(i64, i32)> = metric_points::table
        .filter(metric_points::job_id.eq(job.get()))
        .filter(metric_points::step.between(first, last))
        .select((metric_points::step, metric_points::attempt))
        .load(connection)?;
    let kept: BTreeMap<u64, u32> = kept
        .into_iter()
        .map(|(step, attempt)| (step.cast_unsigned(), attempt.cast_unsigned()))
        .collect();
    let reported = points
        .iter()
        .map(|point| (point.attempt, point.data.step, &point.data))
        .collect();
    for (attempt, step, data) in new_points(&kept, reported) {
        if kept.contains_key(&step) {
            diesel::delete(metric_points::table.find((job.get(), stored(step))))
                .execute(connection)?;
        }
        diesel::insert_into(metric_points::table)
            .values((
                metric_points::job_id.eq(job.get()),
                metric_points::step.eq(stored(step)),
                metric_points::attempt.eq(attempt.cast_signed()),
                metric_points::data.eq(to_json_text(data)?),
            ))
            .execute(connection)?;
    }
    Ok(())
}

fn write_progress(
    connection: &mut DbConnection,
    job: JobId,
    attempt: i32,
    points: &[&Point],
) -> Result<(), DatabaseError> {
    let newest = points
        .iter()
        .rev()
        .filter(|point| point.attempt.cast_signed() == attempt)
        .find_map(|point| point.shown.as_ref());
    if let Some(newest) = newest {
        diesel::update(jobs::table.find(job.get()))
            .set(jobs::progress.eq(to_json_text(newest)?))
            .execute(connection)?;
    }
    Ok(())
}

fn write_lines(
    connection: &mut DbConnection,
    job: JobId,
    lines: &[&Line],
) -> Result<(), DatabaseError> {
    for line in lines {
        diesel::insert_into(job_logs::table)
            .values((
                job_logs::job_id.eq(job.get()),
                job_logs::attempt.eq(line.attempt.cast_signed()),
                job_logs::at.eq(line.at),
                job_logs::level.eq(line.level.as_str()),
                job_logs::line.eq(&line.line),
            ))
            .execute(connection)?;
    }
    if lines.is_empty() {
        return Ok(());
    }
    let oldest_kept: Option<i64> = job_logs::table
        .filter(job_logs::job_id.eq(job.get()))
        .order(job_logs::id.desc())
        .offset(KEPT_LINES - 1)
        .select(job_logs::id)
        .first(connection)
        .optional()?;
    if let Some(oldest_kept) = oldest_kept {
        diesel::delete(
            job_logs::table
                .filter(job_logs::job_id.eq(job.get()))
                .filter(job_logs::id.lt(oldest_kept)),
        )
        .execute(connection)?;
    }
    Ok(())
}

/// The curve of a job beyond `since_step`, by step, as (attempt, point). Of a very long one only every so
/// manyth point.
///
/// # Errors
/// Those of the database.
pub fn points(
    connection: &mut DbConnection,
    job: JobId,
    since_step: u64,
) -> Result<Vec<(u32, TrainingProgressData)>, DatabaseError> {
    let beyond = metric_points::table
        .filter(metric_points::job_id.eq(job.get()))
        .filter(metric_points::step.gt(stored(since_step)));
    let count: i64 = beyond.count().get_result(connection)?;
    let stride = count / MAX_READ + 1;
    let rows: Vec<(i32, String)> = beyond
        .filter(sql::<Bool>(&format!("step % {stride} = 0")))
        .order(metric_points::step.asc())
        .select((metric_points::attempt, metric_points::data))
        .load(connection)?;
    rows.into_iter()
        .map(|(attempt, data)| Ok((attempt.cast_unsigned(), from_json_text(&data)?)))
        .collect()
}

fn stored(step: u64) -> i64 {
    i64::try_from(step).unwrap_or(i64::MAX)
}
