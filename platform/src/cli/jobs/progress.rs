//! How a job that is watched is shown: a bar on a terminal, else plain lines, else JSON lines.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};
use trainyard_shared::JobStatus;
use trainyard_shared::message::{JobUpdateData, ToDashboard};
use trainyard_shared::number::finite;

use crate::cli::error::CliError;
use crate::cli::output::{Output, printable, time_span};

/// On plain lines a step is told at most this often.
const STEP_LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Where and how a job's progress is shown.
pub enum Progress {
    /// One JSON object a line, as the platform sends it.
    Json,
    /// A bar, with lines above it for what is not progress.
    Bar(ProgressBar),
    /// Lines.
    Lines(Lines),
}

/// What plain lines have told so far.
#[derive(Default)]
pub struct Lines {
    status: Option<JobStatus>,
    step: Option<u64>,
    told_at: Option<Instant>,
}

impl Progress {
    /// Shows progress in the form that suits the reader.
    pub fn new(output: &Output, is_terminal: bool) -> Self {
        if output.is_json() {
            Self::Json
        } else if is_terminal {
            Self::Bar(bar())
        } else {
            Self::Lines(Lines::default())
        }
    }

    /// Shows a message about the job.
    pub fn show(
        &mut self,
        message: &ToDashboard,
        raw: &str,
        now: Instant,
        output: &Output,
    ) -> Result<(), CliError> {
        match self {
            Self::Json => output.line(raw),
            Self::Bar(bar) => {
                match message {
                    ToDashboard::JobUpdate(update) => draw(bar, &update.data),
                    other => other_in_words(other)
                        .into_iter()
                        .for_each(|line| bar.println(line)),
                }
                Ok(())
            }
            Self::Lines(lines) => {
                let line = match message {
                    ToDashboard::JobUpdate(update) => lines.update(&update.data, now),
                    other => other_in_words(other),
                };
                line.map_or(Ok(()), |line| output.line(&line))
            }
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Lines {
    /// A line for this update, unless it says nothing new or comes too soon after the last one. A change of state
    /// and the last step are always told.
    fn update(&mut self, update: &JobUpdateData, now: Instant) -> Option<String> {
        let is_other_status = self.status != Some(update.status);
        let (step, total_steps) = steps(update);
        let is_new_step = step.is_some() && step != self.step;
        let is_last_step = is_new_step && step == total_steps;
        let is_time = self
            .told_at
            .is_none_or(|told_at| now.duration_since(told_at) >= STEP_LINE_INTERVAL);
        if !(is_other_status || is_last_step || (is_new_step && is_time)) {
            return None;
        }
        self.status = Some(update.status);
        self.step = step;
        self.told_at = Some(now);
        Some(update_in_words(update))
    }
}

/// The step at which the job is, and how many it has, as far as they are known.
fn steps(update: &JobUpdateData) -> (Option<u64>, Option<u64>) {
    match &update.progress {
        Some(progress) => (Some(progress.step), progress.total_steps),
        None => (None, None),
    }
}

fn update_in_words(update: &JobUpdateData) -> String {
    let mut words = vec![update.status.to_string()];
    match steps(update) {
        (Some(step), Some(total)) => words.push(format!("step {step}/{total}")),
        (Some(step), None) => words.push(format!("step {step}")),
        (None, _) => {}
    }
    let epoch = update.progress.as_ref().and_then(|progress| progress.epoch);
    words.extend(epoch.map(|epoch| format!("epoch {epoch}")));
    let figures = figures(update);
    if !figures.is_empty() {
        words.push(figures);
    }
    words.extend(update.waiting_because.as_deref().map(printable));
    words.join("  ")
}

/// Loss, speed and time left, as far as they are known.
fn figures(update: &JobUpdateData) -> String {
    let mut words = Vec::new();
    let progress = update.progress.clone().unwrap_or_default();
    match progress.loss {
        Some(loss) if loss.is_finite() => words.push(format!("loss {loss:.4}")),
        Some(_) => words.push("loss not finite".to_owned()),
        None => {}
    }
    words.extend(finite(progress.eval_loss).map(|loss| format!("evaluation loss {loss:.4}")));
    words.extend(finite(progress.token_throughput).map(|speed| format!("{speed:.0} tokens/s")));
    if !update.status.is_ended() {
        let left = progress
            .eta_seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        words.extend(left.map(|left| format!("ETA {}", time_span(left))));
    }
    if update.awaiting_worker == Some(true) {
        words.push("worker not connected".to_owned());
    }
    words.join("  ")
}

/// A line for what is told beside progress; none where `job_update` tells it already.
fn other_in_words(message: &ToDashboard) -> Option<String> {
    match message {
        ToDashboard::CheckpointSaved(saved) => {
            Some(format!("checkpoint of step {} is saved", saved.data.step))
        }
        ToDashboard::WorkerLog(log) => Some(format!(
            "worker {}: {}",
            log.data.level.as_str(),
            printable(&log.data.line)
        )),
        ToDashboard::TrainingFailed(failed) => {
            Some(format!("failed: {}", printable(&failed.data.error)))
        }
        _ => None,
    }
}

/// A spinner, until it is known how many steps the job has.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {prefix:9} {wide_msg}"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("our templates are fixed and valid")
}

fn draw(bar: &ProgressBar, update: &JobUpdateData) {
    let (step, total) = steps(update);
    if let Some(total) = total {
        if bar.length().is_none() {
            bar.set_style(style("{prefix:9} {bar:30} {pos}/{len}  {wide_msg}"));
        }
        bar.set_length(total);
    }
    if let Some(step) = step {
        bar.set_position(step);
    }
    let figures = figures(update);
    let waits = update
        .waiting_because
        .as_deref()
        .map(printable)
        .unwrap_or_default();
    bar.set_message(format!("{figures}{waits}"));
    bar.set_prefix(update.status.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_shared::message::TrainingProgressData;

    fn running(step: u64) -> JobUpdateData {
        running_at(TrainingProgressData {
            step,
            total_steps: Some(10),
            epoch: Some(1),
            loss: Some(0.34212),
            token_throughput: Some(6400.4),
            eta_seconds: Some(125.0),
            ..TrainingProgressData::default()
        })
    }

    fn running_at(progress: TrainingProgressData) -> JobUpdateData {
        JobUpdateData {
            progress: Some(progress),
            ..JobUpdateData::of(JobStatus::Running)
        }
    }

    #[test]
    fn a_line_tells_state_step_loss_speed_and_time_left() {
        let told = Lines::default().update(&running(4), Instant::now());
        assert_eq!(
            told.as_deref(),
            Some("running  step 4/10  epoch 1  loss 0.3421  6400 tokens/s  ETA 2m 05s")
        );
    }

    #[test]
    fn g036_a_loss_that_is_not_finite_is_told_as_that() {
        let update = running_at(TrainingProgressData {
            step: 4,
            loss: Some(f64::NAN),
            eta_seconds: Some(f64::NAN),
            ..TrainingProgressData::default()
        });
        assert!(update_in_words(&update).contains("loss not finite"));
    }

    #[test]
    fn steps_are_told_at_intervals_and_the_last_one_and_changes_of_state_always() {
        let start = Instant::now();
        let mut lines = Lines::default();
        assert!(
            lines
                .update(&JobUpdateData::of(JobStatus::Queued), start)
                .is_some()
        );
        assert!(
            lines
                .update(&JobUpdateData::of(JobStatus::Queued), start)
                .is_none()
        );
        assert!(
            lines.update(&running(1), start).is_some(),
            "a change of state"
        );
        assert!(lines.update(&running(2), start).is_none(), "too soon");
        assert!(
            lines
                .update(&running(3), start + STEP_LINE_INTERVAL)
                .is_some()
        );
        assert!(
            lines
                .update(&running(3), start + STEP_LINE_INTERVAL * 3)
                .is_none(),
            "told already"
        );
        assert!(
            lines
                .update(&running(10), start + STEP_LINE_INTERVAL * 3)
                .is_some()
        );
        assert!(
            lines
                .update(&running(10), start + STEP_LINE_INTERVAL * 9)
                .is_none()
        );
    }
}
