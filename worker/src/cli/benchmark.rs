//! `trainyard-worker benchmark`: measures this machine now, and prints the figures.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::error::CliError;
use super::output::Output;
use crate::config::seconds;
use crate::hardware::benchmark;
use crate::hardware::{Machine, rounded};

/// Options of `benchmark`.
#[derive(Args)]
pub struct Options {
    /// About how long to measure, in seconds
    #[arg(long, env = "BENCHMARK_SECONDS", default_value = "6", value_name = "SECONDS", value_parser = seconds)]
    seconds: Duration,
}

/// Measures and prints.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    let measured = benchmark::measure(Machine::probe(), options.seconds);
    let (machine, figures) = (&measured.machine, &measured.benchmark);
    let gpu = machine.gpu.as_ref().map_or_else(
        || "none".to_owned(),
        |gpu| {
            format!(
                "{}, {:.0} GB (not used by this version)",
                gpu.name, gpu.memory_gb
            )
        },
    );
    let shown =
        |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let in_words = format!(
        "processor         {}, {} cores\n\
         memory            {:.1} GB\n\
         gpu               {gpu}\n\
         matrix products   {} TFLOP/s\n\
         memory bandwidth  {} GB/s\n\
         largest batch     {} sequences of 128 tokens\n\
         score             {}\n\
         measured in       {} s",
        machine.cpu_name,
        machine.cpu_cores,
        rounded(machine.ram_total_gb),
        shown(figures.tflops),
        shown(figures.memory_bandwidth_gbps),
        figures.max_batch_size_tested.unwrap_or(0),
        shown(figures.gpu_score),
        shown(figures.benchmark_duration_seconds),
    );
    output.result(
        &json!({"machine": machine, "benchmark": figures}),
        &in_words,
    )
}
