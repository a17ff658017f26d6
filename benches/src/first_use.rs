//! First-use costs (driver load, context, pinning), always reported separately.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, ErrorKind, MemoryKind, TransferMethod};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    cuda,
    memory::Memory,
    row::{Row, Summary},
};

/// Initialises the device with this ordinal step by step and measures each step.
///
/// # Errors
/// If the library fails.
pub fn start(ordinal: u32, largest: usize) -> Result<(CrossBackendTransferManager, Vec<Row>)> {
    let (driver, seconds) = cuda::driver()?;
    let mut steps =
        Steps { rows: Vec::new(), device: DeviceId::Cuda(ordinal), simulated: driver.is_simulated() };
    steps.add("driver", 0, "loading and initialising the driver", seconds);
    let manager = CrossBackendTransferManager::builder().registration(false).exploration(false).build();
    steps.take("backend", 0, "listing the devices", || {
        manager.register_backend(CpuBackend::new()?)?;
        let config = CudaBackendConfig::default().with_devices(cuda::pair(ordinal)?);
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
        Ok(manager.copy(&pinned, &there).wait()?)
    })?;
    steps.take("transfer-back", 4096, "first transfer down", || Ok(manager.copy(&there, &back).wait()?))?;
    Memory::Ours(back).compare(0, &content).context("the first transfer")?;
    for row in steps.rows.iter_mut().filter(|row| row.id.contains("transfer")) {
        row.verified = true;
    }
    steps.take("pinned-memory", largest, "pinned allocation", || allocate(MemoryKind::Pinned, largest))?;
    steps.take("device-memory", largest, "device allocation", || allocate(MemoryKind::Device, largest))?;
    of_methods(&manager, &mut steps, cuda::pair(ordinal)?.get(1).copied())?;
    // The size of what was allocated stands in the identity; bytes are what moved.
    for row in steps.rows.iter_mut().filter(|row| !row.verified) {
        row.bytes = 0;
    }
    Ok((manager, steps.rows))
}

/// What methods pay at their first transfer: threads and pinned memory, a kernel, a pair of peers enabled and verified.
fn of_methods(manager: &CrossBackendTransferManager, steps: &mut Steps, peer: Option<u32>) -> Result<()> {
    const BYTES: usize = 1 << 20;
    let device = steps.device;
    let allocate = |device, kind| Ok::<_, anyhow::Error>(manager.allocate_for(device, kind, BYTES)?);
    let there = allocate(device, MemoryKind::Device)?;
    let pageable = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES)?;
    let content: Vec<u8> = (0..BYTES).map(|index| (index.wrapping_mul(0x9E37_79B1) >> 13) as u8).collect();
    let mapped = allocate(device, MemoryKind::Mapped)?;
    let mut firsts = vec![
        (
            TransferMethod::HostStaged,
            "host-staged",
            "first HostStaged, starts threads and pins its ring",
            pageable,
            there.clone(),
        ),
        (TransferMethod::ZeroCopy, "zero-copy", "first ZeroCopy, loads the kernel", mapped, there),
    ];
    if let Some(peer) = peer {
        let (from, to) =
            (allocate(device, MemoryKind::Device)?, allocate(DeviceId::Cuda(peer), MemoryKind::Device)?);
        let text = "first PeerToPeer, enables and verifies the pair";
        firsts.push((TransferMethod::PeerToPeer, "peer-to-peer", text, from, to));
    }
    for (method, id, text, src, dst) in firsts {
        Memory::Ours(src.clone()).write(0, &content)?;
        Memory::Ours(dst.clone()).poison()?;
        let begun = Instant::now();
        match manager.copy(&src, &dst).options(TransferOptions::new().only(method)).wait() {
            Ok(_) => steps.add(id, BYTES, text, begun.elapsed().as_secs_f64()),
            // The rows of all methods give the reason.
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            Err(error) => return Err(error).context(text),
        }
        Memory::Ours(dst).compare(0, &content).context(text)?;
        if let Some(row) = steps.rows.last_mut() {
            row.verified = true;
        }
    }
    Ok(())
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
