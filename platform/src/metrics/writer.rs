//! The actor that writes metric points and log lines in batches.
//!
//! 1. What comes in is kept in memory, in order.
//! 2. Once a second, or when a batch is full, or when somebody wants to read, all of it is written in one
//!    transaction. Nothing else is taken in meanwhile: who reports waits.
//! 3. When the database cannot take it, it is kept for the next time. Beyond a limit the oldest is dropped.
//!
//! Known gap: a crash of the platform loses what came within the last second. Progress is not acknowledged,
//! so no promise is broken.

use std::time::Duration;

use actix::prelude::*;

use super::store::{self, Line, Point};
use crate::database::{Database, DatabaseError};

/// How long a point waits at most.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// So many points and lines are written without waiting.
const BATCH: usize = 1_000;
/// So many are kept while the database cannot take them.
const MAX_KEPT: usize = 50_000;
/// Messages that may wait.
const MAILBOX: usize = 4_096;

/// The actor.
pub struct MetricsWriter {
    database: Database,
    points: Vec<Point>,
    lines: Vec<Line>,
}

/// Keep this point.
#[derive(Message)]
#[rtype(result = "()")]
pub struct KeepPoint(pub Point);

/// Keep this line.
#[derive(Message)]
#[rtype(result = "()")]
pub struct KeepLine(pub Line);

/// Write everything that has come so far. The answer comes when it is written.
#[derive(Message)]
#[rtype(result = "Result<(), DatabaseError>")]
pub struct Flush;

impl MetricsWriter {
    /// A writer with nothing to write yet.
    pub fn new(database: Database) -> Self {
        Self {
            database,
            points: Vec::new(),
            lines: Vec::new(),
        }
    }

    fn flush(&mut self) -> AtomicResponse<Self, Result<(), DatabaseError>> {
        let points = std::mem::take(&mut self.points);
        let lines = std::mem::take(&mut self.lines);
        let database = self.database.clone();
        let write = async move {
            if points.is_empty() && lines.is_empty() {
                return (Ok(()), points, lines);
            }
            let batch = std::sync::Arc::new((points, lines));
            let writing = batch.clone();
            let written = database
                .write(move |c| store::write(c, &writing.0, &writing.1))
                .await;
            match written {
                Ok(()) => (Ok(()), Vec::new(), Vec::new()),
                Err(error) => {
                    let (points, lines) = std::sync::Arc::unwrap_or_clone(batch);
                    (Err(error), points, lines)
                }
            }
        };
        AtomicResponse::new(Box::pin(write.into_actor(self).map(
            |(written, points, lines), writer, _| {
                if let Err(error) = &written {
                    tracing::warn!(%error, points = points.len(), "metric points could not be written");
                    writer.points = points;
                    writer.lines = lines;
                    drop_oldest(&mut writer.points);
                    drop_oldest(&mut writer.lines);
                }
                written
            },
        )))
    }

    fn flush_when_full(&mut self, context: &mut Context<Self>) {
        if (self.points.len() + self.lines.len()).is_multiple_of(BATCH) {
            // A full mailbox means that a flush is due soon anyway.
            let _ = context.address().try_send(Flush);
        }
    }
}

fn drop_oldest<T>(kept: &mut Vec<T>) {
    if kept.len() > MAX_KEPT {
        let dropped = kept.len() - MAX_KEPT;
        kept.drain(..dropped);
        tracing::error!(dropped, "metric points were dropped");
    }
}

impl Actor for MetricsWriter {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        context.run_interval(FLUSH_INTERVAL, |_, context| {
            let _ = context.address().try_send(Flush);
        });
    }
}

impl Handler<KeepPoint> for MetricsWriter {
    type Result = ();

    fn handle(&mut self, KeepPoint(point): KeepPoint, context: &mut Context<Self>) {
        self.points.push(point);
        self.flush_when_full(context);
    }
}

impl Handler<KeepLine> for MetricsWriter {
    type Result = ();

    fn handle(&mut self, KeepLine(line): KeepLine, context: &mut Context<Self>) {
        self.lines.push(line);
        self.flush_when_full(context);
    }
}

impl Handler<Flush> for MetricsWriter {
    type Result = AtomicResponse<Self, Result<(), DatabaseError>>;

    fn handle(&mut self, _: Flush, _: &mut Context<Self>) -> Self::Result {
        self.flush()
    }
}
