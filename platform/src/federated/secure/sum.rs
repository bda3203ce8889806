//! The sum of a round's masked changes: the masks are taken off, and what is left becomes the mean adapter, the round's
//! only result.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trainyard_aggregation::{AggregationError, GlobalAdapter, Rule, WrittenMean, write_mean};
use trainyard_privacy::secure::fixed_point::{LARGEST, decode};
use trainyard_privacy::secure::{Context, Mask, SecureError, Unmasking};
use trainyard_shared::ids::WorkerId;

use crate::actors::Actors;
use crate::database::{DatabaseError, DbConnection};
use crate::federated::state::Event;
use crate::federated::state::masking::{Summand, ToSum, Unread};
use crate::federated::store;
use crate::rounds;
use crate::rounds::actor::Trouble;
use crate::rounds::news;
use crate::rounds::session::{Contribution, OfferedMean, Session as Rounds, SubmitError};
use crate::rounds::state::Event as RoundEvent;
use crate::storage::StoredObject;

/// Between two tries to store a sum.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Rounds in a row that close without a change before the session is stopped.
const MOST_UNCHANGED: u64 = 3;

/// Length of a masked change: 8 bytes for each value of the adapter, in the order of its file, and for the loss.
pub fn masked_bytes(global: &GlobalAdapter) -> u64 {
    8 * (global.layout().values() as u64 + 1)
}

/// Why there is no mean.
#[derive(Debug, thiserror::Error)]
enum SumError {
    #[error("what was revealed does not fit: {0}")]
    Masks(#[from] SecureError),
    #[error("it is out of range: some masked result is none of a change")]
    OutOfRange,
    #[error(transparent)]
    Failed(#[from] AggregationError),
}

impl SumError {
    /// What the session is told, where trying it again does not help.
    fn unread(&self) -> Option<Unread> {
        let why = self.to_string();
        match self {
            Self::Masks(error) => {
                let of = match error {
                    SecureError::NotRecovered { number } => Some(*number),
                    _ => None,
                };
                Some(Unread::WrongShares { why, of })
            }
            Self::Failed(AggregationError::Io { source, .. }) if may_pass(source) => None,
            Self::OutOfRange | Self::Failed(_) => Some(Unread::NoSum(why)),
        }
    }
}

/// A file that is gone or cut off does not come back.
fn may_pass(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotFound, UnexpectedEof};
    !matches!(error.kind(), NotFound | UnexpectedEof)
}

/// Reads the sum of an attempt in the round (from 0) that is open, and closes the round with its mean. The session hears
/// of it where that cannot be, and of those that have revealed wrong shares.
pub async fn read(
    actors: Actors,
    rounds: Arc<Rounds>,
    round: u64,
    to_sum: ToSum,
    tells_loss: bool,
) {
    let (id, attempt) = (rounds.id(), to_sum.attempt);
    let turn = Turn {
        actors,
        rounds,
        round,
    };
    match turn.mean(Arc::new(to_sum), tells_loss).await {
        Ok(Some((offered, liars))) => {
            for worker in liars {
                let error = "it revealed wrong shares".to_owned();
                let event = Event::Misbehaved { worker, error };
                turn.actors.federated.apply(id, event).await;
            }
            turn.submit(&offered).await;
        }
        Ok(None) => {}
        Err(why) => {
            tracing::warn!(session.id = %id, attempt, ?why, "the sum of results cannot be read");
            let event = Event::Unread { attempt, why };
            turn.actors.federated.apply(id, event).await;
        }
    }
}

/// Closes the round (from 0) that is open without a sum. What these workers have sent counts as sent in vain.
pub async fn close_unchanged(
    actors: Actors,
    rounds: Arc<Rounds>,
    round: u64,
    workers: Vec<WorkerId>,
) {
    tracing::warn!(session.id = %rounds.id(), round = round + 1, "the round closes without a change: its results cannot be summed");
    for worker in workers {
        rounds.participants.count_late(&store::participant(worker));
    }
    if let Err(error) = rounds.participants.flush().await {
        tracing::warn!(session.id = %rounds.id(), %error, "what was counted is written later");
    }
    let turn = Turn {
        actors,
        rounds,
        round,
    };
    turn.until_done(async || turn.close().await).await;
}

/// A round that is to be closed with a sum. Shares are revealed already, and there is no other sum: whatever stands in
/// the way is waited for, as long as the round is open.
struct Turn {
    actors: Actors,
    rounds: Arc<Rounds>,
    round: u64,
}

impl Turn {
    /// The mean, and who has revealed wrong shares; none where the round has closed or the session ended.
    async fn mean(
        &self,
        to_sum: Arc<ToSum>,
        tells_loss: bool,
    ) -> Result<Option<(OfferedMean, BTreeSet<WorkerId>)>, Unread> {
        loop {
            match self.try_mean(to_sum.clone(), tells_loss).await {
                Ok(mean) => return Ok(Some(mean)),
                Err(Hindrance::Lasting(why)) => return Err(why),
                Err(Hindrance::Passing(why)) => {
                    if !self.waits(&why).await {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn try_mean(
        &self,
        to_sum: Arc<ToSum>,
        tells_loss: bool,
    ) -> Result<(OfferedMean, BTreeSet<WorkerId>), Hindrance> {
        let lasting = |error: &dyn Display| Hindrance::Lasting(Unread::NoSum(error.to_string()));
        let global = match self.rounds.global(&self.actors).await {
            Ok(global) => global,
            Err(error @ (SubmitError::Storage(_) | SubmitError::Database(_))) => {
                return Err(Hindrance::Passing(error.to_string()));
            }
            Err(error) => return Err(lasting(&error)),
        };
        let rule = self.rounds.row.rule().map_err(|error| lasting(&error))?;
        let file = self.actors.scratch.file();
        let (file, out) = file
            .map_err(|error| Hindrance::Passing(error.to_string()))?
            .into_parts();
        // It is written aside and renamed to this name.
        drop(file);
        let context = Context::of(self.rounds.id(), self.round + 1, to_sum.attempt);
        let of = contributions(&to_sum);
        let summing = move || {
            let (masks, liars) = masks(&context, &to_sum)?;
            let sum = MaskedSum::open(&to_sum, masks, rule)?;
            let (mean, loss) = sum.write_mean(&global.adapter, &out)?;
            Ok::<_, SumError>((liars, mean, loss, out))
        };
        let summed = tokio::task::spawn_blocking(summing).await;
        let (liars, mean, loss, file) =
            summed
                .map_err(|error| lasting(&error))?
                .map_err(|error| match error.unread() {
                    Some(why) => Hindrance::Lasting(why),
                    None => Hindrance::Passing(error.to_string()),
                })?;
        let content = StoredObject {
            size_bytes: mean.size_bytes,
            sha256: mean.sha256,
        };
        let loss = loss.filter(|_| tells_loss);
        let offered = OfferedMean::new(&self.rounds, self.round, file, content, of, loss);
        Ok((offered, liars))
    }

    /// Stores the mean, then lets it count.
    async fn submit(&self, offered: &OfferedMean) {
        let stored = async || self.rounds.store_mean(&self.actors, offered).await;
        if self.until_done(stored).await {
            // Where it is refused the round has closed, or the session has ended: it is not needed.
            let taken = async || self.rounds.take_mean(offered).await;
            self.until_done(taken).await;
        }
    }

    /// Tries it until it succeeds; false where the round has closed or the session ended before.
    async fn until_done<T, E: Display>(&self, try_it: impl AsyncFn() -> Result<T, E>) -> bool {
        while let Err(error) = try_it().await {
            if !self.waits(&error).await {
                return false;
            }
        }
        true
    }

    /// Closes the round without a sum. A session of which too many rounds in a row came to nothing is stopped: some worker
    /// spoils them, and nobody can see which.
    async fn close(&self) -> Result<(), Trouble> {
        let (id, round) = (self.rounds.id(), self.round);
        let before = round.saturating_sub(MOST_UNCHANGED - 1)..round;
        let are_unchanged = move |c: &mut DbConnection| {
            for before in before {
                if rounds::store::round(c, id, before)?.merged != Some(0) {
                    return Ok(false);
                }
            }
            Ok(round + 1 >= MOST_UNCHANGED)
        };
        let database = &self.actors.database;
        if !database.read::<_, DatabaseError, _>(are_unchanged).await? {
            self.rounds.close_unchanged(round).await?;
            return Ok(());
        }
        let error = format!(
            "the sums of {MOST_UNCHANGED} rounds in a row came to nothing: some worker sends what is none of a change or reveals nothing, or the platform was broken off or lost files each time"
        );
        let noted = move |c: &mut DbConnection| rounds::store::explain(c, id, &error);
        database.write::<_, DatabaseError, _>(noted).await?;
        self.rounds.apply(RoundEvent::StopAsked).await?;
        Ok(())
    }

    /// Waits until it may be tried again; not where the round has closed or the session ended.
    async fn waits(&self, why: &dyn Display) -> bool {
        let id = self.rounds.id();
        tracing::error!(session.id = %id, error = %why, "the sum of results has to wait");
        let trouble = format!("the sum of the results has to wait: {why}");
        if self.rounds.hinder(trouble) {
            news::publish(&self.actors, &self.rounds, false).await;
        }
        tokio::time::sleep(RETRY_DELAY).await;
        let found = self.actors.federated.find(id);
        found.is_some_and(|found| {
            let workers = found.workers.get();
            workers.is_open() && workers.round() == self.round
        })
    }
}

/// Why there is no mean yet.
enum Hindrance {
    /// It may be better in a while; why, for a person.
    Passing(String),
    /// It stays like that.
    Lasting(Unread),
}

fn contributions(to_sum: &ToSum) -> Vec<Contribution> {
    let one = |summand: &Summand| Contribution {
        participant: store::participant(summand.worker),
        content: StoredObject {
            size_bytes: summand.upload.size_bytes,
            sha256: summand.upload.sha256.clone(),
        },
        weight: summand.examples,
    };
    to_sum.uploads.values().map(one).collect()
}

/// The masks that are still in the sum, and who has revealed wrong shares. With more answers than are needed it is tried
/// without each of them, in case just one is wrong.
fn masks(
    context: &Context,
    to_sum: &ToSum,
) -> Result<(Vec<Mask>, BTreeSet<WorkerId>), SecureError> {
    let without = |liar: Option<u8>| {
        let mut unmasking = Unmasking::new(
            context.clone(),
            to_sum.roster.clone(),
            &to_sum.participants,
            to_sum.uploads.keys().copied().collect(),
        )?;
        let answers = to_sum.revealed.iter();
        for (number, (_, revealed)) in answers.filter(|(number, _)| Some(**number) != liar) {
            unmasking.add(*number, (**revealed).clone())?;
        }
        unmasking.masks()
    };
    let first = match without(None) {
        Ok(masks) => return Ok((masks, BTreeSet::new())),
        Err(error) => error,
    };
    for (number, (worker, _)) in &to_sum.revealed {
        if let Ok(masks) = without(Some(*number)) {
            return Ok((masks, BTreeSet::from([*worker])));
        }
    }
    Err(first)
}

/// Masked changes, and the masks that are left in their sum.
struct MaskedSum {
    uploads: Vec<File>,
    masks: Vec<Mask>,
    /// The sum of what the changes were multiplied with.
    divisor: f64,
}

impl MaskedSum {
    fn open(to_sum: &ToSum, masks: Vec<Mask>, rule: Rule) -> Result<Self, SumError> {
        let mut uploads = Vec::with_capacity(to_sum.uploads.len());
        let mut divisor = 0.0;
        for summand in to_sum.uploads.values() {
            let path: &Path = &summand.upload.file;
            uploads.push(File::open(path).map_err(|error| unread(path, error))?);
            divisor += match rule {
                Rule::WeightedMean => summand.examples as f64 / to_sum.most_examples as f64,
                _ => 1.0,
            };
        }
        Ok(Self {
            uploads,
            masks,
            divisor,
        })
    }

    /// The means of the values from number `first` on.
    fn means(&self, first: u64, into: &mut [f64]) -> Result<(), SumError> {
        let mut sum = vec![0_u64; into.len()];
        let mut bytes = vec![0_u8; 8 * into.len()];
        for upload in &self.uploads {
            let read = upload.read_exact_at(&mut bytes, 8 * first);
            read.map_err(|error| unread(Path::new("a masked result"), error))?;
            let (numbers, _) = bytes.as_chunks::<8>();
            for (sum, number) in sum.iter_mut().zip(numbers) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*number));
            }
        }
        for mask in &self.masks {
            mask.apply(&mut sum, first);
        }
        for (mean, sum) in into.iter_mut().zip(sum) {
            *mean = decode(sum) / self.divisor;
            if mean.abs() > LARGEST {
                return Err(SumError::OutOfRange);
            }
        }
        Ok(())
    }

    /// Writes the mean adapter; gives it and the mean loss.
    fn write_mean(
        &self,
        global: &GlobalAdapter,
        out: &Path,
    ) -> Result<(WrittenMean, Option<f64>), SumError> {
        let mean = write_mean(global, |first, into| self.means(first, into), out)?;
        let mut loss = [0.0];
        self.means(global.layout().values() as u64, &mut loss)?;
        Ok((mean, Some(loss[0])))
    }
}

fn unread(path: &Path, source: std::io::Error) -> SumError {
    SumError::Failed(AggregationError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })
}
