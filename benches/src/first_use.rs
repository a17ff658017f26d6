//! What only the first use pays: the driver's start, the context, pinning. Apart from everything else, never hidden.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, MemoryKind};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    cuda,
    memory::Memory,
    row::{Row, Summary},
};

/// Starts everything, step by step, on the device with this ordinal.
///
/// # Errors
/// Those of the library.
pub fn start(ordinal: u32, largest: usize) -> Result<(CrossBackendTransferManager, Vec<Row>)> {
    let (driver, seconds) = cuda::driver()?;
    let mut steps =
        Steps { rows: Vec::new(), device: DeviceId::Cuda(ordinal), simulated: driver.is_simulated() };
    steps.add("driver", 0, "loading and initialising the driver", seconds);
    let manager = CrossBackendTransferManager::new();
    steps.take("backend", 0, "listing the devices", || {
        manager.register_backend(CpuBackend::new()?)?;
        let config = CudaBackendConfig::default().with_devices([ordinal]);
        Ok(manager.register_backend(CudaBackend::open(&config)?)?)
    })?;
    let device = steps.device;
    let allocate = |kind, bytes| Ok(manager.allocate_for(device, kind, bytes)?);
    let there = steps.take("device-memory", 4096, "first device allocation, makes the context", || {
        allocate(MemoryKind::Device, 4096)
    })?;
    let pinned = steps
        .take("pinned-memory", 4096, "first pinned allocation", || allocate(MemoryKind::Pinned, 4096))?;
    let content: Vec<u8> =
        (0..4096_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    Memory::Ours(pinned.clone()).write(0, &content)?;
    let back = allocate(MemoryKind::Pinned, 4096)?;
    steps.take("transfer", 4096, "first transfer up, makes the streams", || {
        Ok(manager.transfer(&pinned, &there).wait()?)
    })?;
    steps.take("transfer-back", 4096, "first transfer down", || {
        Ok(manager.transfer(&there, &back).wait()?)
    })?;
    Memory::Ours(back).compare(0, &content).context("the first transfer")?;
    for row in steps.rows.iter_mut().filter(|row| row.id.contains("transfer")) {
        row.verified = true;
    }
    steps.take("pinned-memory", largest, "pinned allocation", || allocate(MemoryKind::Pinned, largest))?;
    steps.take("device-memory", largest, "device allocation", || allocate(MemoryKind::Device, largest))?;
    Ok((manager, steps.rows))
}

struct Steps {
    rows: Vec<Row>,
    device: DeviceId,
    simulated: bool,
}

impl Steps {
    fn take<T>(&mut self, id: &str, bytes: usize, text: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let made = step().with_context(|| format!("first use: {text}"))?;
        self.add(id, bytes, text, begun.elapsed().as_secs_f64());
        Ok(made)
    }

    fn add(&mut self, id: &str, bytes: usize, text: &str, seconds: f64) {
        let id = format!("first-use/{}/{id}/{bytes}", self.device);
        let path = format!("first use of {}", self.device);
        let row = Row::new(id, path, text, bytes as u64, "us", Summary::single(seconds * 1e6));
        self.rows.push(row.obtained(self.simulated, false));
    }
}
