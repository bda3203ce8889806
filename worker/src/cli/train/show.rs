//! What a person or a program sees of a run: its log, with a bar below on a terminal, or JSON.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::error::CliError;
use crate::cli::output::{Output, remark};
use crate::engine::trainer::{LogLevel, StepReport, TrainingEvent};

/// Shows the events of a run.
pub(super) struct Show<'a> {
    output: &'a Output,
    /// On a terminal, while it runs.
    bar: Option<ProgressBar>,
    /// Standard output failed; the run goes on without it.
    failed: Option<CliError>,
}

impl<'a> Show<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        let bar = (!output.is_json() && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        Self {
            output,
            bar,
            failed: None,
        }
    }

    pub(super) fn event(&mut self, event: &TrainingEvent) {
        match event {
            TrainingEvent::Started(started) => {
                self.line(&format!(
                    "training on {} rows in {} steps, {} of {} parameters",
                    started.training_rows,
                    started.total_steps,
                    started.trainable_parameters,
                    started.total_parameters
                ));
                if let Some(bar) = &self.bar {
                    bar.set_length(started.total_steps);
                    bar.set_position(started.resumed_from_step);
                }
                self.json(|| {
                    json!({
                        "event": "started",
                        "total_steps": started.total_steps,
                        "resumed_from_step": started.resumed_from_step,
                        "trainable_parameters": started.trainable_parameters,
                        "total_parameters": started.total_parameters,
                        "dataset_examples": started.training_rows,
                        "evaluation_rows": started.evaluation_rows,
                        "skipped_rows": started.dataset.skipped_rows,
                        "dropped_rows": started.dataset.dropped_rows,
                        "truncated_rows": started.dataset.truncated_rows,
                    })
                });
            }
            TrainingEvent::Step(step) => self.step(step),
            TrainingEvent::CheckpointSaved(saved) => {
                self.line(&format!(
                    "checkpoint of step {}: {}",
                    saved.step,
                    saved.folder.display()
                ));
                self.json(|| {
                    json!({
                        "event": "checkpoint",
                        "step": saved.step,
                        "epoch": saved.epoch,
                        "folder": saved.folder,
                        "metrics": saved.metrics,
                    })
                });
            }
            TrainingEvent::Log { level, line } => {
                let warning = *level == LogLevel::Warning;
                self.line(&format!("{}{line}", if warning { "warning: " } else { "" }));
                self.json(|| {
                    let level = if warning { "warn" } else { "info" };
                    json!({"event": "log", "level": level, "line": line})
                });
            }
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) -> Result<(), CliError> {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn step(&mut self, step: &StepReport) {
        if let Some(bar) = &self.bar {
            bar.set_position(step.step);
            bar.set_message(in_words(step));
        }
        self.json(|| {
            json!({
                "event": "step",
                "epoch": step.epoch,
                "step": step.step,
                "total_steps": step.total_steps,
                "loss": step.loss,
                "loss_ema": step.loss_ema,
                "perplexity": step.perplexity,
                "grad_norm": step.grad_norm,
                "learning_rate": step.learning_rate,
                "tokens": step.tokens,
                "throughput": step.throughput,
                "token_throughput": step.token_throughput,
                "eta_seconds": step.eta_seconds,
                "skipped": step.skipped,
                "micro_batch_size": step.micro_batch_size,
                "gradient_accumulation_steps": step.gradient_accumulation_steps,
                "eval_loss": step.evaluation.map(|found| found.loss),
                "eval_perplexity": step.evaluation.map(|found| found.perplexity),
            })
        });
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if !self.output.is_json() => remark(text),
            None => {}
        }
    }

    fn json(&mut self, value: impl FnOnce() -> Value) {
        if self.output.is_json()
            && self.failed.is_none()
            && let Err(error) = self.output.line(&value().to_string())
        {
            self.failed = Some(error);
        }
    }
}

fn in_words(step: &StepReport) -> String {
    let mut text = match step.loss {
        Some(loss) => format!("loss {loss:.4}"),
        None => "loss not finite".to_owned(),
    };
    if let Some(tokens) = step.token_throughput {
        text.push_str(&format!(", {tokens:.0} tokens/s"));
    }
    if let Some(seconds) = step.eta_seconds {
        text.push_str(&format!(", {} left", time_span(seconds)));
    }
    text
}

/// `45 s`, `12 min`, `3 h 20 min`
fn time_span(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_told_in_the_unit_that_fits() {
        assert_eq!(time_span(45.4), "45 s");
        assert_eq!(time_span(700.0), "12 min");
        assert_eq!(time_span(12_000.0), "3 h 20 min");
    }
}
