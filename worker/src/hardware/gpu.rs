//! The first NVIDIA GPU, through the driver's own library where there is one.

use nvml_wrapper::Nvml;

use super::BYTES_PER_GB;

/// The driver's library, opened once; machines without an NVIDIA driver have none.
pub(super) struct Gpu {
    nvml: Nvml,
    name: String,
    memory_gb: f64,
    driver: String,
}

/// How loaded a GPU is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GpuLoad {
    pub(super) utilization_percent: f64,
    pub(super) memory_used_gb: f64,
    pub(super) memory_total_gb: f64,
}

impl Gpu {
    pub(super) fn open() -> Option<Self> {
        let nvml = Nvml::init()
            .inspect_err(|error| tracing::debug!(%error, "no nvidia driver"))
            .ok()?;
        let (name, memory) = {
            let device = nvml.device_by_index(0).ok()?;
            (device.name().ok()?, device.memory_info().ok()?)
        };
        let driver = nvml.sys_driver_version().unwrap_or_default();
        Some(Self {
            nvml,
            name,
            memory_gb: memory.total as f64 / BYTES_PER_GB,
            driver,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn memory_gb(&self) -> f64 {
        self.memory_gb
    }

    pub(super) fn driver(&self) -> &str {
        &self.driver
    }

    /// None where the driver does not tell, as after the card has failed.
    pub(super) fn load(&self) -> Option<GpuLoad> {
        let device = self.nvml.device_by_index(0).ok()?;
        let utilization = device.utilization_rates().ok()?;
        let memory = device.memory_info().ok()?;
        Some(GpuLoad {
            utilization_percent: f64::from(utilization.gpu),
            memory_used_gb: memory.used as f64 / BYTES_PER_GB,
            memory_total_gb: memory.total as f64 / BYTES_PER_GB,
        })
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
