//! Files that are whole or not there at all: written aside, synced, renamed, and the folder synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

/// Who may read a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The owner alone (mode 0600): keys.
    Owner,
    /// As the process's umask says.
    Default,
}

/// Puts `content` at `path` so that a crash at any moment leaves either the old file or the new one.
///
/// The temporary file lies beside `path` (never on another file system). Errors are those of the file system;
/// `path` is then unchanged.
pub fn write_atomically(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let mut file = AsideFile::create(path, access)?;
    file.write_all(content)?;
    file.put_in_place()
}

/// How the names of files begin and end that are written aside.
const UNFINISHED: (&str, &str) = (".", ".tmp");

/// Deletes what was written aside in a folder when a process was killed; nobody may be writing there now.
pub fn delete_unfinished(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) {
            // What stays only takes up room, and is tried again the next time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file that is written aside, and gone again unless it is put in its place.
#[derive(Debug)]
pub struct AsideFile<'a> {
    file: NamedTempFile,
    path: &'a Path,
}

impl<'a> AsideFile<'a> {
    /// Begins a file that is to stand at `path`; its folder must be there.
    pub fn create(path: &'a Path, access: Access) -> io::Result<Self> {
        let mut temporary = tempfile::Builder::new();
        temporary.prefix(UNFINISHED.0).suffix(UNFINISHED.1);
        if access == Access::Default {
            allow_others_to_read(&mut temporary);
        }
        let file = temporary.tempfile_in(parent(path)?)?;
        Ok(Self { file, path })
    }

    /// Makes what was written durable, and then the name.
    pub fn put_in_place(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file
            .persist(self.path)
            .map_err(|failed| failed.error)?;
        sync_folder(parent(self.path)?)
    }
}

impl Write for AsideFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Moves a finished file or folder to its place and makes the move durable.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(parent(to)?)
}

/// Makes names in `folder` durable (a file's own sync does not cover its name).
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates `path` and its parents; the folder itself is for the owner alone (mode 0700).
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Removes a file; one that is not there is no error.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens `path` for writing from its start, created where it is not there.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

/// Makes `to` another name of the file `from`; a copy where the file system has no hard links.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Whether `text` can be a SHA-256 in hexadecimal.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A file's length and its SHA-256 in hexadecimal.
pub fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size_bytes = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((size_bytes, hex::encode(digest.finalize())));
        }
        digest.update(&buffer[..read]);
        size_bytes += read as u64;
    }
}

/// A writer that knows how much was written through it, and its SHA-256.
#[derive(Debug)]
pub struct HashingWriter<W> {
    inner: W,
    hasher: Sha256,
    size_bytes: u64,
}

impl<W: Write> HashingWriter<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
            size_bytes: 0,
        }
    }

    /// Bytes written so far.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The writer below, and the SHA-256 of what went to it.
    pub fn finish(self) -> (W, [u8; 32]) {
        (self.inner, self.hasher.finalize().into())
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A file as [`write_hashed`] leaves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its length.
    pub size_bytes: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

/// Lets `write` write a file that takes the place `path` once it is whole and on the disk, hashed on the way.
///
/// # Errors
/// Whatever `write` answers, made from the system's error where that fails; what was at `path` then stays.
pub fn write_hashed<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut HashingWriter<io::BufWriter<AsideFile<'_>>>) -> Result<(), E>,
) -> Result<WrittenFile, E> {
    let file = AsideFile::create(path, Access::Default)?;
    let mut writer = HashingWriter::new(io::BufWriter::new(file));
    write(&mut writer)?;
    let size_bytes = writer.size_bytes();
    let (inner, sha256) = writer.finish();
    let file = inner.into_inner().map_err(|failed| failed.into_error())?;
    file.put_in_place()?;
    Ok(WrittenFile {
        size_bytes,
        sha256: hex::encode(sha256),
    })
}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        Some(folder) if folder == Path::new("") => Ok(Path::new(".")),
        Some(folder) => Ok(folder),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} has no folder", path.display()),
        )),
    }
}

#[cfg(unix)]
fn allow_others_to_read(builder: &mut tempfile::Builder) {
    use std::os::unix::fs::PermissionsExt;
    // The process's umask is applied by the operating system.
    builder.permissions(fs::Permissions::from_mode(0o666));
}

#[cfg(not(unix))]
fn allow_others_to_read(_: &mut tempfile::Builder) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_atomically(&path, b"one", Access::Default).unwrap();
        write_atomically(&path, b"two", Access::Default).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_for_the_owner_has_mode_0600() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write_atomically(&path, b"secret", Access::Owner).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
