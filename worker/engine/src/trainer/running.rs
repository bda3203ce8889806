//! A whole run: its steps, the evaluations and checkpoints between them, and its end.

use std::path::PathBuf;

use super::method::Method;
use super::steps::{OnEvent, Steps};
use super::{EvaluationReport, StepReport, TrainingEvent, TrainingOutcome, TrainingRun};
use crate::EngineError;
use crate::data::DatasetReport;

/// A run under way.
pub(super) struct Trainer<'a> {
    pub(super) run: &'a TrainingRun<'a>,
    pub(super) method: Method,
    pub(super) steps: Steps<'a>,
    pub(super) dataset: DatasetReport,
    /// Rows that are kept for evaluation.
    pub(super) evaluation_rows: Vec<u32>,
    /// The steps of the newest checkpoint and of the newest evaluation that it knows.
    pub(super) saved: (u64, u64),
    /// The file with the weights that `state.evaluations.best` tells of, where they were saved.
    pub(super) best_weights: Option<PathBuf>,
    /// Of the newest step, which is told once it is evaluated.
    report: Option<StepReport>,
}

impl<'a> Trainer<'a> {
    /// A run at the step that the state of `steps` says.
    pub(super) fn new(
        run: &'a TrainingRun<'a>,
        method: Method,
        steps: Steps<'a>,
        dataset: DatasetReport,
        evaluation_rows: Vec<u32>,
    ) -> Self {
        let state = &steps.state;
        Self {
            run,
            method,
            saved: (state.step, state.evaluations.newest_step),
            steps,
            dataset,
            evaluation_rows,
            best_weights: None,
            report: None,
        }
    }

    /// Does the steps that are left.
    pub(super) fn run(
        mut self,
        is_stopped: &(dyn Fn() -> bool + Sync),
        on_event: &mut OnEvent<'_>,
    ) -> Result<TrainingOutcome, EngineError> {
        loop {
            let mut evaluation = None;
            if self.evaluation_is_due() {
                evaluation = self.evaluate(is_stopped, on_event)?;
                if evaluation.is_none() {
                    self.tell(None, on_event);
                    return self.stop(on_event);
                }
            }
            let is_over =
                self.ends_early(on_event) || self.steps.state.step >= self.steps.total_steps;
            self.tell(evaluation, on_event);
            if is_over {
                return self.publish(on_event);
            }
            if self.checkpoint_is_due() {
                self.save(on_event)?;
            }
            self.report = self.steps.next(is_stopped, on_event)?;
            if self.report.is_none() {
                return self.stop(on_event);
            }
        }
    }

    /// Tells the newest step, with what its evaluation found, unless it was told; again where the evaluation is one
    /// that an earlier attempt did not come to.
    fn tell(&mut self, evaluation: Option<EvaluationReport>, on_event: &mut OnEvent<'_>) {
        let newest = self.report.take();
        let again = || evaluation.map(|_| self.steps.report_from_state());
        if let Some(report) = newest.or_else(again) {
            on_event(TrainingEvent::Step(StepReport {
                evaluation,
                total_steps: self.steps.total_steps,
                eta_seconds: self.steps.seconds_left(report.step),
                ..report
            }));
        }
    }
}
