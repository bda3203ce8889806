//! Where a job's base model comes from: this machine, the platform, the hub, in that order.
//!
//! 1. `MODELS_DIR/org/name`, a folder in the Hugging Face form or with one `.gguf` file in it;
//! 2. `MODELS_DIR/org/name.gguf`;
//! 3. the hub's cache layout, in `MODELS_DIR` and in the hub's own cache on this machine;
//! 4. the files that the platform offers (`download_urls`);
//! 5. the hub.
//!
//! What is fetched goes to `MODELS_DIR/org/name`, `config.json` last: a folder that has it is whole. Where fetched files
//! were damaged since, they are deleted and fetched again, of the same commit; what others have put there is left alone.

mod hub;
mod local;
mod mark;

use std::fmt;
use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trainyard_shared::message::{BaseModel, DownloadUrl};

use super::transfers::{Download, Http, TransferError};
use crate::config::ModelSettings;
use crate::files;
use hub::{Hub, HubFault};
use local::Need;
use mark::Mark;

pub use local::installed;

/// A model is not to be had.
#[derive(Debug)]
pub struct ModelUnavailable {
    id: String,
    tried: Vec<(String, String)>,
    /// Whether one of the places may have it later.
    may_pass: bool,
    /// This machine's folders, and how they are called to others.
    folders: Vec<(String, &'static str)>,
}

impl fmt::Display for ModelUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the base model {} is not to be had", self.id)?;
        for (index, (place, reason)) in self.tried.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            write!(f, "{separator}{place}: {reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ModelUnavailable {}

impl ModelUnavailable {
    /// The same for people elsewhere: the settings of folders stand for their paths on this machine.
    pub fn for_others(&self) -> String {
        let mut text = self.to_string();
        for (path, name) in &self.folders {
            text = text.replace(path, name);
        }
        text
    }
}

/// A model's name as a person or a job gives it, checked before it becomes part of a path: one or two
/// parts of letters, digits, `-`, `_` and `.`, none of which begins with a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId(String);

impl ModelId {
    /// Checks a name.
    pub fn parse(text: &str) -> Option<Self> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with('.')
                && !part.contains("..")
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let parts: Vec<&str> = text.split('/').collect();
        let fits = parts.len() <= 2 && parts.iter().all(|part| is_part(part));
        fits.then(|| Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Finds or fetches base models.
#[derive(Debug, Clone)]
pub struct ModelSource {
    settings: ModelSettings,
    http: Http,
}

/// A file of a model that is being fetched.
#[derive(Debug, Clone, Copy)]
pub struct FetchProgress<'a> {
    /// The file's name.
    pub file: &'a str,
    /// Bytes that are there.
    pub bytes: u64,
    /// Its length, where it is known.
    pub total_bytes: Option<u64>,
}

impl ModelSource {
    /// Models by these settings, fetched through `http`.
    pub fn new(settings: ModelSettings, http: Http) -> Self {
        Self { settings, http }
    }

    /// The folder or `.gguf` file of `model`, fetched if need be. `on_progress` is told of every chunk.
    ///
    /// # Errors
    ///
    /// Every place that was tried and why it does not have the model.
    pub async fn find(
        &self,
        model: &BaseModel,
        on_progress: impl FnMut(FetchProgress<'_>),
    ) -> Result<PathBuf, ModelUnavailable> {
        self.find_what(model, Need::Weights, on_progress).await
    }

    /// The same for whoever needs config and tokenizer only: no weights are fetched from the hub.
    ///
    /// # Errors
    ///
    /// As [`ModelSource::find`].
    pub async fn find_description(
        &self,
        huggingface_id: &str,
    ) -> Result<PathBuf, ModelUnavailable> {
        let model = BaseModel {
            huggingface_id: huggingface_id.to_owned(),
            download_urls: Vec::new(),
        };
        self.find_what(&model, Need::Description, |_| {}).await
    }

    async fn find_what(
        &self,
        model: &BaseModel,
        need: Need,
        mut on_progress: impl FnMut(FetchProgress<'_>),
    ) -> Result<PathBuf, ModelUnavailable> {
        let mut search = ModelUnavailable {
            id: model.huggingface_id.clone(),
            tried: Vec::new(),
            may_pass: false,
            folders: named_folders(&self.settings),
        };
        let Some(id) = ModelId::parse(&model.huggingface_id) else {
            search.failed(
                "the name",
                "not one that a model can have (expected org/name)",
            );
            return Err(search);
        };
        let folder = self.settings.models_dir.join(id.as_str());
        mark::delete_damaged(&folder);
        if let Some(path) = local::find(&self.settings, &id, need, &mut search.tried) {
            return Ok(path);
        }
        let lock = match self.lock(&id).await {
            Ok(lock) => lock,
            Err(reason) => {
                search.failed("MODELS_DIR", &reason);
                return Err(search);
            }
        };
        // Another worker with the same folder may have fetched it while this one waited.
        let found = local::find(&self.settings, &id, need, &mut Vec::new());
        let result = match found {
            Some(path) => Ok(path),
            None => {
                let offered = &model.download_urls;
                self.fetch(&id, need, offered, &folder, &mut search, &mut on_progress)
                    .await
            }
        };
        drop(lock);
        result.map_err(|()| search)
    }

    async fn fetch(
        &self,
        id: &ModelId,
        need: Need,
        offered: &[DownloadUrl],
        folder: &Path,
        search: &mut ModelUnavailable,
        on_progress: &mut impl FnMut(FetchProgress<'_>),
    ) -> Result<PathBuf, ()> {
        if !offered.is_empty() {
            match self.fetch_offered(offered, folder, on_progress).await {
                Ok(()) => match local::usable(folder, need) {
                    Ok(path) => return Ok(path),
                    Err(reason) => search.failed("the platform", &reason),
                },
                Err(error) => search.failed_in_transfer("the platform", &error, &error.to_string()),
            }
        }
        if self.settings.hub_offline {
            search.failed("the hub", "not asked (HF_HUB_OFFLINE)");
            return Err(());
        }
        let hub = Hub::new(&self.http, &self.settings);
        match hub.fetch(id, need, folder, on_progress).await {
            Ok(()) => match local::usable(folder, need) {
                Ok(path) => return Ok(path),
                Err(reason) => search.failed(&hub.name(), &reason),
            },
            Err(HubFault::Lacks(reason)) => search.failed(&hub.name(), &reason),
            Err(HubFault::Transfer(error)) => {
                search.failed_in_transfer(&hub.name(), &error, &hub.explain(&error));
            }
        }
        Err(())
    }

    async fn fetch_offered(
        &self,
        offered: &[DownloadUrl],
        folder: &Path,
        on_progress: &mut impl FnMut(FetchProgress<'_>),
    ) -> Result<(), TransferError> {
        create_folder(folder)?;
        let mut mark = Mark::read(folder);
        mark.begin(folder, None);
        let mut offered: Vec<&DownloadUrl> = offered.iter().collect();
        offered.sort_by_key(|file| file.key.rsplit('/').next() == Some(CONFIG));
        for file in offered {
            let name = file.key.rsplit('/').next().unwrap_or_default();
            let plain = ModelId::parse(name).is_some();
            if !plain {
                return Err(TransferError::WrongContent {
                    name: file.key.clone(),
                    message: "not a name that a model's file can have".to_owned(),
                });
            }
            let download = Download {
                name,
                url: file.url.clone(),
                bearer: None,
                size_bytes: file.size_bytes,
                sha256: file.sha256.as_deref(),
                digest_header: None,
                max_bytes: None,
                destination: &folder.join(name),
            };
            let progress = |bytes| {
                on_progress(FetchProgress {
                    file: name,
                    bytes,
                    total_bytes: file.size_bytes,
                });
            };
            mark.expect(folder, name);
            self.http
                .download(&download, async || Ok(None), progress)
                .await?;
            mark.add(folder, name);
        }
        Ok(())
    }

    /// One worker at a time fetches a model into a folder that several may share.
    async fn lock(&self, id: &ModelId) -> Result<std::fs::File, String> {
        let dir = self.settings.models_dir.join(".locks");
        let path = dir.join(format!("{}.lock", id.as_str().replace('/', "--")));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let explain = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = files::open_lock_file(&path).map_err(explain)?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        tracing::info!(lock = %path.display(), "waits for another worker that fetches the same model");
                        told = true;
                    }
                    // Asked again and again, since a wait inside the system could not be broken off.
                    tokio::time::sleep(LOCK_CHECK).await;
                }
                Err(TryLockError::Error(error)) => return Err(explain(error)),
            }
        }
    }
}

/// How often a lock that another worker holds is asked for.
const LOCK_CHECK: Duration = Duration::from_millis(500);

/// The file that is fetched last.
const CONFIG: &str = "config.json";

impl ModelUnavailable {
    /// Whether it may be had later without anything being changed: a place was away, or the disk had no room.
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }

    fn failed(&mut self, place: &str, reason: &str) {
        self.tried.push((place.to_owned(), reason.to_owned()));
    }

    fn failed_in_transfer(&mut self, place: &str, error: &TransferError, reason: &str) {
        self.may_pass |= error.may_pass() || error.is_about_room();
        self.failed(place, reason);
    }
}

/// The folders of the settings, a longer path before one that is the beginning of it.
fn named_folders(settings: &ModelSettings) -> Vec<(String, &'static str)> {
    let cache = settings.hub_cache.as_deref();
    let mut folders = vec![(settings.models_dir.display().to_string(), "MODELS_DIR")];
    folders.extend(cache.map(|path| (path.display().to_string(), "the hub's cache")));
    folders.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    folders
}

fn create_folder(folder: &Path) -> Result<(), TransferError> {
    std::fs::create_dir_all(folder).map_err(|source| TransferError::io("create", folder, source))
}

#[cfg(test)]
mod tests;
