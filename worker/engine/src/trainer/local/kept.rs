//! AdamW's moments, kept from one round to the next.
//!
//! Those after round `r` are in a folder `round-r`. A round goes on from the newest earlier one, so a round that is
//! trained once more begins as it did the first time; the two newest are kept for that. Each says of which session it is,
//! since behind the same address there may be another session of the same shape.

use std::fs;
use std::path::PathBuf;

use super::MomentsPlace;
use crate::EngineError;
use crate::checkpoint::{self, Manifest, OPTIMIZER, TrainerState};
use crate::model::Parameter;
use crate::optimizer::Optimizer;

const PREFIX: &str = "round-";
/// The file that says of which session they are.
const SESSION: &str = "session";
/// So many rounds' moments are kept.
const KEPT: usize = 2;

/// The folder where moments are kept.
pub(super) struct KeptOptimizer<'a>(MomentsPlace<'a>);

/// The moments after a round.
pub(super) struct Kept {
    folder: PathBuf,
    pub(super) state: TrainerState,
}

impl Kept {
    /// The file with the moments.
    pub(super) fn moments(&self) -> PathBuf {
        self.folder.join(OPTIMIZER)
    }
}

impl<'a> KeptOptimizer<'a> {
    /// Those at `place`.
    pub(super) fn new(place: MomentsPlace<'a>) -> Self {
        Self(place)
    }

    /// The newest of before `round`, if any is kept. One that is damaged or of another session is as if it were not
    /// there.
    pub(super) fn before(&self, round: u64) -> Result<Option<Kept>, EngineError> {
        for (_, folder) in self.rounds()?.into_iter().rev().filter(|(r, _)| *r < round) {
            let of = fs::read(folder.join(SESSION)).unwrap_or_default();
            if of != self.0.session.as_bytes() {
                tracing::info!(folder = %folder.display(), "an optimizer's kept state is of another session and not used");
                continue;
            }
            let opened = Manifest::check(&folder).and_then(|_| TrainerState::read(&folder));
            match opened {
                Ok(state) => return Ok(Some(Kept { folder, state })),
                Err(error) => {
                    tracing::warn!(%error, "an optimizer's kept state is damaged and not used");
                }
            }
        }
        Ok(None)
    }

    /// Keeps the moments after `round`.
    pub(super) fn save(
        &self,
        round: u64,
        optimizer: &Optimizer,
        parameters: &[Parameter<'_>],
        state: &TrainerState,
    ) -> Result<(), EngineError> {
        checkpoint::write_folder(self.0.folder, &format!("{PREFIX}{round}"), |folder| {
            optimizer.save(&folder.join(OPTIMIZER), parameters)?;
            let path = folder.join(SESSION);
            fs::write(&path, self.0.session)
                .map_err(|error| EngineError::io("write", path, error))?;
            state.write(folder)
        })?;
        // Those of later rounds are of a session that was set back.
        let (later, kept): (Vec<_>, Vec<_>) =
            self.rounds()?.into_iter().partition(|(r, _)| *r > round);
        let old = kept.into_iter().rev().skip(KEPT);
        for (_, folder) in later.into_iter().chain(old) {
            fs::remove_dir_all(&folder)
                .map_err(|error| EngineError::io("remove", folder, error))?;
        }
        Ok(())
    }

    /// The kept rounds in rising order.
    fn rounds(&self) -> Result<Vec<(u64, PathBuf)>, EngineError> {
        let folder = self.0.folder;
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(EngineError::io("read", folder, error)),
        };
        let round = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let round = name.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
            Some((round, entry.path()))
        };
        let mut rounds: Vec<_> = entries.flatten().filter_map(round).collect();
        rounds.sort_unstable();
        Ok(rounds)
    }
}
