//! Merging of a closed round: results and global adapter from the object store, through
//! [`trainyard_aggregation`], and what comes of it back into the store.
//!
//! Repeating it gives the same bytes: a merge that was broken off is simply done again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainyard_aggregation::{
    AggregationError, Eliminated, GlobalAdapter, Merge, Merged, Rule, Update, merge,
};
use trainyard_engine::files;
use trainyard_shared::ids::FederatedSessionId;

use super::keys;
use super::scratch::{LocalFile, RESERVED_BYTES, Scratch};
use super::store::{self, Outcome, ResultRow, SessionRow, natural};
use crate::database::{Database, DatabaseError};
use crate::storage::{ObjectStore, StorageError, StorageKey, StoredObject};

/// Where the files come from and go to.
pub struct Merging {
    /// The object store.
    pub storage: Arc<dyn ObjectStore>,
    /// Where the outcome is written first.
    pub scratch: Scratch,
    /// Set once the platform stops.
    pub stopping: Arc<AtomicBool>,
}

/// Why a round was not merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeFailure {
    /// The files of these results are not any more what was checked.
    Unusable(Vec<String>),
    /// The file of these results cannot be read; those before it could.
    Unreadable {
        /// Whose they are.
        participants: Vec<String>,
        /// What the system or the store says.
        why: String,
    },
    /// The platform stops.
    Stopped,
    /// Something that a later try may find better, for people.
    Trouble(String),
}

impl From<StorageError> for MergeFailure {
    fn from(error: StorageError) -> Self {
        Self::Trouble(format!("the object store: {error}"))
    }
}

impl From<DatabaseError> for MergeFailure {
    fn from(error: DatabaseError) -> Self {
        Self::Trouble(format!("the database: {error}"))
    }
}

impl From<std::io::Error> for MergeFailure {
    fn from(error: std::io::Error) -> Self {
        Self::Trouble(format!("the folder for files on their way: {error}"))
    }
}

/// What is to be merged, as files of this machine.
struct Inputs {
    global: LocalFile,
    velocity: Option<LocalFile>,
    updates: Vec<Input>,
    rule: Rule,
    outer_lr: f32,
    outer_momentum: f32,
}

/// A file that is merged.
struct Input {
    /// The result that it is; several where it is their mean.
    of: Vec<ResultRow>,
    file: LocalFile,
}

impl Input {
    fn participants(&self) -> Vec<String> {
        self.of.iter().map(|row| row.participant.clone()).collect()
    }
}

impl Merging {
    /// Merges a round's results; the outcome's files are stored when this returns.
    ///
    /// # Errors
    /// [`MergeFailure`]; nothing has changed.
    pub async fn run(
        &self,
        database: &Database,
        session: &SessionRow,
        round: u64,
    ) -> Result<Outcome, MergeFailure> {
        let id = session.id();
        let read =
            move |c: &mut _| Ok((store::round(c, id, round)?, store::results(c, id, round)?));
        let (row, results) = database.read::<_, DatabaseError, _>(read).await?;
        self.require_room(natural(row.weights_bytes))?;
        if results.is_empty() {
            return self.carry_over(id, round, row.has_velocity).await;
        }
        let inputs = self
            .inputs(session, round, row.has_velocity, results)
            .await?;
        let folder = self.scratch.folder()?;
        let (out, velocity_out) = (
            folder.path().join(keys::WEIGHTS),
            folder.path().join("velocity.safetensors"),
        );
        let (to, velocity_to) = (out.clone(), velocity_out.clone());
        let stopping = self.stopping.clone();
        let merging = move || {
            let merged = inputs.merge(&to, &velocity_to, &stopping)?;
            let results = inputs.results_of(&merged.kept);
            let eliminated = inputs.eliminated(&merged);
            Ok::<_, MergeFailure>((results, eliminated, merged))
        };
        let (results, eliminated, merged) = tokio::task::spawn_blocking(merging)
            .await
            .map_err(|error| MergeFailure::Trouble(format!("merging: {error}")))??;
        let update_norm = merged.update_norm;
        let weights = StoredObject {
            size_bytes: merged.size_bytes,
            sha256: merged.sha256,
        };
        let has_velocity = self
            .store(id, round + 1, &weights, &out, &velocity_out)
            .await?;
        Ok(Outcome {
            weights,
            has_velocity,
            merged: results,
            eliminated,
            update_norm,
        })
    }

    /// A round without results: the next one begins as it did.
    async fn carry_over(
        &self,
        id: FederatedSessionId,
        round: u64,
        has_velocity: bool,
    ) -> Result<Outcome, MergeFailure> {
        let copy = async |from: StorageKey, to: StorageKey| {
            let file = self.scratch.local(self.storage.as_ref(), &from).await?;
            let content = content_of(file.path().to_owned()).await?;
            self.storage.put_file(&to, file.path(), &content).await?;
            Ok::<_, MergeFailure>(content)
        };
        if has_velocity {
            copy(keys::velocity(id, round), keys::velocity(id, round + 1)).await?;
        }
        let weights = copy(keys::weights(id, round), keys::weights(id, round + 1)).await?;
        Ok(Outcome {
            weights,
            has_velocity,
            merged: 0,
            eliminated: Vec::new(),
            update_norm: 0.0,
        })
    }

    /// The new adapter, and beside it the velocity, which is at most twice as large: as f32 of two bytes a value.
    fn require_room(&self, adapter_bytes: u64) -> Result<(), MergeFailure> {
        if !self.scratch.has_room_for(3 * adapter_bytes)? {
            let message = format!(
                "the disk is full: a merge needs {} MiB",
                (3 * adapter_bytes + RESERVED_BYTES) >> 20
            );
            return Err(MergeFailure::Trouble(message));
        }
        Ok(())
    }

    async fn inputs(
        &self,
        session: &SessionRow,
        round: u64,
        has_velocity: bool,
        results: Vec<ResultRow>,
    ) -> Result<Inputs, MergeFailure> {
        let (id, storage) = (session.id(), self.storage.as_ref());
        let global = self
            .scratch
            .local(storage, &keys::weights(id, round))
            .await?;
        let velocity = match has_velocity {
            true => {
                let key = keys::velocity(id, round);
                Some(self.scratch.local(storage, &key).await?)
            }
            false => None,
        };
        let mut by_file = BTreeMap::<i64, Vec<ResultRow>>::new();
        for row in results {
            by_file.entry(row.number).or_default().push(row);
        }
        let mut updates = Vec::with_capacity(by_file.len());
        for (number, of) in by_file {
            let key = keys::update(id, round, number);
            let whose = || of.iter().map(|row| row.participant.clone()).collect();
            match self.scratch.local(storage, &key).await {
                Ok(file) => updates.push(Input { of, file }),
                Err(StorageError::NotFound) => return Err(MergeFailure::Unusable(whose())),
                Err(error) => {
                    return Err(MergeFailure::Unreadable {
                        participants: whose(),
                        why: error.to_string(),
                    });
                }
            }
        }
        Ok(Inputs {
            global,
            velocity,
            updates,
            rule: session.rule()?,
            outer_lr: session.outer_lr as f32,
            outer_momentum: session.outer_momentum as f32,
        })
    }

    /// Stores what was merged; gives whether it has a velocity.
    async fn store(
        &self,
        session: FederatedSessionId,
        round: u64,
        weights: &StoredObject,
        out: &Path,
        velocity_out: &Path,
    ) -> Result<bool, MergeFailure> {
        let has_velocity = velocity_out.exists();
        if has_velocity {
            let content = content_of(velocity_out.to_owned()).await?;
            let key = keys::velocity(session, round);
            self.storage.put_file(&key, velocity_out, &content).await?;
        }
        let key = keys::weights(session, round);
        self.storage.put_file(&key, out, weights).await?;
        Ok(has_velocity)
    }
}

impl Inputs {
    fn merge(
        &self,
        out: &Path,
        velocity_out: &Path,
        stopping: &AtomicBool,
    ) -> Result<Merged, MergeFailure> {
        let global = GlobalAdapter::open(self.global.path()).map_err(failure)?;
        // A file is known by the first participant whose result is in it.
        let update = |input: &Input| Update {
            name: input.of[0].participant.clone(),
            path: input.file.path().to_owned(),
            weight: natural(input.of[0].weight),
            delta_norm: input.of[0].delta_norm,
        };
        let updates: Vec<Update> = self.updates.iter().map(update).collect();
        let to_merge = Merge {
            global: &global,
            velocity: self.velocity.as_ref().map(LocalFile::path),
            updates: &updates,
            rule: self.rule,
            outer_lr: self.outer_lr,
            outer_momentum: self.outer_momentum,
            threads: 0,
        };
        let is_stopped = || stopping.load(Ordering::Relaxed);
        merge(&to_merge, out, velocity_out, &is_stopped).map_err(|error| match error {
            AggregationError::Changed { name, .. } => MergeFailure::Unusable(self.all_with(&name)),
            AggregationError::Unreadable { name, source } => MergeFailure::Unreadable {
                participants: self.all_with(&name),
                why: source.to_string(),
            },
            other => failure(other),
        })
    }

    /// Whose results are in the same file as that participant's.
    fn all_with(&self, name: &str) -> Vec<String> {
        let is_its = |input: &&Input| input.of[0].participant == name;
        let found = self.updates.iter().find(is_its);
        found.map_or_else(Vec::new, Input::participants)
    }

    /// The results that were left out, and why.
    fn eliminated(&self, merged: &Merged) -> Vec<(String, String)> {
        let why = |one: &Eliminated| {
            let names = self.all_with(&one.name).into_iter();
            let why = one.why.to_string();
            names.map(move |name| (name, why.clone()))
        };
        merged.eliminated.iter().flat_map(why).collect()
    }

    /// Results that are in the files of these participants.
    fn results_of(&self, names: &[String]) -> usize {
        names.iter().map(|name| self.all_with(name).len()).sum()
    }
}

fn failure(error: AggregationError) -> MergeFailure {
    match error {
        AggregationError::Stopped => MergeFailure::Stopped,
        other => MergeFailure::Trouble(other.to_string()),
    }
}

/// Size and digest of a file of this machine.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn content_of(file: PathBuf) -> std::io::Result<StoredObject> {
    let digested = tokio::task::spawn_blocking(move || files::digest(&file));
    let (size_bytes, sha256) = digested.await.map_err(std::io::Error::other)??;
    Ok(StoredObject { size_bytes, sha256 })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::coordinator::tests::{open, platform};

    #[actix_web::test]
    async fn a_round_is_not_merged_while_the_disk_has_no_room_for_that() {
        let (platform, _models) = platform(&[]).await;
        let admin = platform.admin().await;
        let id = FederatedSessionId(open(&admin, "masal", json!({})).await);
        let actors = &platform.server.state.actors;
        let session = actors.coordinators.get(id).and_then(|one| one.session());
        let coordinator = session.unwrap();
        let row = &coordinator.row;
        let run = async |scratch: Scratch| {
            let merging = Merging {
                storage: actors.storage.clone(),
                scratch,
                stopping: Arc::default(),
            };
            merging.run(&actors.database, row, 0).await
        };
        let full = actors
            .scratch
            .clone()
            .on_a_disk_with(|_| Ok(RESERVED_BYTES));
        match run(full).await {
            Err(MergeFailure::Trouble(why)) => assert!(why.contains("disk is full"), "{why}"),
            other => panic!("{other:?}"),
        }
        // A round without results goes on with what it began with.
        let outcome = run(actors.scratch.clone()).await.unwrap();
        let live = coordinator.live().weights.clone();
        assert_eq!((outcome.weights, outcome.merged), (live, 0));
    }
}
