//! What a round is trained on: the coordinator's shard, fetched once, or the volunteer's own data.

use std::path::{Path, PathBuf};

use trainyard_shared::coordinator::{Mode, Task};

use super::OwnPart;
use super::client::Trouble;
use super::error::VolunteerError;
use super::local_data::{self, OwnShard};
use super::rounds::Volunteer;
use super::training::Governor;
use super::waiting::blocking;
use super::watch::Overtaken;
use crate::engine::trainer::local::Part;

impl Volunteer<'_> {
    /// The shard to train on, with the part of it.
    pub(super) async fn data(
        &mut self,
        task: &Task,
    ) -> Result<Result<(PathBuf, Option<Part>), Trouble>, VolunteerError> {
        if let Some(digest) = &task.data_sha256 {
            let path = self.session.shard(digest);
            if !self.has(&path, digest).await? {
                let fetched = self.client.shard(task, digest, &path);
                if let Err(trouble) = self.until_stopped(fetched).await? {
                    return Ok(Err(trouble));
                }
            }
            return Ok(Ok((path, None)));
        }
        let Some(own) = &self.config.data else {
            return Err(VolunteerError::Arguments(
                "the coordinator serves no data: give your own with --veri FILE".to_owned(),
            ));
        };
        let part = match own.part {
            OwnPart::Whole => None,
            OwnPart::ByTask => Some(Part {
                index: task.shard,
                count: task.shards,
            }),
        };
        let (file, folder) = (own.file.clone(), self.session.folder().to_owned());
        let (mode, digests) = (task.mode.unwrap_or(Mode::Cpt), self.digests.clone());
        let kept_bytes = self.config.limits.disk.keep_free_bytes;
        let (gate, stop, tell) = (self.gate.clone(), self.stop.clone(), self.tell.clone());
        let trainee = self.trainee.take().expect("it is there before the data");
        // Apart from this thread, on which signals are waited for.
        let (trainee, packed) = blocking(move || {
            let tell = |event| drop(tell.send(event));
            let governor = Governor::new(&gate, &stop, Overtaken::default(), &tell);
            let shard = OwnShard {
                file: &file,
                mode,
                model: &trainee.files,
                folder: &folder,
                digests: &digests,
                kept_bytes,
            };
            let packed = local_data::shard(&shard, &|| governor.ends_the_packing());
            (trainee, packed)
        })
        .await?;
        self.trainee = Some(trainee);
        match packed {
            Ok(path) => Ok(Ok((path, part))),
            Err(VolunteerError::Stopped { .. }) if !self.stop.is_set() => {
                let reason = "packing was given up while nothing might be done".to_owned();
                Ok(Err(Trouble::OtherContent(reason)))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the file at `path` is there and has this digest.
    pub(super) async fn has(&self, path: &Path, sha256: &str) -> Result<bool, VolunteerError> {
        let (path, sha256) = (path.to_owned(), sha256.to_owned());
        let digests = self.digests.clone();
        self.until_stopped(blocking(move || digests.is(&path, &sha256)))
            .await?
    }
}
