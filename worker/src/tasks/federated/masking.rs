//! This worker's part in sums of masked results: its keys and secrets, in memory only, and what it answers.
//!
//! Every attempt has keys of its own; one that is begun anew forgets those before it. What was asked already is answered
//! as before, since the answer may have been lost.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use trainyard_privacy::secure::{
    Announcing, Context, Mask, Masking, Number, PublicKeys, Roster, SealedShares, SecureError,
    Sharing,
};
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::{
    AnnounceKeysData, FromWorker, KeysAnnounced, KeysAnnouncedData, MaskResultData, MaskingFailed,
    MaskingFailedData, RevealSharesData, SecretsShared, SecretsSharedData, ShareSecretsData,
    ShareTo, SharesRevealed, SharesRevealedData,
};

use crate::files::{Access, write_atomically};

/// What the platform asks in an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum SumOrder {
    /// Make keys.
    AnnounceKeys(AnnounceKeysData),
    /// Split the secrets.
    ShareSecrets(ShareSecretsData),
    /// Mask the result.
    MaskResult(MaskResultData),
    /// Reveal shares.
    RevealShares(RevealSharesData),
}

impl SumOrder {
    /// The round and the attempt that it is about.
    pub fn place(&self) -> (u64, u64) {
        match self {
            Self::AnnounceKeys(data) => (data.round, data.attempt),
            Self::ShareSecrets(data) => (data.round, data.attempt),
            Self::MaskResult(data) => (data.round, data.attempt),
            Self::RevealShares(data) => (data.round, data.attempt),
        }
    }
}

/// A result that this worker has, and nobody else sees.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// The round, from 1.
    pub(super) round: u64,
    /// The adapter.
    pub(super) file: PathBuf,
    /// The one that it was trained from.
    pub(super) weights: PathBuf,
    /// Rows that it was trained on.
    pub(super) num_examples: u64,
    /// Steps that were done.
    pub(super) steps: u64,
    /// Mean loss, where that may be told.
    pub(super) loss: Option<f64>,
}

/// A result that is to be masked.
pub(super) struct MaskWork {
    pub(super) held: Held,
    pub(super) attempt: u64,
    /// The storage key of the masked change.
    pub(super) key: String,
    pub(super) masks: Vec<Mask>,
    pub(super) factor: f64,
}

impl fmt::Debug for MaskWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MaskWork({}, {})", self.held.round, self.attempt)
    }
}

impl PartialEq for MaskWork {
    fn eq(&self, other: &Self) -> bool {
        (self.held.round, self.attempt) == (other.held.round, other.attempt)
    }
}

impl Eq for MaskWork {}

/// What follows from an order.
#[derive(Debug)]
pub(super) enum Answer {
    /// This is to be said.
    Say(Box<FromWorker>),
    /// The result is to be masked, unless it is or was.
    Mask(Arc<MaskWork>),
    /// Nothing.
    Nothing,
}

/// This worker in the sums of one session.
pub(super) struct Masker {
    session: FederatedSessionId,
    /// Least number of results whose sum it helps to read.
    threshold: u64,
    attempt: Option<(u64, Stage)>,
    /// Of what it has helped to read a sum; the round is kept in the file, so that a restart does not forget it.
    revealed: Revealed,
    revealed_file: PathBuf,
}

/// Of which round a worker has helped to read a sum.
#[derive(Debug, PartialEq, Eq)]
enum Revealed {
    Nothing,
    /// Of this one, by which attempt if that is known.
    Round(u64, Option<u64>),
    /// It cannot tell; why.
    Unknown(String),
}

impl Revealed {
    fn read(file: &Path) -> Self {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::Nothing,
            Err(error) => return Self::Unknown(error.to_string()),
        };
        match text.trim().parse() {
            Ok(round) => Self::Round(round, None),
            Err(_) => Self::Unknown(format!("there is no round in {text:?}")),
        }
    }
}

enum Stage {
    Announced(PublicKeys, Announcing),
    Shared(Vec<ShareTo>, Sharing),
    Masked(Masking),
    /// It said so.
    Failed,
}

/// Why an attempt does not go on.
struct Broken {
    error: String,
    because_of: Option<Number>,
}

impl From<SecureError> for Broken {
    fn from(error: SecureError) -> Self {
        Self {
            because_of: match error {
                SecureError::NotOpened { number } | SecureError::WeakKey { number } => Some(number),
                _ => None,
            },
            error: error.to_string(),
        }
    }
}

fn broken(error: &str) -> Broken {
    Broken {
        error: error.to_owned(),
        because_of: None,
    }
}

impl Masker {
    /// A worker that has said nothing yet, but for what the file tells.
    pub(super) fn new(session: FederatedSessionId, threshold: u64, revealed_file: PathBuf) -> Self {
        Self {
            session,
            threshold,
            attempt: None,
            revealed: Revealed::read(&revealed_file),
            revealed_file,
        }
    }

    /// Does what is asked, with the result that there is.
    pub(super) fn take(&mut self, order: SumOrder, held: Option<&Held>) -> Answer {
        let (round, attempt) = order.place();
        let answer = match held.filter(|held| held.round == round) {
            Some(held) => self.answer(order, held),
            None => Err(broken("this worker has no result of the round")),
        };
        answer.unwrap_or_else(|broken| {
            let is_known = self.attempt.as_ref().is_some_and(|(id, _)| *id == attempt);
            if is_known {
                self.attempt = Some((attempt, Stage::Failed));
            }
            let failed = failed_message(
                self.session,
                (round, attempt),
                broken.error,
                broken.because_of,
            );
            Answer::Say(Box::new(failed))
        })
    }

    fn answer(&mut self, order: SumOrder, held: &Held) -> Result<Answer, Broken> {
        let (round, attempt) = order.place();
        // The difference of two sums tells the changes of those that are in one alone.
        match &self.revealed {
            Revealed::Round(known, by) if *known == round && *by != Some(attempt) => {
                return Err(broken(
                    "this worker has helped to read a sum of the round already, and helps with no other",
                ));
            }
            Revealed::Unknown(why) => {
                return Err(broken(&format!(
                    "whether this worker has helped to read a sum of the round cannot be read: {why}"
                )));
            }
            Revealed::Round(..) | Revealed::Nothing => {}
        }
        match order {
            SumOrder::AnnounceKeys(data) => self.announce(data),
            SumOrder::ShareSecrets(data) => self.share(data),
            SumOrder::MaskResult(data) => self.mask(data, held),
            SumOrder::RevealShares(data) => self.reveal(data),
        }
    }

    /// The stage of that attempt. It may be changed only by going on.
    fn stage(&mut self, attempt: u64) -> Result<&mut Stage, Broken> {
        match &mut self.attempt {
            Some((id, stage)) if *id == attempt => Ok(stage),
            _ => Err(broken("this worker has no keys of the attempt")),
        }
    }

    fn announce(&mut self, data: AnnounceKeysData) -> Result<Answer, Broken> {
        let AnnounceKeysData { round, attempt } = data;
        let keys = match self.stage(attempt) {
            Ok(Stage::Announced(keys, _)) => keys.clone(),
            // It has gone on: the answer has arrived.
            Ok(_) => return Ok(Answer::Nothing),
            Err(_) => {
                let announcing = Announcing::new(Context::of(self.session, round, attempt))?;
                let keys = announcing.public_keys();
                self.attempt = Some((attempt, Stage::Announced(keys.clone(), announcing)));
                keys
            }
        };
        let data = KeysAnnouncedData {
            round,
            attempt,
            keys: (&keys).into(),
        };
        Ok(say(KeysAnnounced {
            worker_id: None,
            session_id: self.session,
            message_id: None,
            data,
        }))
    }

    fn share(&mut self, data: ShareSecretsData) -> Result<Answer, Broken> {
        let ShareSecretsData {
            round,
            attempt,
            threshold,
            members,
        } = data;
        if u64::from(threshold) < self.threshold {
            return Err(broken("sums of so few are not part of this session"));
        }
        let stage = self.stage(attempt)?;
        let shares = match std::mem::replace(stage, Stage::Failed) {
            Stage::Announced(_, announcing) => {
                let members = members.iter().map(PublicKeys::from).collect();
                let roster = Roster::new(usize::from(threshold), members)?;
                let (sharing, sealed) = announcing.share(roster)?;
                let shares: Vec<_> = sealed.iter().map(SealedShares::to_wire).collect();
                *stage = Stage::Shared(shares.clone(), sharing);
                shares
            }
            Stage::Shared(shares, sharing) => {
                *stage = Stage::Shared(shares.clone(), sharing);
                shares
            }
            gone_on => {
                *stage = gone_on;
                return Ok(Answer::Nothing);
            }
        };
        let data = SecretsSharedData {
            round,
            attempt,
            shares,
        };
        Ok(say(SecretsShared {
            worker_id: None,
            session_id: self.session,
            message_id: None,
            data,
        }))
    }

    fn mask(&mut self, data: MaskResultData, held: &Held) -> Result<Answer, Broken> {
        let attempt = data.attempt;
        let stage = self.stage(attempt)?;
        let masking = match std::mem::replace(stage, Stage::Failed) {
            Stage::Shared(_, sharing) => {
                let own = sharing.number();
                let from = |share| SealedShares::from_wire(share, own);
                sharing.receive(&data.shares.iter().map(from).collect::<Vec<_>>())?
            }
            Stage::Masked(masking) => masking,
            Stage::Announced(..) => return Err(broken("this worker has shared no secrets")),
            Stage::Failed => return Ok(Answer::Nothing),
        };
        let num_examples = held.num_examples.max(1) as f64;
        let work = MaskWork {
            held: held.clone(),
            attempt,
            key: data.upload.key,
            masks: masking.masks().to_vec(),
            factor: data
                .examples_divisor
                .map_or(1.0, |divisor| num_examples / divisor.max(1) as f64),
        };
        *stage = Stage::Masked(masking);
        Ok(Answer::Mask(Arc::new(work)))
    }

    /// Written down before anything is said.
    fn note_revealed(&mut self, round: u64, attempt: u64) -> Result<(), Broken> {
        if self.revealed == Revealed::Round(round, Some(attempt)) {
            return Ok(());
        }
        let text = round.to_string();
        let written = write_atomically(&self.revealed_file, text.as_bytes(), Access::Owner);
        written.map_err(|error| broken(&format!("the round cannot be noted: {error}")))?;
        self.revealed = Revealed::Round(round, Some(attempt));
        Ok(())
    }

    fn reveal(&mut self, data: RevealSharesData) -> Result<Answer, Broken> {
        let RevealSharesData {
            round,
            attempt,
            arrived,
        } = data;
        let Stage::Masked(masking) = self.stage(attempt)? else {
            return Err(broken("this worker takes no part in the sum"));
        };
        let (seeds, keys) = masking.reveal(&arrived)?.to_wire();
        self.note_revealed(round, attempt)?;
        let data = SharesRevealedData {
            round,
            attempt,
            seeds,
            keys,
        };
        Ok(say(SharesRevealed {
            worker_id: None,
            session_id: self.session,
            message_id: None,
            data,
        }))
    }
}

fn say(message: impl Into<FromWorker>) -> Answer {
    Answer::Say(Box::new(message.into()))
}

/// `masking_failed` of a round and attempt.
pub(crate) fn failed_message(
    session_id: FederatedSessionId,
    (round, attempt): (u64, u64),
    error: String,
    because_of: Option<u8>,
) -> FromWorker {
    tracing::warn!(session.id = %session_id, round, attempt, error, "this worker is not in the sum");
    FromWorker::MaskingFailed(MaskingFailed {
        worker_id: None,
        session_id,
        message_id: None,
        data: MaskingFailedData {
            round,
            attempt,
            error,
            because_of,
        },
    })
}

#[cfg(test)]
mod tests;
