//! Models that are on this machine already.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ModelId;
use crate::config::ModelSettings;

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
