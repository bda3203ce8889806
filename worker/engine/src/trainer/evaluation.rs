//! Evaluations within a run: when they are due, what they find, and when nothing better is to be hoped for.

use super::progress::finite;
use super::running::Trainer;
use super::steps::OnEvent;
use super::{EvaluationReport, LogLevel, TrainingEvent};
use crate::EngineError;
use crate::evaluate::{Evaluated, measure};

/// Rows that are measured at once; fewer where they are long.
const BATCH_ROWS: usize = 8;

impl Trainer<'_> {
    /// Whether the weights are to be measured as they are now: every `eval_steps` steps and after the last.
    pub(super) fn evaluation_is_due(&self) -> bool {
        let step = self.steps.state.step;
        let is_due =
            step.is_multiple_of(self.run.config.eval_steps) || step == self.steps.total_steps;
        !self.evaluation_rows.is_empty()
            && step > 0
            && is_due
            && self.steps.state.evaluations.newest_step != step
    }

    /// Measures the weights with the rows that are kept for it; none where the run was stopped meanwhile.
    pub(super) fn evaluate(
        &mut self,
        is_stopped: &(dyn Fn() -> bool + Sync),
        on_event: &mut OnEvent<'_>,
    ) -> Result<Option<EvaluationReport>, EngineError> {
        let step = self.steps.state.step;
        // No larger than a training batch, for which there is memory. The figures do not depend on it.
        let batch = BATCH_ROWS.min(self.steps.micro_batch_size() as usize);
        let (model, examples) = self.steps.model_and_examples();
        let rows = (examples, &*self.evaluation_rows);
        let measured = measure(model, rows, batch, is_stopped, &mut |_| {});
        let loss = match measured {
            Ok(Evaluated::Completed(figures)) => Some(figures.loss),
            Ok(Evaluated::Stopped) => return Ok(None),
            Err(EngineError::NotFinite) => None,
            Err(error) => return Err(error),
        };
        let evaluations = &mut self.steps.state.evaluations;
        evaluations.record(step, loss);
        let report = EvaluationReport {
            loss,
            perplexity: loss.and_then(|loss| finite(loss.exp())),
        };
        let (level, figures) = match (report.loss, report.perplexity) {
            (Some(loss), perplexity) => {
                let perplexity = perplexity.unwrap_or(f64::INFINITY);
                let best = match evaluations.best {
                    Some(best) if best.step != step => {
                        format!(" (best: {:.4} at step {})", best.loss, best.step)
                    }
                    _ => String::new(),
                };
                let figures = format!("loss {loss:.4}, perplexity {perplexity:.4}{best}");
                (LogLevel::Info, figures)
            }
            (None, _) => (LogLevel::Warning, "the loss is not finite".to_owned()),
        };
        let line = format!("evaluation after step {step}: {figures}");
        on_event(TrainingEvent::Log { level, line });
        Ok(Some(report))
    }

    /// Whether evaluations have found nothing better for too long. Then the step that is done is the last.
    pub(super) fn ends_early(&mut self, on_event: &mut OnEvent<'_>) -> bool {
        let (step, total) = (self.steps.state.step, self.steps.total_steps);
        let evaluations = &self.steps.state.evaluations;
        let patience = self.run.config.early_stopping_patience;
        if step >= total || patience.is_none_or(|patience| evaluations.since_best < patience) {
            return false;
        }
        let line = format!(
            "stopped early after step {step} of {total}: {} evaluations without a lower loss",
            evaluations.since_best
        );
        on_event(TrainingEvent::Log {
            level: LogLevel::Info,
            line,
        });
        self.steps.total_steps = step;
        true
    }
}
