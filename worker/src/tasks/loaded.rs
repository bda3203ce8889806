//! Base models in memory: loaded once for all answers and evaluations, and given up when the memory is needed.
//!
//! A model that nobody uses stays until another one, or a training job, needs its room; then the one that
//! was used longest ago goes first.

mod generation;
mod model;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trainyard_shared::FailureKind;

use super::failure::Failure;
use super::result_files::AdapterFiles;
use crate::engine::adapter;
use crate::engine::model::Holding;
use crate::engine::weights::ModelFiles;

pub(super) use generation::{AnswerEvent, AnswerRequest};
pub use model::LoadedModel;

/// Left free for all else, when a model is loaded.
const RESERVE_BYTES: u64 = 256 << 20;
/// The least that answers' contexts may hold together, whatever is free.
const LEAST_CONTEXT_BYTES: u64 = 64 << 20;

/// The models in memory. Clones share them.
#[derive(Debug, Clone)]
pub struct LoadedModels(Arc<Shared>);

struct Shared {
    free_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The one used longest ago first.
    models: Mutex<Vec<(Key, Arc<LoadedModel>)>>,
    /// One model is loaded at a time: two at once would both believe the same memory to be free.
    loading: Arc<tokio::sync::Mutex<()>>,
}

/// What a model in memory is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    /// Its folder or file.
    path: PathBuf,
    /// Digest and folder of the adapter that has replaced some of its weights.
    own_weights: Option<(String, PathBuf)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

impl LoadedModels {
    /// No models yet; `free_bytes` measures the memory that is free now.
    pub fn new(free_bytes: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            free_bytes: Box::new(free_bytes),
            models: Mutex::new(Vec::new()),
            loading: Arc::default(),
        }))
    }

    /// The model in the folder or file `path`, loaded if it is not.
    ///
    /// Dropping the future does not stop the loading: the model is there for the next who wants it.
    ///
    /// # Errors
    ///
    /// A model that cannot be read, or for which there is no room.
    pub(super) async fn get(&self, path: &Path) -> Result<Arc<LoadedModel>, Failure> {
        let path = path.to_owned();
        let own_weights = None;
        self.get_by_key(Key { path, own_weights }).await
    }

    /// The model for an adapter: a copy of the base model's own where the adapter replaces some of its weights.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and an adapter that cannot be read.
    pub(super) async fn get_for(
        &self,
        path: &Path,
        adapter: &AdapterFiles,
    ) -> Result<Arc<LoadedModel>, Failure> {
        let replaces = adapter::replaces_weights(adapter.folder())?;
        let own_weights =
            replaces.then(|| (adapter.digest().to_owned(), adapter.folder().to_owned()));
        let path = path.to_owned();
        self.get_by_key(Key { path, own_weights }).await
    }

    async fn get_by_key(&self, key: Key) -> Result<Arc<LoadedModel>, Failure> {
        if let Some(model) = self.find(&key) {
            return Ok(model);
        }
        let turn = self.0.loading.clone().lock_owned().await;
        if let Some(model) = self.find(&key) {
            return Ok(model);
        }
        let models = self.clone();
        let load = move || {
            let _turn = turn;
            let model = Arc::new(models.load(&key)?);
            models.models().push((key, model.clone()));
            Ok(model)
        };
        actix_rt::task::spawn_blocking(load)
            .await
            .unwrap_or_else(|panic| Err(Failure::new(FailureKind::Internal, panic.to_string())))
    }

    /// Gives up every model that nobody uses: something larger needs the memory.
    pub(super) fn release_unused(&self) {
        let unused = {
            let mut models = self.models();
            let (used, unused) = models
                .drain(..)
                .partition(|(_, model)| Arc::strong_count(model) > 1);
            *models = used;
            unused
        };
        drop::<Vec<_>>(unused);
    }

    /// Forgets a model that has broken down; whoever uses it keeps it until they notice.
    pub(super) fn forget(&self, broken: &Arc<LoadedModel>) {
        self.models()
            .retain(|(_, model)| !Arc::ptr_eq(model, broken));
    }

    /// The paths of the models that are loaded, the one used longest ago first.
    #[cfg(test)]
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.models()
            .iter()
            .map(|(key, _)| key.path.clone())
            .collect()
    }

    /// A loaded model, which becomes the one used last.
    fn find(&self, key: &Key) -> Option<Arc<LoadedModel>> {
        let mut models = self.models();
        let index = models.iter().position(|(known, _)| known == key)?;
        let found = models.remove(index);
        let model = found.1.clone();
        models.push(found);
        Some(model)
    }

    fn load(&self, key: &Key) -> Result<LoadedModel, Failure> {
        let path = &key.path;
        let files = ModelFiles::open(path).map_err(|error| Failure::from_model(&error))?;
        let needed = Holding::AsStored.bytes(&files) + RESERVE_BYTES;
        self.make_room(needed, path)?;
        tracing::info!(model.path = %path.display(), "the base model is loaded");
        let own_weights = key.own_weights.as_ref();
        let own_weights = own_weights.map(|(digest, folder)| (digest.as_str(), folder.as_path()));
        LoadedModel::load(files, own_weights, |loaded| {
            let free = (self.0.free_bytes)().saturating_sub(RESERVE_BYTES);
            let room = (free / 2).max(LEAST_CONTEXT_BYTES);
            tracing::debug!(
                model.bytes = loaded,
                contexts.bytes = room,
                "room for contexts"
            );
            usize::try_from(room).unwrap_or(usize::MAX)
        })
    }

    /// Gives up models that nobody uses, the longest unused first, until `needed` bytes are free.
    fn make_room(&self, needed: u64, path: &Path) -> Result<(), Failure> {
        loop {
            let free = (self.0.free_bytes)();
            if free >= needed {
                return Ok(());
            }
            let unused = {
                let mut models = self.models();
                let index = models
                    .iter()
                    .position(|(_, model)| Arc::strong_count(model) == 1);
                index.map(|index| models.remove(index))
            };
            match unused {
                Some((key, _)) => {
                    tracing::info!(model.path = %key.path.display(), "a base model is given up for another one");
                }
                None => {
                    let text = format!(
                        "no room for the model {}: {} MiB are needed and {} MiB are free",
                        path.display(),
                        needed >> 20,
                        free >> 20
                    );
                    return Err(Failure::new(FailureKind::OutOfMemory, text));
                }
            }
        }
    }

    fn models(&self) -> MutexGuard<'_, Vec<(Key, Arc<LoadedModel>)>> {
        self.0.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::tasks::tests::golden;

    /// As much memory as a test says, less what is loaded.
    struct Memory {
        models: LoadedModels,
        free: Arc<AtomicU64>,
    }

    fn memory(free: u64) -> Memory {
        let free = Arc::new(AtomicU64::new(free));
        let measured = free.clone();
        Memory {
            models: LoadedModels::new(move || measured.load(Ordering::SeqCst)),
            free,
        }
    }

    #[actix_rt::test]
    async fn a_model_is_loaded_once_and_stays_until_another_one_needs_its_room() {
        let (tied, untied) = (golden::model("tied"), golden::model("untied"));
        let memory = memory(u64::MAX);
        let first = memory.models.get(tied.path()).await.unwrap();
        let again = memory.models.get(tied.path()).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        memory.models.get(untied.path()).await.unwrap();
        assert_eq!(memory.models.paths().len(), 2);

        let third = golden::model("untied");
        memory.free.store(0, Ordering::SeqCst);
        let refused = memory.models.get(third.path()).await.unwrap_err();
        assert_eq!(refused.kind, FailureKind::OutOfMemory);
        assert!(refused.message.contains("no room"), "{refused:?}");
        assert_eq!(memory.models.paths(), [tied.path()], "what is in use stays");
        drop((first, again));
        assert!(memory.models.get(third.path()).await.is_err());
        assert!(memory.models.paths().is_empty());
        memory.free.store(u64::MAX, Ordering::SeqCst);
        memory.models.get(third.path()).await.unwrap();
    }

    #[actix_rt::test]
    async fn what_nobody_uses_makes_way_for_a_training_job() {
        let (tied, untied) = (golden::model("tied"), golden::model("untied"));
        let memory = memory(u64::MAX);
        let used = memory.models.get(tied.path()).await.unwrap();
        memory.models.get(untied.path()).await.unwrap();
        memory.models.release_unused();
        assert_eq!(memory.models.paths(), [tied.path()]);
        drop(used);
        memory.models.release_unused();
        assert!(memory.models.paths().is_empty());
    }

    #[actix_rt::test]
    async fn a_model_that_cannot_be_read_is_a_failure_of_its_kind() {
        let empty = tempfile::tempdir().unwrap();
        let memory = memory(u64::MAX);
        let refused = memory.models.get(empty.path()).await.unwrap_err();
        assert_eq!(refused.kind, FailureKind::ModelUnavailable);
    }
}
