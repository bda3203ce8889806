//! What workers are told of a session.

use std::time::Duration;

use bytestring::ByteString;
use chrono::{SecondsFormat, Utc};
use trainyard_aggregation::Rule;
use trainyard_shared::ids::{DatasetId, FederatedSessionId, WorkerId};
use trainyard_shared::message::{
    AnnounceKeys, AnnounceKeysData, BaseModel, ContinueRound, ContinueRoundData, DatasetSource,
    GlobalWeights, LoadAggregatedWeights, LoadAggregatedWeightsData, MaskResult, MaskResultData,
    RevealShares, RevealSharesData, Shard, ShareSecrets, ShareSecretsData, StartFederatedTraining,
    StartFederatedTrainingData, StopFederatedTraining, ToWorker, UploadTarget,
};

use super::inbox::Place;
use super::settings::Settings;
use super::state::masking::{Ask, Attempt};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::database::DatabaseError;
use crate::datasets;
use crate::error::ApiError;
use crate::rounds::keys;
use crate::rounds::session::Session;
use crate::storage::{StorageKey, StoredObject};

/// A worker may begin its transfers so long after it was told to.
const TRANSFER_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// A round, as a worker is told of it.
pub struct Orders<'a> {
    actors: &'a Actors,
    session: &'a Session,
    /// From 0.
    round: u64,
    weights: StoredObject,
    deadline: Option<String>,
}

impl<'a> Orders<'a> {
    /// The orders of the round that is open.
    pub fn new(actors: &'a Actors, session: &'a Session, deadline: Option<Moment>) -> Self {
        let live = session.live();
        let now = actors.clock.now();
        let shown = |at: Moment| {
            let at = Utc::now() + at.since(now);
            at.to_rfc3339_opts(SecondsFormat::Secs, true)
        };
        Self {
            actors,
            session,
            round: live.rounds.round(),
            weights: live.weights.clone(),
            deadline: deadline.map(shown),
        }
    }

    /// `start_federated_training`.
    ///
    /// # Errors
    /// When the data set is not there, or the database fails.
    pub async fn start(
        &self,
        settings: &Settings,
        worker: WorkerId,
        shard: u64,
    ) -> Result<ByteString, ApiError> {
        let (dataset, index, count) = settings.part(shard);
        let dataset = self
            .actors
            .database
            .read::<_, DatabaseError, _>(move |c| datasets::store::get(c, dataset.get()))
            .await?;
        let key = StorageKey::parse(&dataset.storage_key)?;
        let row = &self.session.row;
        let start = StartFederatedTraining {
            session_id: self.session.id(),
            data: StartFederatedTrainingData {
                round: self.round + 1,
                total_rounds: self.total_rounds(),
                shard: Shard { index, count },
                dataset: DatasetSource {
                    storage_path: dataset.storage_key,
                    download_url: self.actors.storage.download_url(&key, TRANSFER_VALIDITY),
                    format: dataset.format,
                    id: DatasetId(dataset.id),
                    sha256: Some(dataset.sha256),
                    size_bytes: u64::try_from(dataset.bytes).ok(),
                    max_bad_rows: u64::try_from(dataset.bad_rows)
                        .ok()
                        .filter(|rows| *rows > 0),
                },
                base_model: BaseModel {
                    huggingface_id: row.base_model.clone(),
                    download_urls: Vec::new(),
                },
                config: settings.local_config(),
                global_weights: GlobalWeights {
                    download_url: self.weights_url(),
                    sha256: self.weights.sha256.clone(),
                    size_bytes: self.weights.size_bytes,
                },
                upload: self.upload(worker, None),
                deadline: self.deadline.clone(),
                privacy: settings.privacy.clone(),
            },
        };
        Ok(ToWorker::StartFederatedTraining(start).encode().into())
    }

    /// `load_aggregated_weights` and `continue_round`.
    pub fn go_on(&self, worker: WorkerId) -> [ByteString; 2] {
        let (session_id, round) = (self.session.id(), self.round + 1);
        let load = LoadAggregatedWeights {
            session_id,
            data: LoadAggregatedWeightsData {
                round,
                download_url: self.weights_url(),
                sha256: self.weights.sha256.clone(),
                size_bytes: self.weights.size_bytes,
            },
        };
        let next = ContinueRound {
            session_id,
            data: ContinueRoundData {
                round,
                upload: self.upload(worker, None),
                deadline: self.deadline.clone(),
            },
        };
        [
            ToWorker::LoadAggregatedWeights(load).encode().into(),
            ToWorker::ContinueRound(next).encode().into(),
        ]
    }

    fn total_rounds(&self) -> u64 {
        u64::try_from(self.session.row.total_rounds).unwrap_or(0)
    }

    fn weights_url(&self) -> trainyard_shared::Secret {
        let key = keys::weights(self.session.id(), self.round);
        self.actors.storage.download_url(&key, TRANSFER_VALIDITY)
    }

    /// What a worker is asked in an attempt at the round's sum.
    ///
    /// # Errors
    /// When the session's rule cannot be read.
    pub fn ask(&self, worker: WorkerId, ask: Ask, of: &Attempt) -> Result<ByteString, ApiError> {
        let (session_id, round, attempt) = (self.session.id(), self.round + 1, of.id());
        let message = match ask {
            Ask::AnnounceKeys => ToWorker::AnnounceKeys(AnnounceKeys {
                session_id,
                data: AnnounceKeysData { round, attempt },
            }),
            Ask::ShareSecrets => ToWorker::ShareSecrets(ShareSecrets {
                session_id,
                data: ShareSecretsData {
                    round,
                    attempt,
                    threshold: of.threshold(),
                    members: of.member_keys(),
                },
            }),
            Ask::MaskResult => ToWorker::MaskResult(MaskResult {
                session_id,
                data: MaskResultData {
                    round,
                    attempt,
                    shares: of.shares_for(worker),
                    examples_divisor: (self.session.row.rule()? == Rule::WeightedMean)
                        .then(|| of.most_examples()),
                    upload: self.upload(worker, Some(attempt)),
                },
            }),
            Ask::RevealShares => ToWorker::RevealShares(RevealShares {
                session_id,
                data: RevealSharesData {
                    round,
                    attempt,
                    arrived: of.arrived().into_iter().collect(),
                },
            }),
        };
        Ok(message.encode().into())
    }

    fn upload(&self, worker: WorkerId, attempt: Option<u64>) -> UploadTarget {
        let place = Place {
            session: self.session.id(),
            round: self.round,
            attempt,
            worker,
        };
        let (key, most) = (place.key(), place.most_bytes(self.weights.size_bytes));
        UploadTarget {
            url: self
                .actors
                .storage
                .open_upload_url(&key, most, TRANSFER_VALIDITY),
            key: key.to_string(),
        }
    }
}

/// `stop_federated_training`.
pub fn stop(session_id: FederatedSessionId) -> ByteString {
    let stop = StopFederatedTraining { session_id };
    ToWorker::StopFederatedTraining(stop).encode().into()
}
