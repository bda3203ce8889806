//! `trainyard jobs download` and its like for sessions: fetch what was made, each file checked by its length and
//! digest.

use clap::Args;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use trainyard_engine::files::digest;

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
    #[command(flatten)]
    place: Place,
    /// Fetch the files of this export instead of the result's.
    #[arg(long, value_name = "ID")]
    export: Option<u64>,
}

/// Where files are put.
#[derive(Args)]
pub struct Place {
    /// The folder to put the files in; else one of its own.
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Replace files that are there and differ.
    #[arg(long)]
    pub overwrite: bool,
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
    collection: &'a str,
    /// As in `job 3`.
    word: &'a str,
    /// What its model's name and its folder's begin with.
    model: &'a str,
    id: u64,
}

impl<'a> Maker<'a> {
    /// A job.
    pub const fn job(id: u64) -> Self {
        Self {
            collection: "jobs",
            word: "job",
            model: "job",
            id,
        }
    }

    /// A session of those that the API has under this name.
    pub const fn session(collection: &'a str, id: u64) -> Self {
        Self {
            collection,
            word: "session",
            model: "federated",
            id,
        }
    }
}

/// Fetches the files of the job's result, or of one of its exports.
pub async fn run(options: &Options, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let place = &options.place;
    match options.export {
        Some(export) => fetch_export(options.id, export, place, platform, output).await,
        None => fetch_all(&Maker::job(options.id), place, platform, output).await,
    }
}

/// Fetches the files of an export of a job.
pub async fn fetch_export(
    job: u64,
    export: u64,
    place: &Place,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let (of, number) = (job.to_string(), export.to_string());
    let shown = platform.get(&export_path(&of, &number), &[]).await?;
    if shown["files"].as_array().is_none_or(Vec::is_empty) {
        return Err(nothing_yet(&format!("export {export}"), &shown));
    }
    let own = format!("export-{export}");
    let prefix = format!("{EXPORTS}{export}/");
    let files = Files {
        maker: &Maker::job(job),
        prefix: Some(&prefix),
    };
    fetch(&files, place, &own, platform, output).await
}

/// The path of an export of a job.
pub fn export_path<'a>(job: &'a str, export: &'a str) -> [&'a str; 5] {
    ["api", "jobs", job, "exports", export]
}

/// Fetches all files that something has made, but for those of exports.
pub async fn fetch_all(
    maker: &Maker<'_>,
    place: &Place,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let own = format!("{}-{}", maker.model, maker.id);
    let files = Files {
        maker,
        prefix: None,
    };
    fetch(&files, place, &own, platform, output).await
}

/// Which files are wanted.
struct Files<'a> {
    maker: &'a Maker<'a>,
    /// Those whose paths begin so, to be put where the rest says; else all but those of exports.
    prefix: Option<&'a str>,
}

/// Fetches files, into the folder `own` where the place names none.
async fn fetch(
    wanted: &Files<'_>,
    place: &Place,
    own: &str,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let Files { maker, prefix } = *wanted;
    let folder = place.output.as_deref().unwrap_or(Path::new(own));
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
    // Nothing is fetched where something would be lost.
    let mut are_there = Vec::new();
    for artifact in &artifacts {
        are_there.push(artifact.is_there(folder, place)?);
    }
    let mut files = Vec::new();
    for (artifact, is_there) in artifacts.iter().zip(are_there) {
        let path = folder.join(&artifact.path);
        let (length, remark) = match is_there {
            Some(length) => (length, " (was there)"),
            None => (artifact.fetch(maker, folder, platform).await?, ""),
        };
        if !output.is_json() {
            output.line(&format!("{}  {}{remark}", path.display(), bytes(length)))?;
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

    /// The length of the file where it is in its place already.
    ///
    /// # Errors
    /// Where another one is, which is not to be replaced.
    fn is_there(&self, folder: &Path, place: &Place) -> Result<Option<u64>, CliError> {
        let target = folder.join(&self.path);
        let failed = |source| CliError::io(target.display().to_string(), source);
        if !target.try_exists().map_err(failed)? {
            return Ok(None);
        }
        let (length, sha256) = digest(&target).map_err(failed)?;
        if self.sha256 == Some(sha256) {
            return Ok(Some(length));
        }
        match place.overwrite {
            true => Ok(None),
            false => Err(CliError::Input(format!(
                "{} is there already, and is another file: give --overwrite, or another folder with --output",
                target.display()
            ))),
        }
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
    fn a_file_that_is_there_is_kept_and_another_one_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let artifact = Artifact::read_below(
            &json!({"path": "a", "size_bytes": 5, "sha256": hex::encode(Sha256::digest(b"hello"))}),
            "",
        )
        .unwrap();
        let place = |overwrite| Place {
            output: None,
            overwrite,
        };
        let there = |overwrite| artifact.is_there(folder.path(), &place(overwrite));
        assert_eq!(there(false).unwrap(), None);
        std::fs::write(folder.path().join("a"), "hello").unwrap();
        assert_eq!(there(false).unwrap(), Some(5));
        std::fs::write(folder.path().join("a"), "other").unwrap();
        let refused = there(false).unwrap_err().to_string();
        assert!(refused.contains("--overwrite"), "{refused}");
        assert_eq!(there(true).unwrap(), None);
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
