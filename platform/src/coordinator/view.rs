//! Volunteer sessions as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;
use trainyard_shared::coordinator::Mode;
use utoipa::ToSchema;

use super::Settings;
use super::hosted::Hosted;
use crate::database::{DatabaseError, shown_time};
use crate::rounds::SessionStatus;
use crate::rounds::session::Session;
use crate::rounds::state::Phase;
use crate::rounds::store::{FileRow, ParticipantRow, ResultRow, RoundRow, SessionRow, natural};

/// A volunteer session.
#[derive(Debug, Serialize, ToSchema)]
pub struct CoordinatorView {
    id: i64,
    owner_id: i64,
    name: String,
    /// Whether volunteers find it at the root as well.
    default: bool,
    /// What volunteers add to the platform's address.
    path: String,
    status: SessionStatus,
    /// Why it has failed, or has no final adapter.
    error: Option<String>,
    base_model: String,
    /// The job whose adapter was the first global one.
    job_id: Option<i64>,
    dataset_id: Option<i64>,
    /// The round, from 0.
    tur: u64,
    toplam_tur: u64,
    n_parca: u64,
    en_az: u64,
    ic_adim: u64,
    bs: u64,
    seq: u64,
    lr: f64,
    #[serde(rename = "mod")]
    #[schema(value_type = String)]
    mode: Mode,
    seed: u64,
    /// Seconds; null: a round waits for `en_az` results.
    tur_zaman_asimi: Option<f64>,
    aggregation: String,
    outer_lr: f64,
    outer_momentum: f64,
    max_delta_norm: Option<f64>,
    max_refused: Option<i64>,
    /// Whether volunteers need a key.
    locked: bool,
    /// `open` or `merging`; null before the first round and after the last.
    round_status: Option<&'static str>,
    /// Results of the round so far.
    results: u64,
    /// Why the round does not close.
    waiting_because: Option<String>,
    /// Volunteers seen in the last ten minutes.
    volunteers: u64,
    weights_sha256: Option<String>,
    weights_bytes: Option<u64>,
    /// The model's name for chats and evaluations, once it has ended.
    model: Option<String>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

impl CoordinatorView {
    /// A session as it stands.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(
        row: SessionRow,
        hosted: Option<&Hosted>,
        is_default: bool,
    ) -> Result<Self, DatabaseError> {
        let settings = Settings::of(&row)?;
        let session = hosted.and_then(Hosted::session);
        let status = match row.status()? {
            // Volunteers find it a moment after the database has it.
            SessionStatus::Open if session.is_none() => SessionStatus::Preparing,
            status => status,
        };
        let stands = session.as_deref().map(Stands::of);
        // One that was stopped without its adapter says why.
        let published = matches!(status, SessionStatus::Finished | SessionStatus::Stopped)
            && row.error.is_none();
        let timeout = row.rules().timeout;
        Ok(Self {
            id: row.id,
            owner_id: row.owner_id,
            path: format!("/c/{}/", row.name),
            name: row.name,
            default: is_default,
            status,
            error: row.error,
            base_model: row.base_model,
            job_id: row.job_id,
            dataset_id: row.dataset_id,
            tur: stands
                .as_ref()
                .map_or(natural(row.round), |stands| stands.round),
            toplam_tur: natural(row.total_rounds),
            n_parca: natural(row.shard_count),
            en_az: natural(row.enough),
            ic_adim: settings.local_steps,
            bs: settings.batch_size,
            seq: settings.sequence_length,
            lr: settings.learning_rate,
            mode: settings.mode,
            seed: settings.seed,
            tur_zaman_asimi: timeout.map(|timeout| timeout.as_secs_f64()),
            aggregation: row.aggregation,
            outer_lr: row.outer_lr,
            outer_momentum: row.outer_momentum,
            max_delta_norm: row.max_delta_norm,
            max_refused: row.max_refused,
            locked: row.key_hash.is_some(),
            round_status: stands.as_ref().and_then(|stands| stands.status),
            results: stands.as_ref().map_or(0, |stands| stands.results),
            waiting_because: stands
                .as_ref()
                .and_then(|stands| stands.waiting_because.clone()),
            volunteers: stands.as_ref().map_or(0, |stands| stands.volunteers),
            weights_sha256: stands.as_ref().map(|stands| stands.weights_sha256.clone()),
            weights_bytes: stands.as_ref().map(|stands| stands.weights_bytes),
            model: published.then(|| format!("federated-{}", row.id)),
            created_at: shown_time(row.created_at),
            ended_at: row.ended_at.map(shown_time),
        })
    }
}

/// Where a session that is prepared stands.
struct Stands {
    round: u64,
    status: Option<&'static str>,
    results: u64,
    waiting_because: Option<String>,
    volunteers: u64,
    weights_sha256: String,
    weights_bytes: u64,
}

impl Stands {
    fn of(session: &Session) -> Self {
        let volunteers = session.participants.seen_lately() as u64;
        let live = session.live();
        let status = match live.rounds.phase() {
            Phase::Open => Some("open"),
            Phase::Merging => Some("merging"),
            Phase::Finished | Phase::Stopped => None,
        };
        Self {
            round: live.rounds.round(),
            status,
            results: status.map_or(0, |_| live.rounds.results().len() as u64),
            waiting_because: live.waits_because(),
            volunteers,
            weights_sha256: live.weights.sha256.clone(),
            weights_bytes: live.weights.size_bytes,
        }
    }
}

/// A round of a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct RoundView {
    /// From 0. Behind the last round stands a row for what came of it.
    tur: u64,
    /// SHA-256 of the global adapter with which it began.
    weights_sha256: String,
    weights_bytes: u64,
    /// Results that went into the mean; null until it is merged.
    merged: Option<i64>,
    /// L2 norm of the step that was taken.
    update_norm: Option<f64>,
    results: Vec<ResultView>,
    opened_at: DateTime<Utc>,
    closed_at: Option<DateTime<Utc>>,
}

/// A result of a round.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResultView {
    /// Whose it is.
    isci: String,
    sha256: String,
    size_bytes: u64,
    /// L2 norm of its difference from the global adapter.
    delta_norm: f64,
    /// Why it was left out of the mean; null where it was not.
    eliminated_because: Option<String>,
    accepted_at: DateTime<Utc>,
}

impl RoundView {
    /// A round with its results.
    pub fn of(row: RoundRow, results: Vec<ResultRow>) -> Self {
        Self {
            tur: natural(row.round),
            weights_sha256: row.weights_sha256,
            weights_bytes: natural(row.weights_bytes),
            merged: row.merged,
            update_norm: row.update_norm,
            results: results.into_iter().map(ResultView::of).collect(),
            opened_at: shown_time(row.opened_at),
            closed_at: row.closed_at.map(shown_time),
        }
    }
}

impl ResultView {
    fn of(row: ResultRow) -> Self {
        Self {
            isci: row.participant,
            sha256: row.sha256,
            size_bytes: natural(row.size_bytes),
            delta_norm: row.delta_norm,
            eliminated_because: row.eliminated_because,
            accepted_at: shown_time(row.accepted_at),
        }
    }
}

/// A volunteer in a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct ParticipantView {
    /// Its pseudonym.
    isci: String,
    /// Its shard.
    parca: u64,
    /// Results that count.
    accepted: u64,
    /// Uploads that were not valid.
    refused: u64,
    /// Results that were left out when merging.
    eliminated: u64,
    /// Results for a round that was closed; may lag behind by seconds.
    late: u64,
    /// Whether it gets no more tasks because of what it has sent.
    blocked: bool,
    /// Seconds since it was last seen; null where that was before the platform's start.
    seen_ago_seconds: Option<f64>,
    joined_at: DateTime<Utc>,
}

impl ParticipantView {
    /// A volunteer as it stands.
    pub fn of(row: ParticipantRow, session: Option<&Session>, max_refused: Option<i64>) -> Self {
        let seen_ago = session.and_then(|session| session.participants.seen_ago(&row.name));
        Self {
            parca: natural(row.shard),
            accepted: natural(row.accepted),
            refused: natural(row.refused),
            eliminated: natural(row.eliminated),
            late: natural(row.late),
            blocked: max_refused.is_some_and(|limit| row.refused > limit),
            seen_ago_seconds: seen_ago.map(|ago| ago.as_secs_f64()),
            joined_at: shown_time(row.joined_at),
            isci: row.name,
        }
    }
}

/// A file of the final adapter.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileView {
    /// Its name.
    path: String,
    size_bytes: u64,
    sha256: String,
}

impl FileView {
    /// A file.
    pub fn of(row: FileRow) -> Self {
        Self {
            path: row.name,
            size_bytes: natural(row.size_bytes),
            sha256: row.sha256,
        }
    }
}
