//! What a worker does next in a federated session, given what it was told and what it has done: pure decisions.
//!
//! Only the newest round counts: an older one is never begun, and one that is under way is broken off as soon as
//! a newer one is named.

use std::sync::Arc;

use trainyard_shared::message::{
    ContinueRound, GlobalWeights, LoadAggregatedWeights, StartFederatedTraining,
};

use super::masking::{MaskWork, SumOrder};

/// Something that the platform says of a session that the worker takes part in.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Take part, from this round on; or a repeat.
    Start(Box<StartFederatedTraining>),
    /// Load the weights of this round.
    Load(LoadAggregatedWeights),
    /// Train this round.
    Continue(ContinueRound),
    /// Take part in the sum of a round's results.
    OfSum(SumOrder),
}

impl Order {
    /// The round that it is about.
    pub fn round(&self) -> u64 {
        match self {
            Self::Start(start) => start.data.round,
            Self::Load(load) => load.data.round,
            Self::Continue(next) => next.data.round,
            Self::OfSum(order) => order.place().0,
        }
    }
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Fetch the weights that begin this round.
    Fetch { round: u64, weights: GlobalWeights },
    /// Train this round from weights with that digest; its result is stored under that key.
    Train {
        round: u64,
        key: String,
        sha256: String,
    },
    /// Mask the result of this round.
    Mask(Arc<MaskWork>),
    /// Wait for the next order.
    Wait,
}

impl Step {
    /// The round that it is about.
    pub(super) fn round(&self) -> Option<u64> {
        match self {
            Self::Fetch { round, .. } | Self::Train { round, .. } => Some(*round),
            Self::Mask(work) => Some(work.held.round),
            Self::Wait => None,
        }
    }
}

/// What the worker was told and has done.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    /// The newest weights that were named.
    weights: Option<(u64, GlobalWeights)>,
    /// The round whose weights are here.
    loaded: Option<u64>,
    /// The round to train, and the key of its result.
    wanted: Option<(u64, String)>,
    /// The last round whose result is on its way or delivered, or kept until it is masked.
    settled: Option<u64>,
    /// What is to be masked.
    to_mask: Option<Arc<MaskWork>>,
}

impl Plan {
    /// A plan of a worker that has nothing yet; the result of round `settled` is on its way already.
    pub(super) fn new(settled: Option<u64>) -> Self {
        Self {
            settled,
            ..Self::default()
        }
    }

    /// Takes an order in. `is_undelivered` says whether the result of a round still waits for delivery: a settled
    /// round that is wanted again, and of which nothing waits, never arrived.
    pub(super) fn take(&mut self, order: Order, is_undelivered: impl Fn(u64) -> bool) {
        match order {
            Order::Start(start) => {
                let (round, data) = (start.data.round, start.data);
                if self.settled == Some(round) && !is_undelivered(round) {
                    self.settled = None;
                }
                self.name_weights(round, data.global_weights);
                self.want(round, data.upload.key);
            }
            Order::Load(load) => {
                let weights = GlobalWeights {
                    download_url: load.data.download_url,
                    sha256: load.data.sha256,
                    size_bytes: load.data.size_bytes,
                };
                self.name_weights(load.data.round, weights);
            }
            Order::Continue(next) => self.want(next.data.round, next.data.upload.key),
            // What follows from these is decided where the keys are.
            Order::OfSum(_) => {}
        }
    }

    /// A result is to be masked, once there is nothing newer to do.
    pub(super) fn mask(&mut self, work: Arc<MaskWork>) {
        self.to_mask = Some(work);
    }

    /// The result is masked, or cannot be. Gives whether that is still wanted: another attempt may have taken its place.
    pub(super) fn masked(&mut self, work: &Arc<MaskWork>) -> bool {
        self.to_mask.take_if(|wanted| wanted == work).is_some()
    }

    fn name_weights(&mut self, round: u64, weights: GlobalWeights) {
        let newest = self.weights.as_ref().map(|(known, _)| *known);
        if newest.is_none_or(|known| round >= known) {
            // The same round with other bytes is the round begun anew.
            let is_other = self
                .weights
                .as_ref()
                .is_some_and(|(known, of_it)| *known == round && of_it.sha256 != weights.sha256);
            if is_other && self.loaded == Some(round) {
                self.loaded = None;
            }
            self.weights = Some((round, weights));
        }
    }

    fn want(&mut self, round: u64, key: String) {
        let newest = self.wanted.as_ref().map(|(known, _)| *known);
        if newest.is_none_or(|known| round >= known) {
            self.wanted = Some((round, key));
        }
    }

    /// What is to be done next.
    pub(super) fn next(&self) -> Step {
        let Some((round, weights)) = &self.weights else {
            return Step::Wait;
        };
        if self.settled.is_some_and(|settled| settled >= *round) {
            let of_round = |work: &&Arc<MaskWork>| work.held.round == *round;
            let to_mask = self.to_mask.as_ref().filter(of_round);
            return to_mask.map_or(Step::Wait, |work| Step::Mask(work.clone()));
        }
        if self.loaded != Some(*round) {
            let weights = weights.clone();
            return Step::Fetch {
                round: *round,
                weights,
            };
        }
        match &self.wanted {
            Some((wanted, key)) if wanted == round => Step::Train {
                round: *round,
                key: key.clone(),
                sha256: weights.sha256.clone(),
            },
            _ => Step::Wait,
        }
    }

    /// The weights that begin this round are here.
    pub(super) fn loaded(&mut self, round: u64) {
        self.loaded = Some(round);
    }

    /// The result of this round is on its way.
    pub(super) fn settled(&mut self, round: u64) {
        self.settled = Some(round);
    }

    /// The round cannot be done. It is tried again when it is named again.
    pub(super) fn failed(&mut self, round: u64) {
        self.weights.take_if(|(known, _)| *known == round);
        self.wanted.take_if(|(known, _)| *known == round);
        self.loaded.take_if(|known| *known == round);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;
    use trainyard_shared::message::ToWorker;

    use super::super::masking::Held;
    use super::*;

    fn order(frame: serde_json::Value) -> Order {
        match ToWorker::decode(&frame.to_string()).unwrap() {
            ToWorker::StartFederatedTraining(start) => Order::Start(Box::new(start)),
            ToWorker::LoadAggregatedWeights(load) => Order::Load(load),
            ToWorker::ContinueRound(next) => Order::Continue(next),
            other => panic!("{other:?}"),
        }
    }

    fn start(round: u64) -> Order {
        order(json!({
            "type": "start_federated_training", "session_id": 9, "data": {
                "round": round, "total_rounds": 9, "shard": {"index": 0, "count": 2},
                "dataset": {"storage_path": "d", "download_url": "http://x/d", "format": "jsonl", "id": 1},
                "base_model": {"huggingface_id": "yard/tiny"}, "config": {"local_steps": 1},
                "global_weights": {"download_url": "http://x/w", "sha256": format!("{round}"), "size_bytes": 1},
                "upload": {"url": "http://x/u", "key": format!("key-{round}")}
            }
        }))
    }

    fn load(round: u64) -> Order {
        order(json!({
            "type": "load_aggregated_weights", "session_id": 9, "data": {
                "round": round, "download_url": "http://x/w", "sha256": format!("{round}"), "size_bytes": 1
            }
        }))
    }

    fn go_on(round: u64) -> Order {
        order(json!({
            "type": "continue_round", "session_id": 9, "data": {
                "round": round, "upload": {"url": "http://x/u", "key": format!("key-{round}")}
            }
        }))
    }

    fn fetches(plan: &Plan, expected: u64) {
        let step = plan.next();
        assert!(
            matches!(step, Step::Fetch { round, .. } if round == expected),
            "{step:?}"
        );
    }

    fn trains(plan: &Plan, expected: u64) {
        let step = Step::Train {
            round: expected,
            key: format!("key-{expected}"),
            sha256: expected.to_string(),
        };
        assert_eq!(plan.next(), step);
    }

    const DELIVERED: fn(u64) -> bool = |_| false;
    const UNDELIVERED: fn(u64) -> bool = |_| true;

    #[test]
    fn a_round_is_fetched_trained_and_settled_and_the_next_one_follows() {
        let mut plan = Plan::new(None);
        assert_eq!(plan.next(), Step::Wait);
        plan.take(start(1), DELIVERED);
        fetches(&plan, 1);
        plan.loaded(1);
        trains(&plan, 1);
        plan.settled(1);
        assert_eq!(plan.next(), Step::Wait);
        plan.take(load(2), DELIVERED);
        fetches(&plan, 2);
        plan.loaded(2);
        assert_eq!(plan.next(), Step::Wait, "it is not asked to train yet");
        plan.take(go_on(2), DELIVERED);
        trains(&plan, 2);
    }

    #[test]
    fn the_order_to_train_may_come_before_the_weights_are_here_or_even_named() {
        let mut plan = Plan::new(None);
        plan.take(go_on(2), DELIVERED);
        assert_eq!(plan.next(), Step::Wait);
        plan.take(load(2), DELIVERED);
        fetches(&plan, 2);
        plan.loaded(2);
        trains(&plan, 2);
    }

    #[test]
    fn a_repeat_changes_nothing_and_an_older_round_neither() {
        let mut plan = Plan::new(None);
        plan.take(start(3), DELIVERED);
        plan.loaded(3);
        let before = plan.clone();
        for order in [start(3), start(2), load(1), go_on(2), load(3)] {
            plan.take(order, DELIVERED);
            assert_eq!(plan, before);
        }
    }

    #[test]
    fn a_newer_round_takes_the_place_of_the_one_under_way() {
        let mut plan = Plan::new(None);
        plan.take(start(3), DELIVERED);
        plan.loaded(3);
        trains(&plan, 3);
        plan.take(load(4), DELIVERED);
        fetches(&plan, 4);
        plan.take(start(5), DELIVERED);
        fetches(&plan, 5);
    }

    #[test]
    fn a_settled_round_is_done_again_only_if_its_result_never_arrived() {
        let mut plan = Plan::new(Some(3));
        plan.take(start(3), UNDELIVERED);
        assert_eq!(plan.next(), Step::Wait);
        plan.take(start(3), DELIVERED);
        fetches(&plan, 3);
    }

    #[test]
    fn a_failed_round_is_tried_again_when_it_is_named_again() {
        let mut plan = Plan::new(None);
        plan.take(start(3), DELIVERED);
        plan.failed(3);
        assert_eq!(plan.next(), Step::Wait);
        plan.take(start(3), DELIVERED);
        fetches(&plan, 3);
    }

    #[test]
    fn other_weights_of_the_same_round_are_fetched() {
        let mut plan = Plan::new(None);
        plan.take(start(1), DELIVERED);
        plan.loaded(1);
        let Order::Start(mut other) = start(1) else {
            unreachable!()
        };
        other.data.global_weights.sha256 = "other".to_owned();
        plan.take(Order::Start(other), DELIVERED);
        fetches(&plan, 1);
    }

    #[test]
    fn what_is_masked_for_an_older_attempt_does_not_settle_a_newer_one() {
        let work = |attempt| {
            Arc::new(MaskWork {
                held: Held {
                    round: 1,
                    file: PathBuf::new(),
                    weights: PathBuf::new(),
                    num_examples: 1,
                    steps: 1,
                    loss: None,
                },
                attempt,
                key: String::new(),
                masks: Vec::new(),
                factor: 1.0,
            })
        };
        let mut plan = Plan::default();
        plan.take(start(1), |_| false);
        plan.settled(1);
        plan.mask(work(7));
        plan.mask(work(8));
        assert!(!plan.masked(&work(7)), "nobody waits for it any more");
        assert_eq!(plan.next(), Step::Mask(work(8)));
        assert!(plan.masked(&work(8)));
        assert_eq!(plan.next(), Step::Wait);
    }
}
