//! How loaded the machine is, sampled for `worker_metrics` and `training_progress`.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sysinfo::System;

use super::BYTES_PER_GB;
use super::gpu::Gpu;
use super::probe::usable_memory_bytes;

/// The load at one moment. What the machine does not have or tell is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Use of the GPU, in percent.
    pub gpu_utilization: Option<f64>,
    /// Memory of the GPU in use, in GB of 2^30 bytes.
    pub gpu_memory_used: Option<f64>,
    /// Memory of the GPU, in GB of 2^30 bytes.
    pub gpu_memory_total: Option<f64>,
    /// Use of the processor since the sample before, in percent of all its cores.
    pub cpu_utilization: Option<f64>,
    /// Memory in use, in GB of 2^30 bytes.
    pub ram_used: Option<f64>,
    /// Memory that this process may use, in GB of 2^30 bytes.
    pub ram_total: Option<f64>,
}

/// Takes a sample every so often on a thread of its own, because a driver's library may take its time;
/// ends with this value.
#[derive(Debug)]
pub struct LoadWatch {
    newest: Arc<Mutex<Option<Load>>>,
    _running: Sender<()>,
}

impl LoadWatch {
    /// Begins to sample. Without a thread for it there are no samples, which is logged.
    pub fn start(interval: Duration) -> Self {
        let newest = Arc::new(Mutex::new(None));
        let shared = newest.clone();
        let (running, ended) = channel();
        let sampling = move || {
            let mut meter = LoadMeter::open();
            loop {
                let load = meter.sample();
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(load);
                if ended.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new()
            .name("load".to_owned())
            .spawn(sampling)
        {
            tracing::warn!(%error, "the machine's load cannot be sampled");
        }
        Self {
            newest,
            _running: running,
        }
    }

    /// The newest sample; none before the first.
    pub fn newest(&self) -> Option<Load> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes samples.
struct LoadMeter {
    system: Option<System>,
    gpu: Option<Gpu>,
}

impl LoadMeter {
    fn open() -> Self {
        Self {
            system: System::new()
                .inspect_err(|error| tracing::warn!(%error, "the machine's load cannot be read"))
                .ok(),
            gpu: Gpu::open(),
        }
    }

    fn sample(&mut self) -> Load {
        let mut load = Load::default();
        if let Some(system) = &mut self.system {
            system.refresh_cpu_usage();
            system.refresh_memory();
            load.cpu_utilization = Some(rounded(f64::from(system.global_cpu_usage())));
            load.ram_used = Some(rounded(system.used_memory() as f64 / BYTES_PER_GB));
            load.ram_total = Some(rounded(usable_memory_bytes(system) as f64 / BYTES_PER_GB));
        }
        if let Some(gpu) = self.gpu.as_ref().and_then(Gpu::load) {
            load.gpu_utilization = Some(gpu.utilization_percent);
            load.gpu_memory_used = Some(rounded(gpu.memory_used_gb));
            load.gpu_memory_total = Some(rounded(gpu.memory_total_gb));
        }
        load
    }
}

/// To two decimals: more would be noise on the wire.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_memory_and_a_use_of_the_processor_in_percent() {
        let mut meter = LoadMeter::open();
        let load = meter.sample();
        assert!(
            (0.0..=100.0).contains(&load.cpu_utilization.unwrap()),
            "{load:?}"
        );
        let (used, total) = (load.ram_used.unwrap(), load.ram_total.unwrap());
        assert!(used > 0.0 && total > 0.0, "{load:?}");
    }
}
