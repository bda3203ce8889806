//! `trainyard jobs download` and its like for sessions: fetch what was made, each file checked by its length and
//! digest.

use clap::Args;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, bytes, cell, items, remark};

/// Options of `jobs download`.
#[derive(Args)]
pub struct Options {
    /// The job's number.
    id: u64,
    /// The folder to put the files in; else job-ID.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// A file that a job made.
struct Artifact {
    path: PathBuf,
    segments: Vec<String>,
    size_bytes: Option<u64>,
    sha256: Option<String>,
}

/// What has made the files.
pub struct Maker<'a> {
    /// As in `/api/jobs`.
    pub collection: &'a str,
    /// As in `job 3` and in the folder's name.
    pub word: &'a str,
    /// Its number.
    pub id: u64,
}

/// Fetches all files of the job.
pub async fn run(options: &Options, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let maker = Maker {
        collection: "jobs",
        word: "job",
        id: options.id,
    };
    fetch_all(&maker, options.output.as_deref(), platform, output).await
}

/// Fetches all files that something has made.
pub async fn fetch_all(
    maker: &Maker<'_>,
    folder: Option<&Path>,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let id = maker.id.to_string();
    let list = platform
        .all(&["api", maker.collection, &id, "artifacts"], &[])
        .await?;
    // What is not verified was named by a worker and never stored here.
    let (stored, named): (Vec<_>, Vec<_>) = items(&list)
        .iter()
        .partition(|artifact| artifact["verified"] != false);
    for artifact in named {
        remark(&format!("not stored here: {}", cell(artifact, "/path")));
    }
    let artifacts = stored
        .into_iter()
        .map(Artifact::read)
        .collect::<Result<Vec<_>, _>>()?;
    if artifacts.is_empty() {
        let word = maker.word;
        return Err(CliError::Input(format!("{word} {id} has no files (yet)")));
    }
    let folder = folder.map_or_else(
        || PathBuf::from(format!("{}-{id}", maker.word)),
        Path::to_owned,
    );
    let mut files = Vec::new();
    for artifact in &artifacts {
        let length = artifact.fetch(maker, &folder, platform).await?;
        let path = folder.join(&artifact.path);
        if !output.is_json() {
            output.line(&format!("{}  {}", path.display(), bytes(length)))?;
        }
        files.push(json!({ "path": path, "size_bytes": length }));
    }
    if output.is_json() {
        output.line(&json!({ "id": maker.id, "folder": folder, "files": files }).to_string())?;
    }
    Ok(())
}

impl Artifact {
    fn read(artifact: &Value) -> Result<Self, CliError> {
        let name = artifact["path"].as_str().unwrap_or_default();
        let path = PathBuf::from(name);
        let is_below = !name.is_empty()
            && path
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
        if !is_below {
            return Err(CliError::UnexpectedAnswer(format!(
                "{name:?} is no path below a folder"
            )));
        }
        Ok(Self {
            segments: name.split('/').map(str::to_owned).collect(),
            path,
            size_bytes: artifact["size_bytes"].as_u64(),
            sha256: artifact["sha256"].as_str().map(str::to_owned),
        })
    }

    /// Writes the file beside its place, checks it, and moves it there. Returns its length.
    async fn fetch(
        &self,
        maker: &Maker<'_>,
        folder: &Path,
        platform: &Platform,
    ) -> Result<u64, CliError> {
        let target = folder.join(&self.path);
        let failed = |source| CliError::io(target.display().to_string(), source);
        let parent = target.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;

        let id = maker.id.to_string();
        let mut path = vec!["api", maker.collection, &id, "artifacts"];
        path.extend(self.segments.iter().map(String::as_str));
        let response = platform.send(platform.request(Method::GET, &path)?).await?;
        let mut digest = Sha256::new();
        let mut length = 0;
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| platform.unreachable(&error))?;
            file.write_all(&chunk).map_err(failed)?;
            digest.update(&chunk);
            length += chunk.len() as u64;
        }
        let sha256 = hex::encode(digest.finalize());
        if self.size_bytes.is_some_and(|size| size != length)
            || self.sha256.as_ref().is_some_and(|sum| *sum != sha256)
        {
            return Err(CliError::UnexpectedAnswer(format!(
                "{} arrived damaged",
                self.path.display()
            )));
        }
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&target).map_err(|error| failed(error.error))?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leaves_its_folder_is_refused() {
        for wrong in ["", "..", "../x", "a/../../x", "/etc/passwd", "./x"] {
            assert!(
                Artifact::read(&json!({ "path": wrong })).is_err(),
                "{wrong:?}"
            );
        }
        let artifact =
            Artifact::read(&json!({"path": "final/adapter_model.safetensors", "size_bytes": 7}))
                .unwrap();
        assert_eq!(artifact.segments, ["final", "adapter_model.safetensors"]);
    }
}
