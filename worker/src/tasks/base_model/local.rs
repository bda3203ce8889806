//! Models that are on this machine already.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ModelId;
use crate::config::ModelSettings;
use crate::engine::EngineError;
use crate::engine::gguf::GgufModel;
use crate::engine::weights::SafetensorsFile;

/// What somebody needs of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Everything.
    Weights,
    /// Config and tokenizer: its shape, and how text becomes tokens.
    Description,
}

/// Looks in all places of this machine; what was looked at in vain is added to `tried`.
pub(super) fn find(
    settings: &ModelSettings,
    id: &ModelId,
    need: Need,
    tried: &mut Vec<(String, String)>,
) -> Option<PathBuf> {
    let folder = settings.models_dir.join(id.as_str());
    match usable(&folder, need) {
        Ok(path) => return Some(path),
        Err(reason) => tried.push((folder.display().to_string(), reason)),
    }
    let mut file = folder.into_os_string();
    file.push(".gguf");
    let file = PathBuf::from(file);
    if file.is_file() {
        return Some(file);
    }
    tried.push((file.display().to_string(), "not there".to_owned()));
    let caches = std::iter::once(&settings.models_dir).chain(&settings.hub_cache);
    for cache in caches {
        match in_hub_cache(cache, id, need) {
            Some(path) => return Some(path),
            None => tried.push((
                cache.display().to_string(),
                "not in the hub's cache layout".to_owned(),
            )),
        }
    }
    None
}

/// The folder, or the one `.gguf` file in it; or why it is not what is needed.
pub(super) fn usable(folder: &Path, need: Need) -> Result<PathBuf, String> {
    if !folder.is_dir() {
        return Err("not there".to_owned());
    }
    if folder.join("config.json").is_file() {
        let missing = missing_files(folder, need)?;
        return match missing.first() {
            None => Ok(folder.to_owned()),
            Some(name) => Err(format!("{name} is missing")),
        };
    }
    let mut gguf_files: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        })
        .collect();
    match (gguf_files.pop(), gguf_files.len()) {
        (Some(file), 0) => Ok(file),
        (Some(_), others) => Err(format!(
            "no config.json, and {} .gguf files of which one would have to be chosen",
            others + 1
        )),
        (None, _) => Err("neither config.json nor a .gguf file".to_owned()),
    }
}

/// Marks a folder whose files were fetched, not put there by its owner.
const FETCHED: &str = ".fetched";

/// The files in the folder were fetched: they can be fetched again. Not where one cannot be read although it has just come.
pub(super) fn mark_fetched(folder: &Path) {
    let mark = folder.join(FETCHED);
    let marked = match files_of(folder).any(|path| read(&path).is_err()) {
        true => remove_if_there(&mark),
        false => fs::write(&mark, ""),
    };
    if let Err(error) = marked {
        tracing::warn!(folder = %folder.display(), %error, "a fetched model is not marked as such");
    }
}

/// Deletes files of a fetched folder that cannot be read as what they are: cut off, or with a damaged header. What cannot
/// be read for other reasons stays.
pub(super) fn delete_damaged(folder: &Path) {
    if !folder.join(FETCHED).is_file() {
        return;
    }
    for path in files_of(folder) {
        let Err(why) = read(&path) else { continue };
        tracing::warn!(file = %path.display(), why, "a fetched file of a model is damaged and is deleted");
        // Without its config the folder is not whole: what is missing is fetched, also what not every model has.
        for file in [&path, &folder.join("config.json")] {
            if let Err(error) = remove_if_there(file) {
                tracing::warn!(file = %file.display(), %error, "it cannot be deleted");
            }
        }
    }
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn files_of(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Looks at a file's header, or the whole of a text.
fn read(path: &Path) -> Result<(), String> {
    let opened = match path.extension().and_then(OsStr::to_str) {
        Some("safetensors") => SafetensorsFile::open(path).map(drop),
        Some("gguf") => GgufModel::open(path).map(drop),
        Some("json") => {
            return match fs::read(path) {
                Ok(text) => serde_json::from_slice::<IgnoredAny>(&text)
                    .map(drop)
                    .map_err(|error| error.to_string()),
                Err(_) => Ok(()),
            };
        }
        _ => return Ok(()),
    };
    match opened {
        Err(EngineError::Io { .. }) | Ok(()) => Ok(()),
        Err(damaged) => Err(damaged.to_string()),
    }
}

/// The part of `model.safetensors.index.json` that names files.
#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

fn missing_files(folder: &Path, need: Need) -> Result<Vec<String>, String> {
    let mut needed = vec!["tokenizer.json".to_owned()];
    if need == Need::Weights && !folder.join("model.safetensors").is_file() {
        let index = folder.join("model.safetensors.index.json");
        if !index.is_file() {
            needed.push("model.safetensors".to_owned());
        } else {
            let text = fs::read_to_string(&index).map_err(|error| error.to_string())?;
            let index: Index = serde_json::from_str(&text)
                .map_err(|error| format!("model.safetensors.index.json: {error}"))?;
            needed.extend(index.weight_map.into_values());
        }
    }
    needed.retain(|name| !folder.join(name).is_file());
    Ok(needed)
}

/// `models--org--name/snapshots/REVISION`: the revision of `refs/main`, else any whole one.
fn in_hub_cache(cache: &Path, id: &ModelId, need: Need) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", id.as_str().replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = fs::read_to_string(model.join("refs/main")).ok();
    let main = main
        .as_deref()
        .map(str::trim)
        .filter(|revision| ModelId::parse(revision).is_some())
        .and_then(|revision| usable(&snapshots.join(revision), need).ok());
    main.or_else(|| {
        fs::read_dir(snapshots)
            .ok()?
            .filter_map(|entry| usable(&entry.ok()?.path(), need).ok())
            .min()
    })
}

/// The names of all models in a models directory, sorted: what `worker_register` lists.
pub fn installed(models_dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    collect(models_dir, "", &mut names);
    names.sort();
    names.dedup();
    names
}

fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(file_name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if let Some(cached) = file_name.strip_prefix("models--") {
            let id = ModelId::parse(&cached.replacen("--", "/", 1));
            if let Some(id) = id.filter(|id| in_hub_cache(folder, id, Need::Weights).is_some()) {
                names.push(id.as_str().to_owned());
            }
            continue;
        }
        let stem = file_name.strip_suffix(".gguf").unwrap_or(&file_name);
        let Some(id) = ModelId::parse(&format!("{prefix}{stem}")) else {
            continue;
        };
        let is_file = path.is_file() && stem != file_name;
        if is_file || usable(&path, Need::Weights).is_ok() {
            names.push(id.as_str().to_owned());
        } else if prefix.is_empty() && path.is_dir() {
            collect(&path, &format!("{stem}/"), names);
        }
    }
}
