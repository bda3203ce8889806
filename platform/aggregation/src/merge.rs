//! Merges the results of a round into the next global adapter:
//!
//! 1. Results that went too far beside the others are left out ([`crate::outliers`]).
//! 2. The rest is combined by the [`Rule`], piece by piece over all files.
//! 3. Where that would give a value that is not finite, the result with the largest change is left out too and 2 is
//!    repeated. Where none is left, the adapter stays as it is: a round always ends with one that can be used.
//! 4. The new adapter (and the velocity) is written aside while its SHA-256 is taken, synced and renamed.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trainyard_engine::export::FloatType;
use trainyard_engine::files::{Access, AsideFile, HashingWriter};
use trainyard_engine::weights::SafetensorsFile;

use crate::combination::Combination;
use crate::outer_step::{OuterStep, outer_step};
use crate::pieces::{Piece, Stored};
use crate::rows::{are_finite, round, squared_distance};
use crate::sweep::sweep;
use crate::{AggregationError, GlobalAdapter, Rule, outliers};

/// A result that was checked.
#[derive(Debug, Clone)]
pub struct Update {
    /// The participant's name, which is the place of its values in all sums.
    pub name: String,
    /// The file that was uploaded.
    pub path: PathBuf,
    /// How much it counts where results are weighted: the examples that it was trained on.
    pub weight: u64,
    /// How far it went, as the check found.
    pub delta_norm: f64,
}

/// What is merged, and how.
#[derive(Debug, Clone, Copy)]
pub struct Merge<'a> {
    /// The adapter that the round began with.
    pub global: &'a GlobalAdapter,
    /// The velocity that the last round left; `None` where none has: it is 0 then. Only [`Rule::Nesterov`] has one.
    pub velocity: Option<&'a Path>,
    /// The results, in any order.
    pub updates: &'a [Update],
    /// How they are merged.
    pub rule: Rule,
    /// Outer learning rate of [`Rule::Nesterov`].
    pub outer_lr: f32,
    /// Outer momentum of [`Rule::Nesterov`].
    pub outer_momentum: f32,
    /// Threads to work on; 0 for as many as there are processors.
    pub threads: usize,
}

/// A round's outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// SHA-256 of the new adapter's file, in hexadecimal.
    pub sha256: String,
    /// Length of that file.
    pub size_bytes: u64,
    /// The participants whose results were merged, by name.
    pub kept: Vec<String>,
    /// Those whose results were left out, in the order of that.
    pub eliminated: Vec<Eliminated>,
    /// Whose result the new adapter is, with [`Rule::Krum`].
    pub chosen: Option<String>,
    /// L2 norm of what the new adapter differs from the one before it by.
    pub update_norm: f64,
}

/// A result that was left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Eliminated {
    /// The participant.
    pub name: String,
    /// Why.
    pub why: Elimination,
}

/// Why a result was left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elimination {
    /// It went much further than the others.
    Outlier {
        /// How far.
        delta_norm: f64,
        /// How far it might have gone: five times the median.
        limit: f64,
    },
    /// With it the new adapter would not have been finite.
    NotFinite,
}

impl fmt::Display for Elimination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outlier { delta_norm, limit } => write!(
                f,
                "its change has norm {delta_norm:.6e}, above {limit:.6e}, five times the median"
            ),
            Self::NotFinite => f.write_str("with it the merged adapter would not be finite"),
        }
    }
}

/// Merges a round's results into `out`; [`Rule::Nesterov`] writes its velocity into `velocity_out`, other rules leave that
/// alone. Both are whole or not there, and the velocity is there first.
///
/// # Errors
/// [`AggregationError::NoUpdates`], [`AggregationError::TwoUpdates`]; [`AggregationError::Changed`] where a result is not
/// what was checked, [`AggregationError::Unreadable`] where it cannot be read; [`AggregationError::Unusable`] where the
/// velocity does not belong to the adapter; [`AggregationError::Io`]; [`AggregationError::Stopped`] once `is_stopped`
/// says so, which is asked before each piece. Neither file is touched then.
pub fn merge(
    merge: &Merge<'_>,
    out: &Path,
    velocity_out: &Path,
    is_stopped: IsStopped<'_>,
) -> Result<Merged, AggregationError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(merge.threads);
    pool.build()?
        .install(|| Merging::new(merge, is_stopped)?.run(out, velocity_out))
}

/// Says whether the outcome is not wanted any more.
pub type IsStopped<'a> = &'a (dyn Fn() -> bool + Sync);

/// Files that are kept open; where there are more, all are opened for each reading.
const MOST_OPEN_FILES: usize = 256;

/// A participant's result.
pub(crate) struct Participant<'a> {
    /// What was said of it.
    pub update: &'a Update,
    /// Its file.
    stored: Stored,
}

impl Participant<'_> {
    /// Reads a piece of its file.
    pub fn read(
        &self,
        piece: &Piece,
        values: &mut [f32],
        halves: &mut [u16],
    ) -> Result<(), AggregationError> {
        let read = self.stored.read(piece, values, halves);
        read.map_err(|error| error.of_result(&self.update.name))
    }
}

/// A merge on its way.
struct Merging<'a> {
    merge: &'a Merge<'a>,
    is_stopped: IsStopped<'a>,
    velocity: Option<Stored>,
    /// Who takes part, by name.
    kept: Vec<Participant<'a>>,
    eliminated: Vec<Eliminated>,
}

/// Why a pass did not come to its end.
enum Halt {
    NotFinite,
    Failed(AggregationError),
}

impl From<AggregationError> for Halt {
    fn from(error: AggregationError) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Merging<'a> {
    fn new(merge: &'a Merge<'a>, is_stopped: IsStopped<'a>) -> Result<Self, AggregationError> {
        let mut updates: Vec<&Update> = merge.updates.iter().collect();
        updates.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(two) = updates.windows(2).find(|two| two[0].name == two[1].name) {
            return Err(AggregationError::TwoUpdates(two[0].name.clone()));
        }
        let norms: Vec<f64> = updates.iter().map(|update| update.delta_norm).collect();
        let limit = outliers::limit(&norms).unwrap_or(f64::INFINITY);
        let (outliers, updates): (Vec<&Update>, Vec<&Update>) =
            updates.iter().partition(|update| update.delta_norm > limit);
        if updates.is_empty() {
            return Err(AggregationError::NoUpdates);
        }
        let eliminated = outliers.iter().map(|update| Eliminated {
            name: update.name.clone(),
            why: Elimination::Outlier {
                delta_norm: update.delta_norm,
                limit,
            },
        });
        let stay_open = updates.len() <= MOST_OPEN_FILES;
        let open = |update: &'a Update| {
            let opened = merge.global.open_update(&update.path);
            let opened = opened.map_err(|error| error.of_result(&update.name))?;
            let stored = opened.map_err(|refusal| AggregationError::Changed {
                name: update.name.clone(),
                refusal,
            })?;
            let stored = if stay_open { stored } else { stored.closed() };
            Ok(Participant { update, stored })
        };
        Ok(Self {
            merge,
            is_stopped,
            velocity: open_velocity(merge)?,
            kept: updates
                .into_par_iter()
                .map(open)
                .collect::<Result<_, AggregationError>>()?,
            eliminated: eliminated.collect(),
        })
    }

    fn run(mut self, out: &Path, velocity_out: &Path) -> Result<Merged, AggregationError> {
        loop {
            match self.pass(out, velocity_out) {
                Ok(merged) => return Ok(merged),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::NotFinite) => self.eliminate_largest()?,
            }
        }
    }

    fn eliminate_largest(&mut self) -> Result<(), AggregationError> {
        let norm = |place: &usize| self.kept[*place].update.delta_norm;
        let largest = (0..self.kept.len()).max_by(|a, b| norm(a).total_cmp(&norm(b)));
        let Some(largest) = largest else {
            let message = "it holds values that are not finite";
            return Err(AggregationError::unusable(
                self.merge.global.path(),
                message,
            ));
        };
        let name = self.kept.remove(largest).update.name.clone();
        let why = Elimination::NotFinite;
        self.eliminated.push(Eliminated { name, why });
        Ok(())
    }

    /// Combines those who take part and writes the outcome.
    fn pass(&self, out: &Path, velocity_out: &Path) -> Result<Merged, Halt> {
        let global = self.merge.global;
        let combination = Combination::new(self.merge.rule, &self.kept, global, self.is_stopped)?;
        let pieces = Piece::all(global.layout(), combination.piece_values());
        let failed = |error| AggregationError::io("write", out, error);
        let velocity_failed = |error| AggregationError::io("write", velocity_out, error);
        let aside = AsideFile::create(out, Access::Default).map_err(failed)?;
        let mut weights = HashingWriter::new(aside);
        weights.write_all(global.header()).map_err(failed)?;
        let mut velocity = None;
        if self.merge.rule == Rule::Nesterov {
            let aside = AsideFile::create(velocity_out, Access::Default);
            let mut aside = aside.map_err(velocity_failed)?;
            let header = global.layout().with_type(FloatType::F32).header();
            aside.write_all(&header).map_err(velocity_failed)?;
            velocity = Some(aside);
        }
        let mut squared_change = 0.0;
        sweep(
            &pieces,
            combination.workspace_bytes(),
            |workspace: &mut Workspace, piece| self.compute(&combination, piece, workspace),
            |workspace| {
                squared_change += workspace.squared_change;
                weights
                    .write_all(workspace.weight_bytes())
                    .map_err(failed)?;
                if let Some(velocity) = &mut velocity {
                    let bytes = bytemuck::cast_slice(&workspace.velocity);
                    velocity.write_all(bytes).map_err(velocity_failed)?;
                }
                Ok::<(), Halt>(())
            },
        )?;
        if let Some(velocity) = velocity {
            velocity.put_in_place().map_err(velocity_failed)?;
        }
        let size_bytes = weights.size_bytes();
        let (weights, sha256) = weights.finish();
        weights.put_in_place().map_err(failed)?;
        let name = |one: &Participant<'_>| one.update.name.clone();
        Ok(Merged {
            sha256: hex::encode(sha256),
            size_bytes,
            kept: self.kept.iter().map(name).collect(),
            eliminated: self.eliminated.clone(),
            chosen: combination.chosen().map(name),
            update_norm: squared_change.sqrt(),
        })
    }

    fn compute(
        &self,
        combination: &Combination<'_>,
        piece: &Piece,
        workspace: &mut Workspace,
    ) -> Result<(), Halt> {
        if (self.is_stopped)() {
            return Err(AggregationError::Stopped.into());
        }
        workspace.resize(piece);
        let Workspace {
            before,
            after,
            velocity,
            halves,
            ..
        } = workspace;
        self.merge.global.stored().read(piece, before, halves)?;
        let is_outer_step = self.merge.rule == Rule::Nesterov;
        match &self.velocity {
            Some(stored) if is_outer_step => stored.read_f32(piece, velocity)?,
            _ => velocity.fill(0.0),
        }
        if self.kept.is_empty() {
            after.copy_from_slice(before);
        } else {
            combination.combine(
                piece,
                after,
                &mut workspace.sums,
                &mut workspace.rows,
                halves,
            )?;
            if is_outer_step {
                let step = OuterStep {
                    lr: self.merge.outer_lr,
                    momentum: self.merge.outer_momentum,
                };
                outer_step(after, velocity, before, step);
            }
        }
        round(after, halves, piece.float_type);
        if !are_finite(after) || !are_finite(velocity) {
            return Err(Halt::NotFinite);
        }
        workspace.squared_change = squared_distance(after, before);
        workspace.float_type = Some(piece.float_type);
        Ok(())
    }
}

fn open_velocity(merge: &Merge<'_>) -> Result<Option<Stored>, AggregationError> {
    let Some(path) = merge.velocity.filter(|_| merge.rule == Rule::Nesterov) else {
        return Ok(None);
    };
    let file = SafetensorsFile::open(path)?;
    let layout = merge.global.layout().with_type(FloatType::F32);
    let places = layout.places_in(&file);
    let places = places.map_err(|wrong| AggregationError::unusable(path, wrong.to_string()))?;
    let handle = std::fs::File::open(path);
    let handle = handle.map_err(|error| AggregationError::io("read", path, error))?;
    Ok(Some(Stored::opened(path, handle, places)))
}

/// What one piece is computed in; all are `[values]` but `rows`, `[participants, values]` where all are needed at once.
#[derive(Default)]
struct Workspace {
    before: Vec<f32>,
    after: Vec<f32>,
    velocity: Vec<f32>,
    sums: Vec<f64>,
    rows: Vec<f32>,
    halves: Vec<u16>,
    float_type: Option<FloatType>,
    squared_change: f64,
}

impl Workspace {
    fn resize(&mut self, piece: &Piece) {
        let values = piece.values;
        self.before.resize(values, 0.0);
        self.after.resize(values, 0.0);
        self.velocity.resize(values, 0.0);
        self.sums.resize(values, 0.0);
        self.halves.resize(values, 0);
    }

    /// The new values as they stand in the file.
    fn weight_bytes(&self) -> &[u8] {
        match self.float_type {
            Some(FloatType::F16 | FloatType::Bf16) => bytemuck::cast_slice(&self.halves),
            _ => bytemuck::cast_slice(&self.after),
        }
    }
}
