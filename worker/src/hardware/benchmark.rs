//! How fast this machine trains: measured, never estimated, and kept for the machine that it was measured on.
//!
//! | figure | how it is measured |
//! | --- | --- |
//! | `tflops` | f32 matrix products of 512 tokens by 1536 x 1536 weights through the engine's own linear layer, on all its threads: operations of the fastest half of the runs by their time |
//! | `memory_bandwidth_gbps` | `a = b + s * c` over arrays far larger than the caches, on all threads: bytes read and written by the fastest run |
//! | `max_batch_size_tested` | training steps (forward and backward) of a one-layer model of SmolLM2-135M's width on sequences of 128 tokens, with 1, 2, 4, … sequences until the time is used up or memory would run short |
//! | `gpu_score` | 100 times the geometric mean of `tflops` / 100 and `memory_bandwidth_gbps` / 1000: a card with 100 TFLOP/s and 1 TB/s has 100, a desktop processor about 1 |

mod layer;

use std::path::Path;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use trainyard_shared::message::Benchmark;

use super::Machine;
use crate::engine::device::{Activations, ActivationsMut, LANES, WeightMatrix, run};
use crate::engine::ops::linear::{Start, linear_forward};
use crate::files::{Access, write_atomically};

/// Figures of different versions do not compare.
const VERSION: &str = "1.0.0";
/// The file in the state directory.
const FILE_NAME: &str = "benchmark.json";

/// A machine and what was measured on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The machine.
    pub machine: Machine,
    /// The figures.
    pub benchmark: Benchmark,
}

/// What was measured on this machine before, else what is measured now, in about `budget`.
pub async fn cached_or_measured(state_dir: &Path, budget: Duration) -> Measured {
    let path = state_dir.join(FILE_NAME);
    let measuring = move || {
        let machine = Machine::probe();
        if let Some(cached) = cached(&path, &machine) {
            return cached;
        }
        tracing::info!(
            budget_seconds = budget.as_secs_f64(),
            "measuring this machine, once"
        );
        let measured = measure(machine, budget);
        tracing::info!(
            benchmark.tflops = measured.benchmark.tflops,
            benchmark.memory_bandwidth_gbps = measured.benchmark.memory_bandwidth_gbps,
            benchmark.max_batch_size = measured.benchmark.max_batch_size_tested,
            "measured"
        );
        keep(&path, &measured);
        measured
    };
    // A plain thread: the end of the process does not wait for it.
    let (report, reported) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // Nobody waits any more when the worker is to end already.
        let _ = report.send(measuring());
    });
    reported
        .await
        .expect("the benchmark allocates little and does not panic")
}

/// Measures `machine`, which is this one, in about `budget`.
pub fn measure(machine: Machine, budget: Duration) -> Measured {
    let start = Instant::now();
    let tflops = matrix_products_tflops(budget.mul_f64(0.35));
    let memory_bandwidth_gbps = bandwidth_gbps(budget.mul_f64(0.2));
    let max_batch_size_tested = layer::largest_batch(&machine, budget.mul_f64(0.45));
    let benchmark = Benchmark {
        gpu_score: Some(rounded(score(tflops, memory_bandwidth_gbps))),
        tflops: Some(rounded(tflops)),
        memory_bandwidth_gbps: Some(rounded(memory_bandwidth_gbps)),
        max_batch_size_tested,
        benchmark_version: Some(VERSION.to_owned()),
        benchmark_duration_seconds: Some(rounded(start.elapsed().as_secs_f64())),
        is_estimated: false,
    };
    Measured { machine, benchmark }
}

fn cached(path: &Path, machine: &Machine) -> Option<Measured> {
    let text = std::fs::read_to_string(path).ok()?;
    let measured: Measured = serde_json::from_str(&text)
        .inspect_err(|error| tracing::warn!(%error, "the kept benchmark is damaged"))
        .ok()?;
    let same_version = measured.benchmark.benchmark_version.as_deref() == Some(VERSION);
    (same_version && measured.machine.fingerprint() == machine.fingerprint()).then_some(measured)
}

/// Where the figures cannot be kept they are measured again next time.
fn keep(path: &Path, measured: &Measured) {
    let text = serde_json::to_vec_pretty(measured).expect("plain fields are always JSON");
    if let Err(error) = write_atomically(path, &text, Access::Default) {
        tracing::warn!(file = %path.display(), %error, "the benchmark cannot be kept");
    }
}

fn score(tflops: f64, memory_bandwidth_gbps: f64) -> f64 {
    100.0 * ((tflops / 100.0) * (memory_bandwidth_gbps / 1000.0)).sqrt()
}

/// Matrix products through the engine's linear layer, in 10^12 operations a second.
pub fn matrix_products_tflops(budget: Duration) -> f64 {
    const TOKENS: usize = 512;
    const WIDTH: usize = 1536;
    const OPERATIONS: f64 = 2.0 * (TOKENS * WIDTH * WIDTH) as f64;
    let Ok(weights) = WeightMatrix::from_f32(&vec![0.01; WIDTH * WIDTH], WIDTH, WIDTH) else {
        return 0.0;
    };
    let values = TOKENS.next_multiple_of(LANES) * WIDTH;
    let (x, mut y) = (vec![0.5; values], vec![0.0; values]);
    let times = timed(budget, || {
        let mut y = ActivationsMut::new(&mut y, WIDTH);
        linear_forward(
            &mut y,
            Start::Zero,
            Activations::new(&x, WIDTH),
            &weights,
            None,
            &mut [],
        );
    });
    let half = &times[..times.len().div_ceil(2)];
    OPERATIONS * half.len() as f64 / half.iter().sum::<f64>() / 1e12
}

/// `a = b + s * c`, in 10^9 bytes a second.
fn bandwidth_gbps(budget: Duration) -> f64 {
    const VALUES: usize = 1 << 24;
    const CHUNK: usize = 1 << 16;
    const BYTES: f64 = (3 * VALUES * size_of::<f32>()) as f64;
    let (b, c) = (vec![1.0_f32; VALUES], vec![2.0_f32; VALUES]);
    let mut a = vec![0.0_f32; VALUES];
    let times = timed(budget, || {
        run(|| {
            a.par_chunks_mut(CHUNK)
                .zip(b.par_chunks(CHUNK))
                .zip(c.par_chunks(CHUNK))
                .for_each(|((a, b), c)| {
                    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                        *a = b + 3.0 * c;
                    }
                });
        });
        std::hint::black_box(&a);
    });
    BYTES / times[0] / 1e9
}

/// Runs `work` until `budget` is used up, three times at least; seconds of each run, fastest first.
fn timed(budget: Duration, mut work: impl FnMut()) -> Vec<f64> {
    work();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || start.elapsed() < budget {
        let run = Instant::now();
        work();
        times.push(run.elapsed().as_secs_f64().max(1e-9));
    }
    times.sort_by(f64::total_cmp);
    times
}

fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn figures_are_measured() {
        let measured = measure(Machine::probe(), SHORT).benchmark;
        assert!(!measured.is_estimated);
        assert!(measured.tflops.unwrap() > 0.0, "{measured:?}");
        assert!(
            measured.memory_bandwidth_gbps.unwrap() > 0.1,
            "{measured:?}"
        );
        assert!(measured.max_batch_size_tested.unwrap() >= 1, "{measured:?}");
        assert!(measured.gpu_score.unwrap() > 0.0, "{measured:?}");
    }

    #[test]
    fn the_score_is_100_for_a_card_with_100_tflops_and_1_terabyte_a_second() {
        assert_eq!(score(100.0, 1000.0), 100.0);
        assert_eq!(score(25.0, 1000.0), 50.0);
    }

    #[actix_rt::test]
    async fn figures_are_kept_for_the_same_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let first = cached_or_measured(folder.path(), SHORT).await;
        let again = cached_or_measured(folder.path(), SHORT).await;
        assert_eq!(again, first);
        let mut other = first.machine.clone();
        other.cpu_cores += 1;
        assert_eq!(cached(&folder.path().join(FILE_NAME), &other), None);
    }
}
