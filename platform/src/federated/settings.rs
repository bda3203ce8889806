//! What a session of workers is made with, as it is stored beside what all sessions have.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trainyard_shared::ids::{DatasetId, WorkerId};
use trainyard_shared::message::Privacy;
use trainyard_shared::training::{FieldProblem, LocalConfig};

use super::state;
use super::state::masking;
use crate::database::{DatabaseError, from_json_text};
use crate::rounds::store::SessionRow;

/// A stage of secure aggregation takes a quarter of the round timeout at first, and no longer than this.
const LONGEST_FIRST_STAGE: Duration = Duration::from_secs(600);

/// The settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// One data set that is cut into shards, or one for each shard.
    pub dataset_ids: Vec<DatasetId>,
    /// Parts of the data.
    pub shards: u64,
    /// What to train with: fields of a job's config.
    pub config: Map<String, Value>,
    /// Optimizer steps of a round.
    pub local_steps: u64,
    /// Whether AdamW's moments are kept from round to round.
    pub keep_optimizer: bool,
    /// A round needs so many results.
    pub min_workers: u64,
    /// So many workers take part at most.
    pub max_workers: u64,
    /// A round's longest time, in seconds.
    pub round_timeout_seconds: f64,
    /// How many median absolute deviations beyond the median of past times a round's deadline lies.
    pub deadline_deviations: f64,
    /// The only workers that may take part, where some are named.
    pub worker_ids: Option<Vec<WorkerId>>,
    /// Seed of the first adapter.
    pub seed: u64,
    /// What workers do to their results before they send them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Privacy>,
}

impl Settings {
    /// Those of a session.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(row: &SessionRow) -> Result<Self, DatabaseError> {
        from_json_text(&row.settings)
    }

    /// The config as workers get it.
    pub fn local_config(&self) -> Map<String, Value> {
        let mut config = self.config.clone();
        config.insert("local_steps".to_owned(), self.local_steps.into());
        config.insert("keep_optimizer".to_owned(), self.keep_optimizer.into());
        config
    }

    /// The same, read.
    ///
    /// # Errors
    /// What does not fit.
    pub fn parsed_config(&self) -> Result<LocalConfig, Vec<FieldProblem>> {
        LocalConfig::parse(&self.local_config())
    }

    /// The data set of a shard, and which part of it that is: index and number of parts.
    pub fn part(&self, shard: u64) -> (DatasetId, u64, u64) {
        match self.dataset_ids.as_slice() {
            [only] => (*only, shard, self.shards),
            many => {
                let index = usize::try_from(shard).unwrap_or(0) % many.len().max(1);
                (many[index], 0, 1)
            }
        }
    }

    /// Rows of a shard, where its data set has so many.
    pub fn shard_rows(&self, shard: u64, dataset_rows: u64) -> u64 {
        let (_, index, of) = self.part(shard);
        dataset_rows.saturating_sub(index).div_ceil(of.max(1))
    }

    /// How results become a sum that alone can be read; none where they are seen one by one.
    pub fn masking_rules(&self) -> Option<masking::Rules> {
        let secure = self.privacy.as_ref()?.secure_aggregation.as_ref()?;
        let longest_stage = self.round_timeout();
        Some(masking::Rules {
            threshold: count(secure.threshold),
            at_least: count(self.min_workers),
            stage_timeout: (longest_stage / 4).min(LONGEST_FIRST_STAGE),
            longest_stage,
        })
    }

    fn round_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.round_timeout_seconds).unwrap_or(Duration::MAX)
    }

    /// Whether workers say how well they have learnt.
    pub fn tells_loss(&self) -> bool {
        let privacy = self.privacy.as_ref();
        privacy.is_none_or(|privacy| privacy.differential_privacy.is_none())
    }

    /// What decides about the workers.
    pub fn of_state(&self) -> state::Settings {
        state::Settings {
            shards: self.shards,
            min_workers: count(self.min_workers),
            max_workers: count(self.max_workers),
            round_timeout: self.round_timeout(),
            deadline_deviations: self.deadline_deviations,
            allowed: self
                .worker_ids
                .as_ref()
                .map(|workers| workers.iter().copied().collect::<BTreeSet<_>>()),
        }
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dataset_ids: &[i64], shards: u64) -> Settings {
        Settings {
            dataset_ids: dataset_ids.iter().map(|id| DatasetId(*id)).collect(),
            shards,
            config: Map::new(),
            local_steps: 5,
            keep_optimizer: true,
            min_workers: 1,
            max_workers: 2,
            round_timeout_seconds: 60.0,
            deadline_deviations: 4.0,
            worker_ids: None,
            seed: 1,
            privacy: None,
        }
    }

    #[test]
    fn one_data_set_is_cut_and_several_are_shards_as_they_are() {
        assert_eq!(settings(&[7], 4).part(3), (DatasetId(7), 3, 4));
        assert_eq!(settings(&[7, 8], 2).part(1), (DatasetId(8), 0, 1));
        let rows = |shard| settings(&[7], 4).shard_rows(shard, 10);
        assert_eq!([0, 1, 2, 3].map(rows), [3, 3, 2, 2]);
        assert_eq!(settings(&[7, 8], 2).shard_rows(1, 10), 10);
    }

    #[test]
    fn a_worker_s_config_says_how_many_steps_a_round_has() {
        let parsed = settings(&[7], 1).parsed_config().unwrap();
        assert_eq!((parsed.local_steps, parsed.keep_optimizer), (5, true));
    }
}
