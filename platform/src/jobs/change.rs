//! One event of a job on its way through: what the state machine made of it is committed, told and ordered, in
//! that order.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::commit::{CommitError, commit};
use super::directory::JobError;
use super::event::{Answer, Effect, Event, Outcome, Record, Transition};
use super::state::JobState;
use super::store::JobFacts;
use super::{news, orders};
use crate::actors::Actors;
use crate::artifacts;
use crate::database::{DatabaseError, now};
use crate::metrics::writer::Flush;

/// An event on its way through.
pub(super) struct Change {
    pub(super) actors: Actors,
    pub(super) facts: Arc<JobFacts>,
    pub(super) before: JobState,
    pub(super) revision: i64,
    pub(super) event: Event,
}

/// What came of an event.
pub(super) struct Carried {
    pub(super) next: JobState,
    pub(super) revision: i64,
    pub(super) answer: Answer,
    pub(super) follow_up: Vec<Event>,
}

/// Nothing came of it.
pub(super) struct Failed {
    pub(super) error: JobError,
    /// Whether it is unknown what the database holds now.
    pub(super) reread: bool,
}

impl Change {
    /// Carries the outcome out.
    pub(super) async fn carry_out(self, outcome: Outcome) -> Result<Carried, Failed> {
        let Outcome {
            next,
            effects,
            answer,
        } = outcome;
        let mut revision = self.revision;
        let mut follow_up = Vec::new();
        for effect in effects {
            match effect {
                Effect::Persist(transition) => {
                    revision = self.persist(&next, transition).await?;
                }
                Effect::Publish(news) => {
                    let change = news::Change {
                        before: &self.before,
                        after: &next,
                    };
                    news::publish(&self.actors, &self.facts, news, &change).await;
                }
                Effect::Send(command) => {
                    let order = orders::Order {
                        facts: &self.facts,
                        state: &next,
                        event: &self.event,
                    };
                    follow_up.extend(order.give(&self.actors, command).await);
                }
            }
        }
        self.remove_forgotten(&next).await;
        Ok(Carried {
            next,
            revision,
            answer,
            follow_up,
        })
    }

    async fn persist(&self, next: &JobState, transition: Transition) -> Result<i64, Failed> {
        self.check_files(&transition)
            .await
            .map_err(|error| Failed {
                error,
                reread: false,
            })?;
        let voids_points =
            matches!(transition.record, Some(Record::Started(_))) && next.attempt > 1;
        let ends = transition.to.is_ended() && !transition.from.is_ended();
        let checkpoint = matches!(transition.record, Some(Record::Checkpoint(_)));
        if voids_points || ends || checkpoint {
            // What was reported must be in the database before a part of it is void, before a checkpoint behind
            // it is acknowledged, and before anyone hears that the job has ended and asks for all of it.
            let flushed = self.actors.metrics.send(Flush).await;
            flushed
                .unwrap_or(Err(DatabaseError::Stopped))
                .map_err(failed)?;
        }
        tracing::info!(
            job.id = %self.facts.id, job.attempt = next.attempt, from = %transition.from,
            to = %transition.to, detail = transition.detail, "job {}", transition.kind.as_str()
        );
        let (next, revision) = (next.clone(), self.revision);
        let committed = self
            .actors
            .database
            .write(move |c| commit(c, revision, &next, &transition, now()))
            .await;
        committed.map_err(|error| match error {
            CommitError::Stale => Failed {
                error: DatabaseError::Busy.into(),
                reread: true,
            },
            CommitError::Database(error) => failed(error),
        })
    }

    /// Removes the files of checkpoints that are not kept any more. What cannot be removed now is found when the
    /// next one is forgotten.
    async fn remove_forgotten(&self, next: &JobState) {
        let mut before = self.before.checkpoints.keys();
        if before.all(|key| next.checkpoints.contains_key(key)) {
            return;
        }
        let kept: BTreeSet<u64> = next.checkpoints.keys().map(|(_, step)| *step).collect();
        let storage = self.actors.storage.as_ref();
        let removed = artifacts::delete_old_checkpoints(storage, next.id, &kept);
        if let Err(error) = removed.await {
            tracing::warn!(job.id = %next.id, %error, "files of old checkpoints are left for now");
        }
    }

    async fn check_files(&self, transition: &Transition) -> Result<(), JobError> {
        let files = match &transition.record {
            Some(Record::Checkpoint(data)) => &data.files,
            Some(Record::Result(data)) => &data.files,
            _ => return Ok(()),
        };
        let storage = self.actors.storage.as_ref();
        Ok(artifacts::check_stored(storage, self.facts.id, files).await?)
    }
}

fn failed(error: DatabaseError) -> Failed {
    let reread = !matches!(error, DatabaseError::Full | DatabaseError::Busy);
    Failed {
        error: error.into(),
        reread,
    }
}
