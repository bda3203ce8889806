//! Which answers, evaluations or exports run and which have ended: what becomes of a request to start or stop one.

use std::collections::VecDeque;

use super::{StopReason, StopSignal};

/// Ended ones that are remembered, so that a late repeat of their start starts nothing.
const REMEMBERED: usize = 1024;

/// The running ones, any number of them, and the memory of those that have ended.
#[derive(Debug)]
pub(super) struct Running<Id> {
    running: Vec<(Id, StopSignal)>,
    ended: VecDeque<Id>,
}

/// What to do about a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It runs and has been told, or it has ended, and its end is told or on its way.
    Told,
    /// This worker knows nothing of it: say that it has ended.
    Unknown,
}

impl<Id: Clone + PartialEq> Running<Id> {
    /// None runs. `ended` are those whose end is on its way to the platform already.
    pub(super) fn new(ended: Vec<Id>) -> Self {
        Self {
            running: Vec::new(),
            ended: ended.into(),
        }
    }

    /// Begins one, unless it runs or has ended: then there is nothing to do.
    pub(super) fn begin(&mut self, id: &Id) -> Option<StopSignal> {
        let is_known = self.ended.contains(id) || self.running.iter().any(|(known, _)| known == id);
        if is_known {
            return None;
        }
        let stop = StopSignal::default();
        self.running.push((id.clone(), stop.clone()));
        Some(stop)
    }

    /// It has ended, or is refused.
    pub(super) fn end(&mut self, id: &Id) {
        self.running.retain(|(known, _)| known != id);
        if self.ended.len() >= REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(id.clone());
    }

    /// Tells one to stop.
    pub(super) fn stop(&mut self, id: &Id) -> Stop {
        if let Some((_, stop)) = self.running.iter().find(|(known, _)| known == id) {
            stop.stop(StopReason::Requested);
            return Stop::Told;
        }
        if self.ended.contains(id) {
            return Stop::Told;
        }
        // A start that was sent before the stop and comes late must start nothing.
        self.end(id);
        Stop::Unknown
    }

    /// Tells all to stop because the worker shuts down.
    pub(super) fn shut_down(&self) {
        for (_, stop) in &self.running {
            stop.stop(StopReason::Shutdown);
        }
    }

    /// Those that run.
    pub(super) fn ids(&self) -> Vec<Id> {
        self.running.iter().map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_start_of_what_runs_or_has_ended_starts_nothing() {
        let mut running = Running::new(vec![9]);
        assert!(running.begin(&7).is_some());
        assert!(running.begin(&7).is_none());
        assert!(running.begin(&8).is_some(), "several at once");
        assert!(running.begin(&9).is_none(), "its end is on its way");
        running.end(&7);
        assert!(running.begin(&7).is_none());
        assert_eq!(running.ids(), [8]);
    }

    #[test]
    fn g093_a_stop_reaches_what_runs_is_harmless_twice_and_holds_for_a_start_that_comes_late() {
        let mut running = Running::new(Vec::new());
        let stop = running.begin(&7).unwrap();
        assert_eq!(running.stop(&7), Stop::Told);
        assert_eq!(running.stop(&7), Stop::Told);
        assert_eq!(stop.reason(), Some(StopReason::Requested));
        running.end(&7);
        assert_eq!(running.stop(&7), Stop::Told);
        assert_eq!(running.stop(&8), Stop::Unknown);
        assert_eq!(running.stop(&8), Stop::Told);
        assert!(running.begin(&8).is_none());
    }

    #[test]
    fn a_shutdown_stops_all_of_them() {
        let mut running = Running::new(Vec::new());
        let (one, two) = (running.begin(&1).unwrap(), running.begin(&2).unwrap());
        running.shut_down();
        assert_eq!(one.reason(), Some(StopReason::Shutdown));
        assert_eq!(two.reason(), Some(StopReason::Shutdown));
    }
}
