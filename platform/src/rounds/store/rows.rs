//! The rows of a session, its rounds, shards and files.

use std::str::FromStr;
use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_aggregation::Rule;
use trainyard_shared::ids::{DatasetId, FederatedSessionId, JobId, UserId};

use crate::database::DatabaseError;
use crate::database::schema::{
    federated_files, federated_rounds, federated_sessions, federated_shards,
};
use crate::rounds::state::Rules;
use crate::rounds::words::{Kind, SessionStatus};
use crate::storage::StoredObject;

/// A session's row.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = federated_sessions)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct SessionRow {
    pub id: i64,
    pub owner_id: i64,
    pub kind: String,
    pub name: String,
    pub is_default: bool,
    pub status: String,
    pub error: Option<String>,
    pub base_model: String,
    pub job_id: Option<i64>,
    pub dataset_id: Option<i64>,
    pub settings: String,
    pub adapter_config: Option<String>,
    pub shard_count: i64,
    pub total_rounds: i64,
    pub enough: i64,
    pub at_least: i64,
    pub round_timeout_ms: Option<i64>,
    pub aggregation: String,
    pub outer_lr: f64,
    pub outer_momentum: f64,
    pub max_delta_norm: Option<f64>,
    pub max_refused: Option<i64>,
    pub key_hash: Option<Vec<u8>>,
    pub round: i64,
    pub closing: bool,
    pub created_at: NaiveDateTime,
    pub ended_at: Option<NaiveDateTime>,
}

/// A session that is to be made.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Whose it is.
    pub owner: UserId,
    /// Who trains in it.
    pub kind: Kind,
    /// What it is called.
    pub name: String,
    /// Whether volunteers find it at the root.
    pub is_default: bool,
    /// The base model's name at the hub.
    pub base_model: String,
    /// The job whose adapter is the first global one.
    pub job: Option<JobId>,
    /// The data that the platform hands out.
    pub dataset: Option<DatasetId>,
    /// What only this kind of session has, as JSON.
    pub settings: String,
    /// Parts of the data.
    pub shards: u64,
    /// When rounds close.
    pub rules: Rules,
    /// How results are merged.
    pub rule: Rule,
    /// Learning rate of the outer step.
    pub outer_lr: f64,
    /// Momentum of the outer step.
    pub outer_momentum: f64,
    /// Largest L2 norm of a result's difference from the global adapter.
    pub max_delta_norm: Option<f64>,
    /// Invalid uploads of one participant after which it gets no more tasks.
    pub max_refused: Option<u32>,
    /// SHA-256 of the key that participants share.
    pub key_hash: Option<Vec<u8>>,
}

/// A round's row.
#[derive(Debug, Clone, PartialEq, Queryable, Selectable)]
#[diesel(table_name = federated_rounds)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct RoundRow {
    pub round: i64,
    pub weights_sha256: String,
    pub weights_bytes: i64,
    pub has_velocity: bool,
    pub merged: Option<i64>,
    pub update_norm: Option<f64>,
    pub loss: Option<f64>,
    pub opened_at: NaiveDateTime,
    pub closed_at: Option<NaiveDateTime>,
}

/// A shard's row.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable, Insertable)]
#[diesel(table_name = federated_shards)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct ShardRow {
    pub session_id: i64,
    pub shard: i64,
    pub sha256: String,
    pub size_bytes: i64,
    pub tokens: i64,
}

/// A file of the final adapter.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable, Insertable)]
#[diesel(table_name = federated_files)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct FileRow {
    pub session_id: i64,
    pub name: String,
    pub sha256: String,
    pub size_bytes: i64,
}

/// What came of a round that was merged.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The next global adapter.
    pub weights: StoredObject,
    /// Whether the momentum is stored beside it.
    pub has_velocity: bool,
    /// Results that went into the mean.
    pub merged: usize,
    /// Those that were left out, and why.
    pub eliminated: Vec<(String, String)>,
    /// L2 norm of the step.
    pub update_norm: f64,
}

impl SessionRow {
    /// Its number.
    pub fn id(&self) -> FederatedSessionId {
        FederatedSessionId(self.id)
    }

    /// Who trains in it.
    ///
    /// # Errors
    /// When what is stored cannot be read; so with all of these.
    pub fn kind(&self) -> Result<Kind, DatabaseError> {
        word(&self.kind)
    }

    /// Where it stands.
    ///
    /// # Errors
    /// As [`SessionRow::kind`].
    pub fn status(&self) -> Result<SessionStatus, DatabaseError> {
        word(&self.status)
    }

    /// How its results are merged.
    ///
    /// # Errors
    /// As [`SessionRow::kind`].
    pub fn rule(&self) -> Result<Rule, DatabaseError> {
        word(&self.aggregation)
    }

    /// When its rounds close.
    pub fn rules(&self) -> Rules {
        Rules {
            total_rounds: natural(self.total_rounds),
            enough: natural(self.enough) as usize,
            at_least: natural(self.at_least) as usize,
            timeout: self
                .round_timeout_ms
                .map(|millis| Duration::from_millis(natural(millis))),
        }
    }
}

fn word<T: FromStr>(text: &str) -> Result<T, DatabaseError>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|error| {
        DatabaseError::Query(diesel::result::Error::DeserializationError(Box::new(error)))
    })
}

/// A count as the database keeps it.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A stored count; what is below zero is not written.
pub(crate) fn natural(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}
