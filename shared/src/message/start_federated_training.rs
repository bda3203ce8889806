//! The beginning and the early end of a federated session.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parts::{BaseModel, DatasetSource, GlobalWeights, UploadTarget};
use crate::ids::FederatedSessionId;
use crate::number;

/// `start_federated_training`: take part in this session.
///
/// Platform to worker, once for each session, again after a reconnect. A repeat of the same round
/// starts nothing twice. Source: "Federated training messages"; fields: PROTOCOL 7.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartFederatedTraining {
    /// The session.
    pub session_id: FederatedSessionId,
    /// What to do.
    pub data: StartFederatedTrainingData,
}

/// Content of [`StartFederatedTraining`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartFederatedTrainingData {
    /// The round to train, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Rounds of the session.
    #[serde(deserialize_with = "number::count")]
    pub total_rounds: u64,
    /// Which part of the data is this worker's.
    pub shard: Shard,
    /// The data.
    pub dataset: DatasetSource,
    /// The model below the adapter.
    pub base_model: BaseModel,
    /// As in `start_training`, plus `local_steps`: optimizer steps of a round.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// The adapter to start from.
    pub global_weights: GlobalWeights,
    /// Where the round's result goes.
    pub upload: UploadTarget,
    /// When the round closes: RFC 3339, UTC. Only shown; the platform keeps the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What the worker does to its results before it sends them. Ours; a worker that does not know it must not take
    /// part, since what it sends would be unprotected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Privacy>,
}

/// How results are kept private.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Privacy {
    /// Clip and noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differential_privacy: Option<DifferentialPrivacy>,
    /// Results are masked such that only their sum can be read. The worker then says `round_trained` and sends nothing
    /// before it is masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_aggregation: Option<SecureAggregation>,
}

/// Masks that go away in the sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecureAggregation {
    /// Least number of results whose sum is ever read. A worker reveals nothing for less.
    #[serde(deserialize_with = "number::count")]
    pub threshold: u64,
}

/// The Gaussian mechanism on a worker's change of the adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DifferentialPrivacy {
    /// The change is scaled down to this L2 norm where it is larger.
    pub clip_norm: f64,
    /// Every value gets noise of this many times `clip_norm` as its standard deviation.
    pub noise_multiplier: f64,
    /// The delta that epsilon is reported for.
    pub delta: f64,
}

/// One part of a data set that is split among workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Which part, from 0.
    #[serde(deserialize_with = "number::count")]
    pub index: u64,
    /// Parts in all.
    #[serde(deserialize_with = "number::count")]
    pub count: u64,
}

/// `stop_federated_training`: the session is over for this worker.
///
/// Platform to worker, once for each session. Repeats are harmless. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopFederatedTraining {
    /// The session.
    pub session_id: FederatedSessionId,
}
