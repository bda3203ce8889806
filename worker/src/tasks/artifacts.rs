//! The files of a folder that is to be stored: their keys, lengths and digests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use trainyard_shared::FailureKind;
use trainyard_shared::message::ArtifactFile;

use super::failure::Failure;
use crate::files::digest;

/// Describes every file below `folder` as it will be stored under `prefix` (which ends with a slash).
///
/// # Errors
///
/// A file cannot be read.
pub(super) fn described(
    folder: &Path,
    prefix: &str,
) -> Result<Vec<(ArtifactFile, PathBuf)>, Failure> {
    describe_folder(folder, prefix).map_err(|error| {
        let text = format!("cannot read {}: {error}", folder.display());
        Failure::new(FailureKind::Storage, text)
    })
}

fn describe_folder(folder: &Path, prefix: &str) -> io::Result<Vec<(ArtifactFile, PathBuf)>> {
    let mut paths = Vec::new();
    list(folder, "", &mut paths)?;
    paths.sort();
    paths
        .into_iter()
        .map(|(name, path)| {
            let (size_bytes, sha256) = digest(&path)?;
            let artifact = ArtifactFile {
                key: format!("{prefix}{name}"),
                size_bytes,
                sha256,
            };
            Ok((artifact, path))
        })
        .collect()
}

fn list(folder: &Path, prefix: &str, paths: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| {
            let text = format!("{} is no name that can be stored", name.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), &format!("{prefix}{name}/"), paths)?;
        } else if kind.is_file() {
            paths.push((format!("{prefix}{name}"), entry.path()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_folder_is_described_in_order() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::write(folder.path().join("state/optimizer"), b"moments").unwrap();
        fs::write(folder.path().join("adapter"), b"abc").unwrap();
        let files = describe_folder(folder.path(), "checkpoints/job-1/step-5/").unwrap();
        let keys: Vec<&str> = files.iter().map(|(file, _)| file.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "checkpoints/job-1/step-5/adapter",
                "checkpoints/job-1/step-5/state/optimizer"
            ]
        );
        let (first, path) = &files[0];
        assert_eq!(first.size_bytes, 3);
        assert_eq!(
            first.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(fs::read(path).unwrap(), b"abc");
    }
}
