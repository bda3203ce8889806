//! One base model in memory, with what answers and evaluations need beside its weights.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Local, NaiveDate};

use super::generation::{AnswerRequest, Generation};
use crate::engine::chat_template::Chat;
use crate::engine::model::{CacheRoom, Holding, Llama, LoadedAdapter, ModelConfig};
use crate::engine::weights::ModelFiles;
use crate::engine::{EngineError, adapter};
use crate::tasks::failure::Failure;

/// Adapters that are kept ready beside one model.
const KEPT_ADAPTERS: usize = 16;

/// A base model in memory.
#[derive(Debug)]
pub struct LoadedModel {
    files: ModelFiles,
    llama: Arc<Llama>,
    stop_ids: Vec<u32>,
    /// The chat template by the day that it was made for, since templates may write the date.
    chat: Mutex<(NaiveDate, Arc<Chat>)>,
    no_adapter: Arc<LoadedAdapter>,
    /// The digest of the adapter whose own weights have replaced some of the model's.
    own_weights: Option<String>,
    /// By digest; the one used longest ago first.
    adapters: Mutex<VecDeque<(String, Arc<LoadedAdapter>)>>,
    generation: Generation,
}

impl LoadedModel {
    /// Loads a model, with the weights that an adapter of this digest and folder replaces; `context_bytes` says how much contexts may hold, once the weights' bytes are taken.
    ///
    /// # Errors
    ///
    /// A model that cannot be read, or memory that has run out.
    pub(super) fn load(
        files: ModelFiles,
        own_weights: Option<(&str, &Path)>,
        context_bytes: impl FnOnce(u64) -> usize,
    ) -> Result<Self, Failure> {
        let now = Local::now();
        let (llama, chat, stop_ids) = match read(&files, own_weights.map(|(_, folder)| folder), now)
        {
            Ok(read) => read,
            Err(error @ EngineError::OutOfMemory { .. }) => return Err(error.into()),
            Err(error) => return Err(Failure::from_model(&error)),
        };
        let no_adapter = Arc::new(LoadedAdapter::none(llama.config())?);
        let bytes = llama.config().parameter_count() * size_of::<f32>() as u64;
        let room = CacheRoom::new(context_bytes(bytes));
        Ok(Self {
            generation: Generation::start(llama.clone(), room)?,
            files,
            llama,
            stop_ids,
            chat: Mutex::new((now.date_naive(), Arc::new(chat))),
            no_adapter,
            own_weights: own_weights.map(|(digest, _)| digest.to_owned()),
            adapters: Mutex::default(),
        })
    }

    /// The weights.
    pub(in crate::tasks) fn llama(&self) -> &Arc<Llama> {
        &self.llama
    }

    /// The model's shape.
    pub(in crate::tasks) fn config(&self) -> &ModelConfig {
        self.llama.config()
    }

    /// Tokens that end an answer.
    pub(in crate::tasks) fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The tokenizer and chat template as of today.
    ///
    /// # Errors
    ///
    /// The model's files have been damaged since it was loaded.
    pub(in crate::tasks) fn chat(&self) -> Result<Arc<Chat>, Failure> {
        let now = Local::now();
        let mut chat = self.chat.lock().unwrap_or_else(PoisonError::into_inner);
        if chat.0 != now.date_naive() {
            let made = self.files.chat(now).map_err(|e| Failure::from_model(&e))?;
            *chat = (now.date_naive(), Arc::new(made));
        }
        Ok(chat.1.clone())
    }

    /// No adapter.
    pub(in crate::tasks) fn no_adapter(&self) -> Arc<LoadedAdapter> {
        self.no_adapter.clone()
    }

    /// The adapter with this digest, read from `folder` unless it is there already.
    ///
    /// # Errors
    ///
    /// An adapter that cannot be read or does not fit the model.
    pub(in crate::tasks) fn adapter(
        &self,
        digest: &str,
        folder: &Path,
    ) -> Result<Arc<LoadedAdapter>, EngineError> {
        let find = |adapters: &mut VecDeque<(String, Arc<LoadedAdapter>)>| {
            let index = adapters.iter().position(|(known, _)| known == digest)?;
            let found = adapters.remove(index)?;
            adapters.push_back(found.clone());
            Some(found.1)
        };
        if let Some(adapter) = find(&mut self.adapters()) {
            return Ok(adapter);
        }
        let pairs = match self.own_weights.as_deref() == Some(digest) {
            true => adapter::load_all(folder, self.config())?.pairs,
            false => adapter::load(folder, self.config())?.0,
        };
        let loaded = Arc::new(LoadedAdapter::new(self.config(), &pairs)?);
        let mut adapters = self.adapters();
        if let Some(other) = find(&mut adapters) {
            return Ok(other);
        }
        if adapters.len() == KEPT_ADAPTERS {
            adapters.pop_front();
        }
        adapters.push_back((digest.to_owned(), loaded.clone()));
        Ok(loaded)
    }

    /// Begins an answer, whose events go where it says. False if the model has broken down.
    pub(in crate::tasks) fn answer(&self, request: AnswerRequest) -> bool {
        self.generation.answer(request)
    }

    fn adapters(&self) -> MutexGuard<'_, VecDeque<(String, Arc<LoadedAdapter>)>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Read = (Arc<Llama>, Chat, Vec<u32>);

fn read(
    files: &ModelFiles,
    own_weights: Option<&Path>,
    now: DateTime<Local>,
) -> Result<Read, EngineError> {
    let chat = files.chat(now)?;
    let stop_ids = files.stop_token_ids(&chat)?;
    let mut llama = Llama::load_as(files, Holding::AsStored)?;
    files.release_memory();
    if let Some(folder) = own_weights {
        let adapter = adapter::load_all(folder, &files.config)?;
        adapter.whole.put_into(&mut llama)?;
    }
    Ok((Arc::new(llama), chat, stop_ids))
}
