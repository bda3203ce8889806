//! What the machine is: processor, memory, graphics card, operating system.

use serde::{Deserialize, Serialize};
use sysinfo::System;

use super::BYTES_PER_GB;
use super::gpu::Gpu;

/// The machine, as far as training cares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu_name: String,
    /// Physical cores.
    pub cpu_cores: u64,
    /// Memory that this process may use, in GB of 2^30 bytes.
    pub ram_total_gb: f64,
    /// Operating system, as a person would say it.
    pub os: String,
    /// The first NVIDIA GPU, if there is one.
    pub gpu: Option<GpuInfo>,
}

/// A graphics card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Its name.
    pub name: String,
    /// Its memory, in GB of 2^30 bytes.
    pub memory_gb: f64,
    /// The driver's version.
    pub driver: String,
}

impl Machine {
    /// Looks at this machine. What cannot be found out is left empty or zero.
    pub fn probe() -> Self {
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_memory();
            system.refresh_cpu_all();
        }
        let cpus = system.as_ref().map_or(&[][..], System::cpus);
        let logical = std::thread::available_parallelism().map_or(1, usize::from);
        let physical = System::physical_core_count().unwrap_or(logical);
        Self {
            cpu_name: cpus
                .first()
                .map(|cpu| cpu.brand().trim().to_owned())
                .filter(|name| !name.is_empty())
                .unwrap_or_else(System::cpu_arch),
            cpu_cores: physical.min(logical) as u64,
            ram_total_gb: system.as_ref().map_or(0, usable_memory_bytes) as f64 / BYTES_PER_GB,
            os: System::long_os_version().unwrap_or_default(),
            gpu: Gpu::open().map(|gpu| GpuInfo {
                name: gpu.name().to_owned(),
                memory_gb: gpu.memory_gb(),
                driver: gpu.driver().to_owned(),
            }),
        }
    }

    /// Tells apart machines on which a benchmark gives other figures.
    pub fn fingerprint(&self) -> String {
        let gpu = self.gpu.as_ref().map_or_else(String::new, |gpu| {
            format!(
                "{} {:.1} GB, driver {}",
                gpu.name, gpu.memory_gb, gpu.driver
            )
        });
        format!(
            "{}; {} cores; {:.1} GB; {gpu}",
            self.cpu_name, self.cpu_cores, self.ram_total_gb
        )
    }
}

/// The machine's memory, or the container's limit where that is lower.
pub(super) fn usable_memory_bytes(system: &System) -> u64 {
    let limit = system
        .cgroup_limits()
        .map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(limit)
}

/// Memory that may still be used: what the system has, or the container's limit leaves where that is less.
/// Where neither can be read, as if there were no end to it.
pub(crate) fn free_memory_bytes() -> u64 {
    let Ok(mut system) = System::new() else {
        return u64::MAX;
    };
    system.refresh_memory();
    let left = system.cgroup_limits().map_or(u64::MAX, |limits| {
        limits.total_memory.saturating_sub(limits.rss)
    });
    match system.available_memory() {
        0 => left,
        available => available.min(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_a_core_and_memory() {
        let machine = Machine::probe();
        assert!(!machine.cpu_name.is_empty());
        assert!(machine.cpu_cores >= 1);
        assert!(machine.ram_total_gb > 0.1, "{machine:?}");
        assert_eq!(machine.fingerprint(), Machine::probe().fingerprint());
    }

    #[test]
    fn some_memory_is_free_and_no_more_than_there_is() {
        let total = (Machine::probe().ram_total_gb * BYTES_PER_GB) as u64;
        let free = free_memory_bytes();
        assert!(free > 0 && free <= total + (1 << 20), "{free} of {total}");
    }
}
