//! `--profile`: where the time of a run's steps went, operation by operation, as a table or an event.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::profile::{self, Share};
use crate::engine::trainer::TrainingEvent;
use crate::hardware::benchmark::matrix_products_tflops;

/// How long the machine's rate of matrix products is measured before the run.
const MEASURED_FOR: Duration = Duration::from_secs(1);

/// A profile under way.
pub(super) struct Profile {
    /// f32 matrix products of this machine through the engine's linear layer, in 10^9 operations a second.
    peak_gflops: f64,
    steps: u64,
    tokens: u64,
    seconds: f64,
}

impl Profile {
    /// Measures the machine and begins to count.
    pub(super) fn start() -> Self {
        let peak_gflops = 1000.0 * matrix_products_tflops(MEASURED_FOR);
        profile::start();
        Self {
            peak_gflops,
            steps: 0,
            tokens: 0,
            seconds: 0.0,
        }
    }

    /// Takes note of steps.
    pub(super) fn event(&mut self, event: &TrainingEvent) {
        if let TrainingEvent::Step(step) = event {
            self.steps += 1;
            self.tokens += step.tokens;
            self.seconds += step
                .token_throughput
                .map_or(0.0, |rate| step.tokens as f64 / rate);
        }
    }

    /// Ends counting: the event for programs, and the table for people.
    pub(super) fn finish(self) -> (Value, String) {
        let shares = profile::finish();
        (self.value(&shares), self.table(&shares))
    }

    fn value(&self, shares: &[Share]) -> Value {
        let operations: Vec<Value> = shares
            .iter()
            .map(|share| {
                json!({
                    "operation": share.operation.name(),
                    "calls": share.calls,
                    "seconds": share.time.as_secs_f64(),
                    "share": self.share(share.time),
                    "gflops": self.gflops(share),
                    "share_of_gemm_peak": self.gflops(share).map(|rate| rate / self.peak_gflops),
                })
            })
            .collect();
        let flops: u64 = shares.iter().map(|share| share.flops).sum();
        json!({
            "event": "profile",
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "counted_operations": flops,
            "gemm_peak_gflops": self.peak_gflops,
            "share_of_gemm_peak": self.whole_rate(flops) / self.peak_gflops,
            "operations": operations,
        })
    }

    fn table(&self, shares: &[Share]) -> String {
        let mut table = format!(
            "{:<24}{:>8}{:>12}{:>9}{:>10}{:>9}\n",
            "operation", "calls", "ms a step", "share", "GFLOP/s", "of peak"
        );
        let steps = self.steps.max(1) as f64;
        let mut row = |name: &str, calls: &str, seconds: f64, gflops: Option<f64>| {
            let rate = gflops.map_or_else(String::new, |rate| {
                format!("{rate:>10.0}{:>8.0}%", 100.0 * rate / self.peak_gflops)
            });
            let (ms, share) = (1000.0 * seconds / steps, 100.0 * seconds / self.seconds);
            // Writing to a string does not fail.
            let _ = writeln!(table, "{name:<24}{calls:>8}{ms:>12.1}{share:>8.1}%{rate}");
        };
        let mut rest = self.seconds;
        for share in shares {
            let seconds = share.time.as_secs_f64();
            rest -= seconds;
            let calls = share.calls.to_string();
            row(share.operation.name(), &calls, seconds, self.gflops(share));
        }
        row("everything else", "", rest.max(0.0), None);
        let flops = shares.iter().map(|share| share.flops).sum();
        row("whole step", "", self.seconds, Some(self.whole_rate(flops)));
        let peak = self.peak_gflops;
        let _ = write!(
            table,
            "{} steps, {} tokens; this machine's matrix products: {peak:.0} GFLOP/s",
            self.steps, self.tokens
        );
        table
    }

    fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.seconds
    }

    /// Counted operations per second in 10^9; none where none are counted.
    fn gflops(&self, share: &Share) -> Option<f64> {
        (share.flops > 0).then(|| share.flops as f64 / share.time.as_secs_f64() / 1e9)
    }

    fn whole_rate(&self, flops: u64) -> f64 {
        flops as f64 / self.seconds / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::profile::Operation;

    #[test]
    fn table_and_event_say_where_the_time_went() {
        let profile = Profile {
            peak_gflops: 200.0,
            steps: 2,
            tokens: 64,
            seconds: 4.0,
        };
        let shares = [
            Share {
                operation: Operation::Linear,
                calls: 14,
                time: Duration::from_secs(3),
                flops: 300_000_000_000,
            },
            Share {
                operation: Operation::Norm,
                calls: 4,
                time: Duration::from_millis(500),
                flops: 0,
            },
        ];
        let event = profile.value(&shares);
        assert_eq!(event["operations"][0]["operation"], "linear");
        assert_eq!(event["operations"][0]["share"], 0.75);
        assert_eq!(event["operations"][0]["share_of_gemm_peak"], 0.5);
        assert_eq!(event["operations"][1]["gflops"], Value::Null);
        assert_eq!(event["share_of_gemm_peak"], 0.375);

        let table = profile.table(&shares);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[1], ["linear", "14", "1500.0", "75.0%", "100", "50%"]);
        assert_eq!(rows[2], ["norm", "4", "250.0", "12.5%"]);
        assert_eq!(rows[3], ["everything", "else", "250.0", "12.5%"]);
        assert_eq!(rows[4], ["whole", "step", "2000.0", "100.0%", "75", "38%"]);
    }
}
