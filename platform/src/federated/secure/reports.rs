//! What workers say in rounds whose results are masked, on its way to the session.

use std::sync::Arc;

use trainyard_privacy::secure::{PublicKeys, Revealed};
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{
    FederatedUpdateData, FromWorker, KeysAnnouncedData, MaskingFailedData, RoundTrainedData,
    SecretsSharedData, SharesRevealedData,
};

use super::sum;
use crate::actors::Actors;
use crate::federated::directory::{Answer, ReportError, UnderWay};
use crate::federated::inbox::{self, Place};
use crate::federated::state::Event;
use crate::federated::state::masking::{Judgement, Said, Upload};
use crate::storage::StoredObject;

/// Something that is said in an attempt at a round's sum.
#[derive(Debug, Clone, PartialEq)]
pub struct OfSum {
    /// The round, from 1 as on the wire.
    pub round: u64,
    /// The attempt.
    pub attempt: u64,
    /// What is said.
    pub said: Said,
}

impl OfSum {
    /// Reads the message, or gives it back when it is about something else.
    ///
    /// # Errors
    /// The message.
    pub fn from_wire(message: FromWorker) -> Result<Self, Box<FromWorker>> {
        let (round, attempt, said) = match message {
            FromWorker::KeysAnnounced(m) => {
                let KeysAnnouncedData {
                    round,
                    attempt,
                    keys,
                } = m.data;
                (round, attempt, Said::Keys(PublicKeys::from(&keys)))
            }
            FromWorker::SecretsShared(m) => {
                let SecretsSharedData {
                    round,
                    attempt,
                    shares,
                } = m.data;
                (round, attempt, Said::Shares(Arc::new(shares)))
            }
            FromWorker::SharesRevealed(m) => {
                let SharesRevealedData {
                    round,
                    attempt,
                    seeds,
                    keys,
                } = m.data;
                let revealed = Revealed::from_wire(&seeds, &keys);
                (round, attempt, Said::Revealed(Arc::new(revealed)))
            }
            FromWorker::MaskingFailed(m) => {
                let MaskingFailedData {
                    round,
                    attempt,
                    error,
                    because_of,
                } = m.data;
                (round, attempt, Said::Broken { error, because_of })
            }
            other => return Err(Box::new(other)),
        };
        Ok(Self {
            round,
            attempt,
            said,
        })
    }
}

/// How a round that is named stands beside the one that is open.
fn round_of(found: &UnderWay, named: u64) -> Result<Option<u64>, ReportError> {
    let round = named
        .checked_sub(1)
        .ok_or_else(|| ReportError::Invalid("data.round: rounds are counted from 1".to_owned()))?;
    let workers = found.workers.get();
    match round.cmp(&workers.round()) {
        std::cmp::Ordering::Greater => Err(ReportError::Invalid(format!(
            "data.round: round {named} has not begun"
        ))),
        std::cmp::Ordering::Equal if workers.is_open() => Ok(Some(round)),
        _ => Ok(None),
    }
}

/// A worker has a result, and keeps it until it can be masked.
pub(in crate::federated) async fn trained(
    actors: &Actors,
    found: &UnderWay,
    worker: WorkerId,
    data: RoundTrainedData,
) -> Result<Answer, ReportError> {
    if found.workers.get().masking().is_none() {
        let message = "in this session results are sent as they are (federated_update)";
        return Err(ReportError::Invalid(message.to_owned()));
    }
    let Some(round) = round_of(found, data.round)? else {
        return Ok(Answer::Ignored);
    };
    if let Err(why) = found.check_examples(worker, data.num_examples) {
        return Err(refuse(actors, found, worker, why).await);
    }
    let event = Event::Trained {
        worker,
        round,
        examples: data.num_examples.max(1),
    };
    actors.federated.apply(found.rounds.id(), event).await;
    Ok(Answer::Taken)
}

/// A worker says something in an attempt.
pub(in crate::federated) async fn take(
    actors: &Actors,
    found: &UnderWay,
    worker: WorkerId,
    of_sum: OfSum,
) -> Result<Answer, ReportError> {
    let OfSum {
        round,
        attempt,
        said,
    } = of_sum;
    if round_of(found, round)?.is_none() {
        return Ok(Answer::Ignored);
    }
    let workers = found.workers.get();
    let judgement = match workers.masking() {
        Some(masking) => masking.judge(worker, attempt, &said),
        None => Judgement::Wrong("this session has no secure aggregation".to_owned()),
    };
    match judgement {
        Judgement::Ignored => Ok(Answer::Ignored),
        Judgement::Wrong(why) => Err(refuse(actors, found, worker, why).await),
        Judgement::Counts => {
            if let Said::Broken { error, because_of } = &said {
                tracing::warn!(session.id = %found.rounds.id(), worker.id = %worker, error, because_of, "worker cannot mask its result");
            }
            let event = Event::Said {
                worker,
                attempt,
                said,
            };
            actors.federated.apply(found.rounds.id(), event).await;
            Ok(Answer::Taken)
        }
    }
}

/// A worker's masked change is stored. Its file is copied, hashed, and counts if it has the right length: more cannot be
/// seen in it.
pub(in crate::federated) async fn take_masked(
    actors: &Actors,
    found: &UnderWay,
    worker: WorkerId,
    data: FederatedUpdateData,
) -> Result<Answer, ReportError> {
    let Some(attempt) = data.attempt else {
        let message = "data.attempt: this session takes masked results only";
        return Err(refuse(actors, found, worker, message.to_owned()).await);
    };
    let id = found.rounds.id();
    let open = round_of(found, data.round)?;
    let place = Place {
        session: id,
        round: data.round.saturating_sub(1),
        attempt: Some(attempt),
        worker,
    };
    let key = place.key();
    if data.key != key.as_str() {
        let message = format!("data.key: this worker's masked result is {key}");
        return Err(ReportError::Invalid(message));
    }
    let workers = found.workers.get();
    let judgement = match (open, workers.masking()) {
        (Some(_), Some(masking)) => masking.judge_upload(worker, attempt, &data.sha256),
        _ => Judgement::Ignored,
    };
    match judgement {
        Judgement::Counts => {}
        // It came too late, or is there already.
        Judgement::Ignored => {
            inbox::forget(actors, &key).await;
            return Ok(Answer::Ignored);
        }
        Judgement::Wrong(why) => return Err(refuse(actors, found, worker, why).await),
    }
    let content = StoredObject {
        size_bytes: data.size_bytes,
        sha256: data.sha256,
    };
    let taken = async {
        let global = found.rounds.global(actors).await?;
        let file = inbox::fetch(actors, &key, &content).await?;
        Ok::<_, ReportError>((global, file))
    };
    let (global, file) = match taken.await {
        Ok(taken) => taken,
        Err(error) => {
            if !matches!(error, ReportError::NotStored(_)) {
                let event = Event::PutOff { worker, attempt };
                actors.federated.apply(id, event).await;
            }
            return Err(error);
        }
    };
    inbox::forget(actors, &key).await;
    let expected = sum::masked_bytes(&global.adapter);
    if content.size_bytes != expected {
        let why = format!(
            "data.size_bytes: a masked result of this session has {expected} bytes, not {}",
            content.size_bytes
        );
        return Err(refuse(actors, found, worker, why).await);
    }
    let said = Said::Uploaded(Upload {
        sha256: content.sha256,
        size_bytes: content.size_bytes,
        file: Arc::new(file),
    });
    let event = Event::Said {
        worker,
        attempt,
        said,
    };
    actors.federated.apply(id, event).await;
    Ok(Answer::Taken)
}

/// A worker that says what cannot be is not counted on.
async fn refuse(actors: &Actors, found: &UnderWay, worker: WorkerId, why: String) -> ReportError {
    let id = found.rounds.id();
    tracing::warn!(session.id = %id, worker.id = %worker, why, "worker does not follow the protocol");
    let event = Event::Misbehaved {
        worker,
        error: why.clone(),
    };
    actors.federated.apply(id, event).await;
    ReportError::Invalid(why)
}
