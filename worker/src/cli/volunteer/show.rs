//! What a person or a program sees of a volunteer.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::error::CliError;
use crate::cli::output::{Output, remark};
use crate::engine::trainer::{LogLevel, StepReport};
use crate::volunteer::{VolunteerEvent, WaitReason};

/// Shows what happens.
pub(super) struct Show<'a> {
    output: &'a Output,
    /// On a terminal, while a round runs.
    bar: Option<ProgressBar>,
    /// Standard output failed; the volunteer goes on without it.
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

    pub(super) fn event(&mut self, event: &VolunteerEvent) {
        match event {
            VolunteerEvent::Step {
                step,
                steps,
                report,
            } => self.step(*step, *steps, report),
            VolunteerEvent::RoundBegun { steps, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_length(*steps);
                    bar.set_position(0);
                }
                self.line(event);
            }
            VolunteerEvent::Log {
                level: LogLevel::Info,
                ..
            } => {}
            _ => self.line(event),
        }
        if !matches!(event, VolunteerEvent::Log { .. }) {
            self.json(event);
        }
    }

    /// Ends the bar, and says whether standard output failed.
    pub(super) fn finish(self) -> Result<(), CliError> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn step(&self, step: u64, steps: u64, report: &StepReport) {
        let loss = report
            .loss
            .map_or_else(|| "none".to_owned(), |loss| format!("{loss:.4}"));
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            bar.set_message(format!("loss {loss}"));
        } else if !self.output.is_json() {
            remark(&format!("step {step} of {steps}: loss {loss}"));
        }
    }

    fn line(&mut self, event: &VolunteerEvent) {
        if self.output.is_json() {
            return;
        }
        let text = in_words(event);
        match &self.bar {
            Some(bar) => bar.suspend(|| remark(&text)),
            None => remark(&text),
        }
    }

    fn json(&mut self, event: &VolunteerEvent) {
        if !self.output.is_json() || self.failed.is_some() {
            return;
        }
        self.failed = self.output.line(&as_json(event).to_string()).err();
    }
}

/// Rounds are counted from 1 for people.
fn in_words(event: &VolunteerEvent) -> String {
    match event {
        VolunteerEvent::Joined { session, model } => match session {
            Some(session) => format!("session {session}: an adapter for {model}"),
            None => format!("an adapter for {model}"),
        },
        VolunteerEvent::Fetching { file, bytes } => format!("fetching {file}: {} MB", bytes >> 20),
        VolunteerEvent::RoundBegun {
            round,
            total_rounds,
            shard,
            steps,
        } => format!(
            "round {} of {total_rounds}: {steps} steps on shard {shard}",
            round + 1
        ),
        VolunteerEvent::Step { step, steps, .. } => format!("step {step} of {steps}"),
        VolunteerEvent::Trained { round, loss, .. } => {
            let loss = loss.map_or_else(|| "none".to_owned(), |loss| format!("{loss:.4}"));
            format!("round {}: trained, mean loss {loss}", round + 1)
        }
        VolunteerEvent::Private {
            noise_multiplier,
            results,
            epsilon,
            delta,
        } => match epsilon {
            None => format!(
                "differential privacy: changes are clipped, and get noise of {noise_multiplier} times that norm, before they are sent"
            ),
            Some(epsilon) => format!(
                "differential privacy: {results} results together give away an epsilon of at most {epsilon:.2}, for a delta of {delta}"
            ),
        },
        VolunteerEvent::GoesOn => "goes on".to_owned(),
        VolunteerEvent::Delivered { round } => format!("round {}: delivered", round + 1),
        VolunteerEvent::Overtaken { round } => {
            format!("round {} is over: it is not trained to its end", round + 1)
        }
        VolunteerEvent::TooSlow { rounds } => format!(
            "{rounds} rounds in a row were over before this machine was done: it is too slow for this session as it is set (--threads, --cpu-share and --hours decide how fast it is)"
        ),
        VolunteerEvent::NotTaken { round, reason } => {
            format!(
                "round {} (tur {round}): the result is not taken: {reason}",
                round + 1
            )
        }
        VolunteerEvent::Waiting { reason, delay } => {
            let delay = delay.map_or_else(String::new, |delay| {
                format!("; again in {:.1} s", delay.as_secs_f64())
            });
            format!("{}{delay}", why(reason))
        }
        VolunteerEvent::Log { line, .. } => line.clone(),
        VolunteerEvent::Finished => "training is finished; thank you".to_owned(),
    }
}

fn why(reason: &WaitReason) -> String {
    match reason {
        WaitReason::RoundOpen { round } => format!("round {} is still open", round + 1),
        WaitReason::RoundOver { round } => {
            format!("round {} is over; the next one is waited for", round + 1)
        }
        WaitReason::Paused => "paused".to_owned(),
        WaitReason::OutsideHours { until } => {
            format!("outside the hours, until {}", until.format("%H:%M"))
        }
        WaitReason::MachineInUse => "the machine is in use".to_owned(),
        WaitReason::Fault(reason) => reason.clone(),
    }
}

/// Rounds are counted from 0, as on the wire.
fn as_json(event: &VolunteerEvent) -> Value {
    match event {
        VolunteerEvent::Joined { session, model } => {
            json!({"event": "joined", "session": session, "model": model})
        }
        VolunteerEvent::Fetching { file, bytes } => {
            json!({"event": "fetching", "file": file, "bytes": bytes})
        }
        VolunteerEvent::RoundBegun {
            round,
            total_rounds,
            shard,
            steps,
        } => json!({
            "event": "round", "round": round, "total_rounds": total_rounds, "shard": shard, "steps": steps,
        }),
        VolunteerEvent::Step {
            step,
            steps,
            report,
        } => json!({
            "event": "step", "step": step, "steps": steps, "loss": report.loss, "grad_norm": report.grad_norm,
            "token_throughput": report.token_throughput,
        }),
        VolunteerEvent::Trained {
            round,
            loss,
            size_bytes,
            sha256,
        } => json!({
            "event": "trained", "round": round, "loss": loss, "size_bytes": size_bytes, "sha256": sha256,
        }),
        VolunteerEvent::Private {
            noise_multiplier,
            results,
            epsilon,
            delta,
        } => json!({
            "event": "privacy", "noise_multiplier": noise_multiplier, "results": results,
            "epsilon": epsilon, "delta": delta,
        }),
        VolunteerEvent::GoesOn => json!({"event": "goes_on"}),
        VolunteerEvent::Delivered { round } => json!({"event": "delivered", "round": round}),
        VolunteerEvent::Overtaken { round } => json!({"event": "overtaken", "round": round}),
        VolunteerEvent::TooSlow { rounds } => json!({"event": "too_slow", "rounds": rounds}),
        VolunteerEvent::NotTaken { round, reason } => {
            json!({"event": "not_taken", "round": round, "reason": reason})
        }
        VolunteerEvent::Waiting { reason, delay } => {
            let kind = match reason {
                WaitReason::RoundOpen { .. } => "round_open",
                WaitReason::RoundOver { .. } => "round_over",
                WaitReason::Paused => "paused",
                WaitReason::OutsideHours { .. } => "outside_hours",
                WaitReason::MachineInUse => "machine_in_use",
                WaitReason::Fault(_) => "fault",
            };
            json!({
                "event": "waiting", "reason": kind, "detail": why(reason),
                "delay_seconds": delay.map(|delay| delay.as_secs_f64()),
            })
        }
        VolunteerEvent::Log { line, .. } => json!({"event": "log", "line": line}),
        VolunteerEvent::Finished => json!({"event": "finished"}),
    }
}
