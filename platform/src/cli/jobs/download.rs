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
use crate::cli::output::{Output, bytes, cell, items, printable, remark};

/// What the paths of exports' files begin with.
const EXPORTS: &str = "exports/";

/// Options of `jobs download`.
#[derive(Args)]
pub struct Options {
    /// The job's number.
    id: u64,
    /// The folder to put the files in; else job-ID.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Fetch the files of this export instead of the result's.
    #[arg(long, value_name = "ID")]
    export: Option<u64>,
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

impl Maker<'_> {
    /// A job.
    pub const fn job(id: u64) -> Self {
        Self {
            collection: "jobs",
            word: "job",
            id,
        }
    }
}

/// Fetches the files of the job's result, or of one of its exports.
pub async fn run(options: &Options, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let folder = options.output.as_deref();
    match options.export {
        Some(export) => fetch_export(options.id, export, folder, platform, output).await,
        None => fetch_all(&Maker::job(options.id), folder, platform, output).await,
    }
}

/// Fetches the files of an export of a job.
pub async fn fetch_export(
    job: u64,
    export: u64,
    folder: Option<&Path>,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let path = [
        "api",
        "jobs",
        &job.to_string(),
        "exports",
        &export.to_string(),
    ];
    let shown = platform.get(&path, &[]).await?;
    if shown["files"].as_array().is_none_or(Vec::is_empty) {
        return Err(nothing_yet(&format!("export {export}"), &shown));
    }
    let own = format!("export-{export}");
    let folder = folder.unwrap_or(Path::new(&own));
    let prefix = format!("{EXPORTS}{export}/");
    fetch(&Maker::job(job), Some(&prefix), folder, platform, output).await
}

/// Fetches all files that something has made, but for those of exports.
pub async fn fetch_all(
    maker: &Maker<'_>,
    folder: Option<&Path>,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let own = format!("{}-{}", maker.word, maker.id);
    let folder = folder.unwrap_or(Path::new(&own));
    fetch(maker, None, folder, platform, output).await
}

/// Fetches the files whose paths begin with `prefix`, to where the rest of their paths says.
async fn fetch(
    maker: &Maker<'_>,
    prefix: Option<&str>,
    folder: &Path,
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
    let is_wanted = |artifact: &&Value| {
        let path = artifact["path"].as_str().unwrap_or_default();
        prefix.map_or(!path.starts_with(EXPORTS), |prefix| {
            path.starts_with(prefix)
        })
    };
    let artifacts = stored
        .into_iter()
        .filter(is_wanted)
        .map(|artifact| Artifact::read_below(artifact, prefix.unwrap_or_default()))
        .collect::<Result<Vec<_>, _>>()?;
    if artifacts.is_empty() {
        let shown = platform.get(&["api", maker.collection, &id], &[]).await?;
        return Err(nothing_yet(&format!("{} {id}", maker.word), &shown));
    }
    let mut files = Vec::new();
    for artifact in &artifacts {
        let length = artifact.fetch(maker, folder, platform).await?;
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

/// Why there is nothing to fetch: what makes the files has failed, or has not come to its end.
fn nothing_yet(whose: &str, shown: &Value) -> CliError {
    let status = cell(shown, "/status");
    let why = match shown["error"].as_str() {
        Some(error) => format!("{status}: {}", printable(error)),
        None => status,
    };
    CliError::Input(format!("{whose} has no files; it is {why}"))
}

impl Artifact {
    /// A file as the API lists it, to be put where its path below `prefix` says.
    fn read_below(artifact: &Value, prefix: &str) -> Result<Self, CliError> {
        let name = artifact["path"].as_str().unwrap_or_default();
        let path = PathBuf::from(name.strip_prefix(prefix).unwrap_or(name));
        let is_below = path.file_name().is_some()
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
    fn where_there_is_nothing_to_fetch_it_is_said_why() {
        let failed = json!({"status": "failed", "error": "no such model"});
        assert_eq!(
            nothing_yet("job 1", &failed).to_string(),
            "job 1 has no files; it is failed: no such model"
        );
        let queued = json!({"status": "queued", "error": null});
        assert_eq!(
            nothing_yet("export 7", &queued).to_string(),
            "export 7 has no files; it is queued"
        );
    }

    #[test]
    fn a_path_that_leaves_its_folder_is_refused() {
        for wrong in ["", "..", "../x", "a/../../x", "/etc/passwd", "./x"] {
            assert!(
                Artifact::read_below(&json!({ "path": wrong }), "").is_err(),
                "{wrong:?}"
            );
        }
        let artifact = Artifact::read_below(
            &json!({"path": "exports/7/a.gguf", "size_bytes": 7}),
            "exports/7/",
        )
        .unwrap();
        assert_eq!(artifact.segments, ["exports", "7", "a.gguf"]);
        assert_eq!(artifact.path, Path::new("a.gguf"));
    }
}
