//! Tokenised data sets on disk: made once, used by every run that needs the same, thrown away when room is needed.
//!
//! A file's name is the digest of everything that its tokens depend on. It is written aside and renamed when it is
//! whole, so several processes may make the same one at once: each reads a whole file, whoever renames last. An open
//! file is locked, and locked files are not deleted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::DatasetReport;
use super::Examples;
use super::token_file::{Header, TokenFile, TokenWriter};
use crate::EngineError;

/// Bytes that cached data sets may take up together where nothing else is said.
pub const DEFAULT_CACHE_BYTES: u64 = 20 << 30;

const ENDING: &str = "tokens";
const BUILDING: &str = ".building-";
/// What a process left that ended while it was building is deleted after this.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A folder of tokenised data sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenCache {
    folder: PathBuf,
    max_bytes: u64,
}

impl TokenCache {
    /// The cache in `folder`, which is made when it is needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            max_bytes: DEFAULT_CACHE_BYTES,
        }
    }

    /// The same with a limit of its own: when its files are larger together, those that were not used for longest are
    /// deleted, but for those that are in use.
    pub fn with_limit(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// The rows that `key` stands for, from the cache or else by `build`, which gives none when it was stopped.
    pub(super) fn get(
        &self,
        key: &str,
        build: impl FnOnce(&mut TokenWriter) -> Result<DatasetReport, EngineError>,
    ) -> Result<(Examples, DatasetReport), EngineError> {
        let path = self.path(key);
        if let Some(found) = self.open(&path, key) {
            return Ok(found);
        }
        let failed = |action| {
            let folder = self.folder.clone();
            move |error| EngineError::io(action, folder, error)
        };
        fs::create_dir_all(&self.folder).map_err(failed("create"))?;
        self.delete_abandoned();
        let temporary = tempfile::Builder::new()
            .prefix(BUILDING)
            .tempfile_in(&self.folder)
            .map_err(failed("write in"))?;
        let report = self.build(&temporary, key, build)?;
        let file = temporary.reopen().map_err(failed("read in"))?;
        let (tokens, _) = TokenFile::open(file).map_err(failed("read in"))?;
        temporary
            .persist(&path)
            .map_err(|error| EngineError::io("rename to", &path, error.error))?;
        self.make_room();
        Ok((tokens.into(), report))
    }

    fn build(
        &self,
        temporary: &NamedTempFile,
        key: &str,
        build: impl FnOnce(&mut TokenWriter) -> Result<DatasetReport, EngineError>,
    ) -> Result<DatasetReport, EngineError> {
        let failed = |error| EngineError::io("write in", &self.folder, error);
        let file = temporary.reopen().map_err(failed)?;
        let ends = tempfile::tempfile_in(&self.folder).map_err(failed)?;
        let mut writer = TokenWriter::new(file, ends);
        let report = build(&mut writer)?;
        let header = Header {
            key: key.to_owned(),
            report: report.clone(),
        };
        writer.finish(&header).map_err(failed)?;
        Ok(report)
    }

    /// A whole file for `key`; a damaged one is deleted.
    fn open(&self, path: &Path, key: &str) -> Option<(Examples, DatasetReport)> {
        let file = File::open(path).ok()?;
        // By this the file counts as used.
        let _ = file.set_modified(SystemTime::now());
        match TokenFile::open(file) {
            Ok((tokens, header)) if header.key == key => Some((tokens.into(), header.report)),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "a tokenised data set is damaged and is made anew");
                let _ = fs::remove_file(path);
                None
            }
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        let digest = hex::encode(Sha256::digest(key));
        self.folder.join(format!("{digest}.{ENDING}"))
    }

    /// Deletes what was not used for longest until the rest keeps to the limit. What cannot be deleted stays.
    fn make_room(&self) {
        let is_cached = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING);
        let mut files: Vec<_> = self.files(is_cached).collect();
        files.sort_by_key(|(_, metadata)| metadata.modified().ok());
        let mut bytes: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
        for (path, metadata) in files {
            if bytes > self.max_bytes && delete_unused(&path) {
                bytes -= metadata.len();
            }
        }
    }

    fn delete_abandoned(&self) {
        let is_begun = |path: &Path| {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with(BUILDING))
        };
        for (path, metadata) in self.files(is_begun) {
            let age = metadata
                .modified()
                .and_then(|time| time.elapsed().map_err(io::Error::other));
            if age.is_ok_and(|age| age > ABANDONED_AFTER) {
                delete_unused(&path);
            }
        }
    }

    fn files(
        &self,
        is_meant: impl Fn(&Path) -> bool,
    ) -> impl Iterator<Item = (PathBuf, fs::Metadata)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let path = entry.path();
            let metadata = entry.metadata().ok()?;
            (is_meant(&path) && metadata.is_file()).then_some((path, metadata))
        })
    }
}

/// Deletes a file that nobody has open.
fn delete_unused(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Example;
    use crate::data::token_file::RowSink;

    fn cache() -> (tempfile::TempDir, TokenCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = TokenCache::new(folder.path().join("tokens"));
        (folder, cache)
    }

    fn get(cache: &TokenCache, key: &str, made: &mut u32) -> Examples {
        let build = |writer: &mut TokenWriter| {
            *made += 1;
            writer
                .push(&Example {
                    ids: vec![1; 1000],
                    trained: vec![true; 1000],
                    truncated: false,
                })
                .unwrap();
            Ok(DatasetReport {
                examples: 1,
                ..DatasetReport::default()
            })
        };
        let (examples, report) = cache.get(key, build).unwrap();
        assert_eq!((examples.len(), report.examples), (1, 1));
        examples
    }

    fn names(cache: &TokenCache) -> Vec<String> {
        let entries = fs::read_dir(&cache.folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn rows_are_made_once_for_a_key() {
        let ((_folder, cache), mut made) = (cache(), 0);
        for key in ["a", "a", "b", "a"] {
            assert_eq!(get(&cache, key, &mut made).batch(&[0]).tokens(), 999);
        }
        assert_eq!((made, names(&cache).len()), (2, 2));
    }

    #[test]
    fn a_damaged_file_is_made_anew() {
        let ((_folder, cache), mut made) = (cache(), 0);
        get(&cache, "a", &mut made);
        let path = cache.path("a");
        let mut bytes = fs::read(&path).unwrap();
        bytes[1234] ^= 1;
        fs::write(&path, bytes).unwrap();
        get(&cache, "a", &mut made);
        get(&cache, "a", &mut made);
        assert_eq!(made, 2);
        fs::write(&path, b"").unwrap();
        get(&cache, "a", &mut made);
        assert_eq!(made, 3);
    }

    #[test]
    fn what_fails_or_is_stopped_leaves_nothing() {
        let ((_folder, cache), mut made) = (cache(), 0);
        let error = cache.get("a", |_| Err(EngineError::InvalidData("stopped".into())));
        assert!(error.is_err());
        assert_eq!(names(&cache), Vec::<String>::new());
        get(&cache, "a", &mut made);
        assert_eq!(made, 1);
    }

    #[test]
    fn the_least_recently_used_are_deleted_and_never_one_in_use() {
        let ((_folder, cache), mut made) = (cache(), 0);
        let cache = cache.with_limit(10_000);
        let long_ago = |key: &str, hours: u64| {
            let time = SystemTime::now() - Duration::from_secs(hours * 3600);
            File::open(cache.path(key))
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        let in_use = get(&cache, "a", &mut made);
        get(&cache, "b", &mut made);
        long_ago("a", 3);
        long_ago("b", 2);
        get(&cache, "c", &mut made);
        assert!(cache.path("a").exists() && cache.path("c").exists());
        assert!(!cache.path("b").exists(), "the oldest that nobody uses");
        drop(in_use);
        get(&cache, "d", &mut made);
        assert!(!cache.path("a").exists());
        assert!(cache.path("c").exists() && cache.path("d").exists());
    }

    #[test]
    fn one_file_may_be_made_by_several_at_once() {
        let (_folder, cache) = cache();
        let starts = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    starts.wait();
                    let mut made = 0;
                    assert_eq!(get(&cache, "a", &mut made).batch(&[0]).tokens(), 999);
                });
            }
        });
        assert_eq!(names(&cache).len(), 1);
    }

    #[test]
    fn what_an_ended_process_left_is_deleted_after_a_day() {
        let ((_folder, cache), mut made) = (cache(), 0);
        get(&cache, "a", &mut made);
        let (old, new) = (
            cache.folder.join(".building-old"),
            cache.folder.join(".building-new"),
        );
        fs::write(&old, b"").unwrap();
        fs::write(&new, b"").unwrap();
        let before = SystemTime::now() - ABANDONED_AFTER - Duration::from_secs(60);
        File::open(&old).unwrap().set_modified(before).unwrap();
        get(&cache, "b", &mut made);
        assert!(!old.exists() && new.exists());
    }
}
