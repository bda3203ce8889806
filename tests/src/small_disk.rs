//! A small file system of a test's own, to be filled up.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A file system in memory. It is unmounted when this value is dropped.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// A file system of so many MiB; none where this machine does not let its user mount one. What happens
    /// there is tested with failing writers beside the code that writes.
    ///
    /// # Panics
    ///
    /// Where there is none and `CI` is set: then nothing may be left out.
    pub fn mount(size_mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        let is_mounted = mounted.is_ok_and(|status| status.success());
        assert!(
            is_mounted || std::env::var_os("CI").is_none(),
            "a tmpfs cannot be mounted here, and CI leaves nothing out"
        );
        is_mounted.then_some(Self { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills all of it but so many bytes. Call [`SmallDisk::empty`] to make room again.
    pub fn fill(&self, left_bytes: u64) {
        let mut filler = File::create(self.filler()).expect("a file can be made");
        let block = vec![0; 64 * 1024];
        // Ends with the error that says that the disk is full.
        while filler.write_all(&block).is_ok() {}
        let length = filler.metadata().expect("an open file has a length").len();
        filler
            .set_len(length.saturating_sub(left_bytes))
            .expect("a file can be made shorter");
    }

    /// Undoes [`SmallDisk::fill`].
    pub fn empty(&self) {
        fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is just ending may still have files open.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.path().display());
        }
    }
}
