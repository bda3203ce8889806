//! The session's state: the open round, its results, the weights.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::files::{self, File};
use super::{Fault, Settings};

/// How often something is asked for before the weights are there, with [`Fault::TornSwap`].
const TORN_FOR: u32 = 3;

/// The state.
pub struct Rounds {
    /// The open round; all rounds once the session has ended.
    pub round: u64,
    /// The global adapter of the open round.
    pub weights: File,
    /// The one before.
    pub earlier: File,
    /// The one at the beginning.
    pub first: File,
    /// Results of the open round by worker; a worker has two names where its second one counts.
    pub results: BTreeMap<String, Vec<u8>>,
    /// Digests of what was taken, by round and worker.
    pub taken: HashMap<(u64, String), String>,
    /// Who had a result refused, with [`Fault::OneTry`].
    pub refused: Vec<(u64, String)>,
    /// Shards by worker.
    pub shards: HashMap<String, usize>,
    /// How many tasks were asked for.
    pub asked: usize,
    opened: Instant,
    torn: u32,
}

impl Rounds {
    /// The first round, open.
    pub fn begin() -> Self {
        let weights = files::first_adapter();
        Self {
            round: 0,
            earlier: weights.clone(),
            first: weights.clone(),
            weights,
            results: BTreeMap::new(),
            taken: HashMap::new(),
            refused: Vec::new(),
            shards: HashMap::new(),
            asked: 0,
            opened: Instant::now(),
            torn: 0,
        }
    }

    /// Whether the weights are missing behind their round; not for long.
    pub fn is_torn(&mut self) -> bool {
        let is_torn = self.torn > 0;
        self.torn = self.torn.saturating_sub(1);
        is_torn
    }

    /// Counts a result and closes the round where it was the last one missing.
    pub fn take(&mut self, name: String, result: Vec<u8>, settings: &Settings, fault: Fault) {
        self.results.insert(name, result);
        if fault == Fault::WeightsDrift && self.results.len() < settings.enough {
            self.weights = files::nudged(&self.weights);
        }
        if self.results.len() >= settings.enough && fault != Fault::NeverCloses {
            self.close(fault);
        }
    }

    /// Closes the round where its time is over.
    pub fn close_if_late(&mut self, settings: &Settings, fault: Fault) {
        let is_late = settings
            .round_timeout
            .is_some_and(|timeout| self.opened.elapsed() >= timeout);
        let is_open = self.round < settings.total_rounds;
        if is_late && is_open && !self.results.is_empty() {
            self.close(fault);
        }
    }

    fn close(&mut self, fault: Fault) {
        let merged = files::merged(&self.weights, self.results.values(), fault);
        self.results.clear();
        self.earlier = self.weights.clone();
        if fault != Fault::WeightsNotMerged {
            self.weights = merged;
        }
        self.round += match fault {
            Fault::RoundNotRaised => 0,
            Fault::RoundSkipped => 2,
            _ => 1,
        };
        self.opened = Instant::now();
        if fault == Fault::TornSwap {
            self.torn = TORN_FOR;
        }
    }
}
