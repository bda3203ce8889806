//! The sum of a round's masked changes: the masks are taken off, and what is left becomes the mean adapter, the round's
//! only result.

use std::collections::BTreeSet;
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
use crate::federated::state::Event;
use crate::federated::state::masking::{Summand, ToSum, Unread};
use crate::federated::store;
use crate::rounds::session::{Contribution, Global, OfferedMean, Session as Rounds, SubmitError};
use crate::storage::StoredObject;

/// Between two tries to store a sum.
const RETRY_DELAY: Duration = Duration::from_secs(2);

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

/// Reads the sum of an attempt in the round (from 0) that is open, and closes the round with its mean. The session hears
/// of it where that cannot be.
pub async fn read(
    actors: Actors,
    rounds: Arc<Rounds>,
    round: u64,
    to_sum: ToSum,
    tells_loss: bool,
) {
    let (id, attempt) = (rounds.id(), to_sum.attempt);
    match try_read(&actors, &rounds, round, to_sum, tells_loss).await {
        Ok(liars) => {
            for worker in liars {
                let error = "it revealed wrong shares".to_owned();
                let event = Event::Misbehaved { worker, error };
                actors.federated.apply(id, event).await;
            }
        }
        Err(why) => {
            tracing::warn!(session.id = %id, attempt, ?why, "the sum of results cannot be read");
            let event = Event::Unread { attempt, why };
            actors.federated.apply(id, event).await;
        }
    }
}

async fn try_read(
    actors: &Actors,
    rounds: &Rounds,
    round: u64,
    to_sum: ToSum,
    tells_loss: bool,
) -> Result<BTreeSet<WorkerId>, Unread> {
    let none = |error: &dyn std::fmt::Display| Unread::NoSum(error.to_string());
    let global = global(actors, rounds).await?;
    let rule = rounds.row.rule().map_err(|error| none(&error))?;
    let (file, out) = actors
        .scratch
        .file()
        .map_err(|error| none(&error))?
        .into_parts();
    // It is written aside and renamed to this name.
    drop(file);
    let context = Context::of(rounds.id(), round + 1, to_sum.attempt);
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
            .map_err(|error| none(&error))?
            .map_err(|error| match error {
                SumError::Masks(_) => Unread::WrongShares(error.to_string()),
                other => none(&other),
            })?;
    let offered = OfferedMean {
        round,
        file,
        content: StoredObject {
            size_bytes: mean.size_bytes,
            sha256: mean.sha256,
        },
        of,
        loss: loss.filter(|_| tells_loss),
    };
    submit(actors, rounds, &offered).await?;
    Ok(liars)
}

/// The adapter that the round began with. Shares are revealed already, so whatever stands in the way is waited for.
async fn global(actors: &Actors, rounds: &Rounds) -> Result<Arc<Global>, Unread> {
    loop {
        match rounds.global(actors).await {
            Ok(global) => return Ok(global),
            Err(error) => wait_out(rounds, error).await?,
        }
    }
}

/// Once the sum is read it is not read again from other results: it is stored as soon as that can be.
async fn submit(actors: &Actors, rounds: &Rounds, offered: &OfferedMean) -> Result<(), Unread> {
    loop {
        match rounds.submit_mean(actors, offered).await {
            // Where it is refused the round has closed, or the session has ended: it is not needed.
            Ok(_) => return Ok(()),
            Err(error) => wait_out(rounds, error).await?,
        }
    }
}

/// Waits until it may be tried again.
async fn wait_out(rounds: &Rounds, error: SubmitError) -> Result<(), Unread> {
    match error {
        SubmitError::Storage(_) | SubmitError::Database(_) => {
            tracing::error!(session.id = %rounds.id(), %error, "the sum of results is stored later");
            tokio::time::sleep(RETRY_DELAY).await;
            Ok(())
        }
        SubmitError::Invalid(why) | SubmitError::Failed(why) => Err(Unread::NoSum(why)),
    }
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
