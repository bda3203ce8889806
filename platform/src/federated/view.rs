//! A session and its rounds as JSON.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use trainyard_shared::ids::{DatasetId, FederatedSessionId, WorkerId};
use utoipa::ToSchema;

use super::directory::UnderWay;
use super::privacy::{self, PrivacyView};
use super::settings::Settings;
use super::state::{Doing, Seeking, Session};
use super::store::worker;
use crate::clock::Moment;
use crate::database::{DatabaseError, shown_time};
use crate::rounds::state::Phase;
use crate::rounds::store::{ParticipantRow, ResultRow, RoundRow, SessionRow, natural};
use crate::rounds::{Kind, SessionStatus};

/// A federated session.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionView {
    id: i64,
    owner_id: i64,
    name: String,
    status: SessionStatus,
    /// Why it does not go on, for a person; null once it has ended.
    waiting_because: Option<String>,
    /// Why it has failed.
    error: Option<String>,
    base_model: String,
    /// What chats and evaluations call what it has made, once it has ended: `federated-` and its number.
    model: Option<String>,
    #[schema(value_type = Vec<i64>)]
    dataset_ids: Vec<DatasetId>,
    shards: u64,
    #[schema(value_type = Object)]
    config: Map<String, Value>,
    /// How many there are in all.
    rounds: u64,
    /// The round that is open, from 1; the last one once it has finished; 0 where it ended before the first.
    round: u64,
    /// Results of that round that count.
    updates: u64,
    /// Results that close it before its time; null while it is not open.
    needed: Option<u64>,
    /// When it closes with `min_workers` results; null while there are not enough workers.
    deadline: Option<DateTime<Utc>>,
    local_steps: u64,
    keep_optimizer: bool,
    min_workers: u64,
    max_workers: u64,
    round_timeout_seconds: f64,
    deadline_deviations: f64,
    #[schema(value_type = Option<Vec<i64>>)]
    worker_ids: Option<Vec<WorkerId>>,
    aggregation: String,
    outer_lr: f64,
    outer_momentum: f64,
    max_delta_norm: Option<f64>,
    seed: u64,
    /// How results are kept private; null where they are not.
    privacy: Option<PrivacyView>,
    /// The workers that take part, or did; only where one session is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<Vec<WorkerView>>,
    /// Shards, from 0, that no worker has now: nothing is trained on their rows. Only where one session is asked for that
    /// has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_shards: Option<Vec<u64>>,
    /// Idle workers that could take part now; only where one session is asked for that looks for workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_workers: Option<u64>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

/// A worker that takes part in a session, or did.
#[derive(Debug, Serialize, ToSchema)]
pub struct WorkerView {
    #[schema(value_type = i64)]
    worker_id: WorkerId,
    shard: u64,
    /// `waiting` for the next round, `training`, `trained` (its result is not summed yet), `delivered`, `failed`; `gone`
    /// when it does not take part now. Once the session has ended `delivered` has whose result counted in its last
    /// round.
    status: &'static str,
    /// Why it failed last.
    error: Option<String>,
    /// Results that counted.
    accepted: u64,
    /// Results that were not valid.
    refused: u64,
    /// Results that were left out when merging.
    eliminated: u64,
    /// Results that came too late.
    late: u64,
    /// What all its results together tell of its data, for the session's `delta`; null without differential privacy.
    epsilon: Option<f64>,
}

/// A round of a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct RoundView {
    /// From 1.
    round: u64,
    /// `open`, `merging` or `closed`.
    status: &'static str,
    /// SHA-256 of the adapter with which it began.
    weights_sha256: String,
    /// Mean of the results' losses, in nats, weighted by their examples; with secure aggregation as the changes are.
    loss: Option<f64>,
    /// Results that were merged; null until it is closed.
    merged: Option<u64>,
    /// L2 norm of the step that was taken.
    update_norm: Option<f64>,
    results: Vec<ResultView>,
    opened_at: DateTime<Utc>,
    closed_at: Option<DateTime<Utc>>,
}

/// A worker's result for a round.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResultView {
    #[schema(value_type = i64)]
    worker_id: Option<WorkerId>,
    /// Examples that it was trained on.
    num_examples: u64,
    /// Mean loss, in nats.
    loss: Option<f64>,
    /// L2 norm of its difference from the round's weights; null where only the sum of results is known.
    delta_norm: Option<f64>,
    /// Of what the worker sent.
    sha256: String,
    /// Why it was left out.
    eliminated_because: Option<String>,
    at: DateTime<Utc>,
}

/// Where a session under way stands, read at one moment.
pub struct Standing {
    round: u64,
    updates: u64,
    needed: Option<u64>,
    deadline: Option<DateTime<Utc>>,
    waiting_because: Option<String>,
    workers: Session,
}

impl Standing {
    /// What it looks for, if it does.
    pub fn seeking(&self) -> Option<Seeking> {
        self.workers.seeking()
    }

    /// That of a session under way.
    pub fn of(under_way: &UnderWay, now: Moment) -> Self {
        let workers = under_way.workers.get();
        let live = under_way.rounds.live();
        Self {
            round: live.rounds.round(),
            updates: match live.rounds.phase() {
                Phase::Open => workers.delivered() as u64,
                _ => live.rounds.results().len() as u64,
            },
            needed: workers.expected().map(|count| count as u64),
            deadline: workers
                .deadline()
                .map(|deadline| Utc::now() + deadline.since(now)),
            waiting_because: live.trouble.clone().or_else(|| workers.waiting_because()),
            workers,
        }
    }
}

impl SessionView {
    /// A session; `standing` where it is under way.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(row: SessionRow, standing: Option<&Standing>) -> Result<Self, DatabaseError> {
        let settings = Settings::of(&row)?;
        let status = row.status()?;
        let total = natural(row.total_rounds);
        let round = standing.map_or(natural(row.round), |standing| standing.round);
        let has_begun = row.adapter_config.is_some();
        let has_model = matches!(status, SessionStatus::Finished | SessionStatus::Stopped)
            && has_begun
            && row.error.is_none();
        let shown_round = match (has_begun, row.ended_at) {
            (false, Some(_)) => 0,
            _ => (round + 1).min(total),
        };
        let preparing = (status == SessionStatus::Preparing)
            .then(|| "its first adapter is being made".to_owned());
        Ok(Self {
            id: row.id,
            owner_id: row.owner_id,
            name: row.name,
            status,
            waiting_because: standing
                .and_then(|standing| standing.waiting_because.clone())
                .or(preparing),
            error: row.error,
            base_model: row.base_model,
            // One that was stopped without its adapter says why.
            model: has_model.then(|| model_name(FederatedSessionId(row.id))),
            dataset_ids: settings.dataset_ids,
            shards: settings.shards,
            config: settings.config,
            rounds: total,
            round: shown_round,
            updates: standing.map_or(0, |standing| standing.updates),
            needed: standing.and_then(|standing| standing.needed),
            deadline: standing.and_then(|standing| standing.deadline),
            local_steps: settings.local_steps,
            keep_optimizer: settings.keep_optimizer,
            min_workers: settings.min_workers,
            max_workers: settings.max_workers,
            round_timeout_seconds: settings.round_timeout_seconds,
            deadline_deviations: settings.deadline_deviations,
            worker_ids: settings.worker_ids,
            aggregation: row.aggregation,
            outer_lr: row.outer_lr,
            outer_momentum: row.outer_momentum,
            max_delta_norm: row.max_delta_norm,
            seed: settings.seed,
            privacy: settings
                .privacy
                .map(|privacy| PrivacyView::of(&privacy, (round + 1).min(total), total)),
            workers: None,
            idle_shards: None,
            free_workers: None,
            created_at: shown_time(row.created_at),
            ended_at: row.ended_at.map(shown_time),
        })
    }

    /// The same with its workers. `last` are the results of its last rounds.
    pub fn with_workers(
        self,
        rows: Vec<ParticipantRow>,
        last: &[ResultRow],
        standing: Option<&Standing>,
    ) -> Self {
        let newest = last.iter().map(|result| result.round).max();
        let counted = |row: &ParticipantRow| {
            let is_of = |result: &&ResultRow| result.participant == row.name;
            last.iter()
                .filter(is_of)
                .any(|result| Some(result.round) == newest)
        };
        let workers = rows.into_iter().filter_map(|row| {
            let view = WorkerView::of(&row, standing, self.privacy.as_ref())?;
            Some(match standing {
                None if counted(&row) => WorkerView {
                    status: "delivered",
                    ..view
                },
                _ => view,
            })
        });
        let by_id: BTreeMap<_, _> = workers.map(|view| (view.worker_id, view)).collect();
        let idle_shards = standing.map(|standing| {
            let members = standing.workers.members();
            let has = |shard: u64| members.values().any(|member| member.shard == shard);
            (0..self.shards).filter(|shard| !has(*shard)).collect()
        });
        Self {
            workers: Some(by_id.into_values().collect()),
            idle_shards,
            ..self
        }
    }

    /// The same with how many idle workers could take part; who waits for workers is told.
    pub fn with_free_workers(mut self, free: usize, standing: &Standing) -> Self {
        if free > 0
            && standing.workers.members().is_empty()
            && let Some(reason) = &mut self.waiting_because
        {
            let verb = if free == 1 { "is" } else { "are" };
            reason.push_str(&format!("; {free} {verb} free"));
        }
        self.free_workers = Some(free as u64);
        self
    }
}

/// What is said of a session's privacy beside its final adapter, after so many rounds.
pub fn told_of_privacy(row: &SessionRow, rounds: u64) -> String {
    // Volunteers' sessions have other settings, and each volunteer looks after its own privacy. Those of a session that
    // has come so far can be read.
    let settings = matches!(row.kind(), Ok(Kind::Workers)).then(|| Settings::of(row).ok());
    let privacy = settings.flatten().and_then(|settings| settings.privacy);
    privacy.map_or_else(String::new, |privacy| privacy::in_words(&privacy, rounds))
}

/// The name of what a session makes.
pub fn model_name(id: FederatedSessionId) -> String {
    format!("federated-{id}")
}

impl WorkerView {
    fn of(
        row: &ParticipantRow,
        standing: Option<&Standing>,
        privacy: Option<&PrivacyView>,
    ) -> Option<Self> {
        let worker_id = worker(&row.name)?;
        let member = standing.and_then(|standing| standing.workers.members().get(&worker_id));
        let (status, error) = match member.map(|member| &member.doing) {
            None => ("gone", None),
            Some(Doing::Waits) => ("waiting", None),
            Some(Doing::Trains { .. }) => ("training", None),
            Some(Doing::Trained { .. }) => ("trained", None),
            Some(Doing::Delivered) => ("delivered", None),
            Some(Doing::Failed { error, .. }) => ("failed", Some(error.clone())),
        };
        Some(Self {
            worker_id,
            shard: natural(row.shard),
            status,
            error,
            accepted: natural(row.accepted),
            refused: natural(row.refused),
            eliminated: natural(row.eliminated),
            late: natural(row.late),
            epsilon: privacy.and_then(|privacy| {
                privacy.epsilon_after(natural(row.accepted + row.refused + row.late))
            }),
        })
    }
}

impl RoundView {
    /// A round with its results.
    pub fn of(row: RoundRow, results: Vec<ResultRow>, is_merging: bool, are_masked: bool) -> Self {
        let status = match (row.closed_at, is_merging) {
            (Some(_), _) => "closed",
            (None, true) => "merging",
            (None, false) => "open",
        };
        Self {
            round: natural(row.round) + 1,
            status,
            weights_sha256: row.weights_sha256,
            loss: mean_loss(&results).or(row.loss),
            merged: row.merged.map(natural),
            update_norm: row.update_norm,
            results: results
                .into_iter()
                .map(|row| ResultView::of(row, are_masked))
                .collect(),
            opened_at: shown_time(row.opened_at),
            closed_at: row.closed_at.map(shown_time),
        }
    }
}

/// Mean of the losses that are known, weighted by examples.
fn mean_loss(results: &[ResultRow]) -> Option<f64> {
    let known = results
        .iter()
        .filter_map(|row| Some((row.loss?, natural(row.weight).max(1) as f64)));
    let (sum, weight) = known.fold((0.0, 0.0), |(sum, total), (loss, weight)| {
        (sum + loss * weight, total + weight)
    });
    (weight > 0.0).then_some(sum / weight)
}

impl ResultView {
    fn of(row: ResultRow, is_masked: bool) -> Self {
        Self {
            worker_id: worker(&row.participant),
            num_examples: natural(row.weight),
            loss: row.loss,
            delta_norm: (!is_masked).then_some(row.delta_norm),
            sha256: row.sha256,
            eliminated_because: row.eliminated_because,
            at: shown_time(row.accepted_at),
        }
    }
}
