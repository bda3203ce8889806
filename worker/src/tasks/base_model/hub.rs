//! The Hugging Face hub: which files a model has, and fetching those that training needs.

use std::path::Path;

use reqwest::StatusCode;
use serde::Deserialize;
use trainyard_shared::Secret;
use url::Url;

use super::local::Need;
use super::mark::Mark;
use super::{CONFIG, FetchProgress, ModelId, create_folder};
use crate::config::ModelSettings;
use crate::tasks::transfers::{Download, Http, TransferError};

/// Files that go with the weights, where the model has them. The first two it must have.
const SMALL_FILES: [&str; 6] = [
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The hub, or a mirror of it.
pub(super) struct Hub<'a> {
    http: &'a Http,
    endpoint: &'a Url,
    token: Option<&'a Secret>,
}

/// Why the hub does not give a model.
#[derive(Debug)]
pub(super) enum HubFault {
    /// The model has no files that are of use.
    Lacks(String),
    /// A request or download failed.
    Transfer(TransferError),
}

impl From<TransferError> for HubFault {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

/// Answer of `/api/models/ID/revision/REVISION`.
#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// One entry of `/api/models/ID/tree/REVISION`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct HubFile {
    path: String,
    #[serde(default)]
    size: u64,
    /// Given for large files: then the digest of the content is known.
    #[serde(default)]
    lfs: Option<LargeFile>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct LargeFile {
    /// SHA-256 of the content.
    oid: String,
    size: u64,
}

impl HubFile {
    fn size_bytes(&self) -> u64 {
        self.lfs.as_ref().map_or(self.size, |large| large.size)
    }
}

impl<'a> Hub<'a> {
    pub(super) fn new(http: &'a Http, settings: &'a ModelSettings) -> Self {
        Self {
            http,
            endpoint: &settings.hub_endpoint,
            token: settings.hub_token.as_ref(),
        }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> String {
        self.endpoint
            .host_str()
            .map_or_else(|| "the hub".to_owned(), |host| format!("the hub ({host})"))
    }

    /// Fetches what training needs into `folder`; what is there whole already is not fetched again. All of it is of one
    /// commit: that of what was fetched before, as long as the hub has it, else the newest.
    ///
    /// # Errors
    ///
    /// Why the hub does not have the model or does not give it.
    pub(super) async fn fetch(
        &self,
        id: &ModelId,
        need: Need,
        folder: &Path,
        on_progress: &mut impl FnMut(FetchProgress<'_>),
    ) -> Result<(), HubFault> {
        let model = id.as_str();
        let mut mark = Mark::read(folder);
        let commit = self.commit(model, mark.commit.as_deref()).await?;
        let tree = self.address(&["api", "models", model, "tree", &commit]);
        let all: Vec<HubFile> = self.http.json(model, &tree, self.token).await?;
        let wanted = choose(&all, need).map_err(HubFault::Lacks)?;
        create_folder(folder)?;
        mark.begin(folder, Some(&commit));
        for file in wanted {
            // Files get their names only once they are whole and checked.
            let there = std::fs::metadata(folder.join(&file.path));
            if there.is_ok_and(|there| there.len() == file.size_bytes()) {
                continue;
            }
            mark.expect(folder, &file.path);
            self.fetch_file(model, &commit, file, folder, on_progress)
                .await?;
            mark.add(folder, &file.path);
        }
        Ok(())
    }

    /// The commit to fetch: `before` where the hub still has it, else main's.
    async fn commit(&self, model: &str, before: Option<&str>) -> Result<String, TransferError> {
        let sha_of = async |name: &str| {
            let revision = self.address(&["api", "models", model, "revision", name]);
            let found: Result<Revision, _> = self.http.json(model, &revision, self.token).await;
            found.map(|found| found.sha)
        };
        if let Some(before) = before {
            match sha_of(before).await {
                Err(TransferError::Refused { .. }) => {}
                found => return found,
            }
        }
        sha_of("main").await
    }

    async fn fetch_file(
        &self,
        model: &str,
        commit: &str,
        file: &HubFile,
        folder: &Path,
        on_progress: &mut impl FnMut(FetchProgress<'_>),
    ) -> Result<(), TransferError> {
        let destination = folder.join(&file.path);
        let download = Download {
            name: &file.path,
            url: Secret::from(
                self.address(&[model, "resolve", commit, &file.path])
                    .to_string(),
            ),
            bearer: self.token,
            size_bytes: Some(file.size_bytes()),
            sha256: file.lfs.as_ref().map(|large| large.oid.as_str()),
            digest_header: None,
            max_bytes: None,
            destination: &destination,
        };
        let progress = |bytes| {
            on_progress(FetchProgress {
                file: &file.path,
                bytes,
                total_bytes: Some(file.size_bytes()),
            });
        };
        self.http
            .download(&download, async || Ok(None), progress)
            .await
    }

    /// Below the endpoint, whose own path is kept.
    fn address(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            path.extend(parts.iter().flat_map(|part| part.split('/')));
        }
        url
    }

    /// A failed transfer in words, with what a person may do about it.
    pub(super) fn explain(&self, error: &TransferError) -> String {
        let hint = match error {
            TransferError::Refused { status, .. } => match *status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.token.is_none() => {
                    " (private, gated or not there: HF_TOKEN is not set)"
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    " (HF_TOKEN may not read it; a gated model's terms have to be accepted first)"
                }
                _ => "",
            },
            _ => "",
        };
        format!("{error}{hint}")
    }
}

/// The files to fetch, the config last; or what the model lacks.
fn choose(all: &[HubFile], need: Need) -> Result<Vec<&HubFile>, String> {
    let named = |name: &str| all.iter().find(|file| file.path == name);
    let mut chosen: Vec<&HubFile> = Vec::new();
    let shards: Vec<&HubFile> = all.iter().filter(|file| is_shard(&file.path)).collect();
    match (
        named("model.safetensors"),
        named("model.safetensors.index.json"),
    ) {
        (Some(weights), _) => chosen.push(weights),
        (None, Some(index)) if !shards.is_empty() => {
            chosen.push(index);
            chosen.extend(shards);
        }
        _ => return one_gguf(all),
    }
    if need == Need::Description {
        chosen.clear();
    }
    for name in &SMALL_FILES[..2] {
        if named(name).is_none() {
            return Err(format!("the model has no {name}"));
        }
    }
    chosen.extend(SMALL_FILES[1..].iter().filter_map(|name| named(name)));
    chosen.extend(named(CONFIG));
    Ok(chosen)
}

fn one_gguf(all: &[HubFile]) -> Result<Vec<&HubFile>, String> {
    let files: Vec<&HubFile> = all
        .iter()
        .filter(|file| file.path.ends_with(".gguf") && !file.path.contains('/'))
        .collect();
    match files[..] {
        [] => Err("the model has no safetensors weights".to_owned()),
        [file] => Ok(vec![file]),
        _ => Err(format!(
            "the model has {} .gguf files: put the one that is wanted into MODELS_DIR by hand",
            files.len()
        )),
    }
}

/// `model-00001-of-00002.safetensors`
fn is_shard(path: &str) -> bool {
    path.strip_prefix("model-")
        .and_then(|rest| rest.strip_suffix(".safetensors"))
        .and_then(|numbers| numbers.split_once("-of-"))
        .is_some_and(|(number, count)| {
            [number, count].iter().all(|digits| {
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<HubFile> {
        names
            .iter()
            .map(|name| HubFile {
                path: (*name).to_owned(),
                size: 1,
                lfs: None,
            })
            .collect()
    }

    fn chosen(names: &[&str]) -> Result<Vec<String>, String> {
        choose(&files(names), Need::Weights)
            .map(|files| files.iter().map(|file| file.path.clone()).collect())
    }

    #[test]
    fn only_what_training_needs_is_fetched_and_the_config_last() {
        let names = chosen(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]);
        assert_eq!(
            names.unwrap(),
            [
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
                "config.json"
            ]
        );
    }

    #[test]
    fn all_shards_come_with_their_index() {
        let names = chosen(&[
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ]);
        let names = names.unwrap();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(!names.contains(&"consolidated.safetensors".to_owned()));
    }

    #[test]
    fn a_model_without_weights_that_can_be_read_is_told_as_such() {
        assert!(
            chosen(&["config.json", "pytorch_model.bin"])
                .unwrap_err()
                .contains("safetensors")
        );
        assert!(
            chosen(&["a.gguf", "b.gguf"])
                .unwrap_err()
                .contains("2 .gguf files")
        );
        assert_eq!(chosen(&["a.gguf"]).unwrap(), ["a.gguf"]);
    }
}
