//! Rows of costs under load: transfers in flight, threads that allocate, lease and copy, small transfers next to large ones,
//! and work on one device next to another's.
//!
//! Each is compared with raw calls or the same work alone, in one run. The host's rows need no device, so they are never
//! simulated.

mod advising;
mod allocating;
mod awaiting;
mod blocked;
mod confined;
mod downloading;
mod host;
mod in_flight;
mod large;
mod leasing;
mod planning;
mod polling;
mod profiling;
mod pytorch;
mod staging;
mod urgent;

use std::time::Instant;

use anyhow::{Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, MemoryKind, RawBuffer};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    comparison::{Fixture, Parts},
    cuda,
    options::Options,
    row::Row,
};

/// Prefix of the rows' ids.
const GROUP: &str = "scaling";

/// Every part that needs a device, in order.
pub(crate) const PARTS: Parts = (
    GROUP,
    &[
        ("transfers in flight", in_flight::rows),
        ("allocating buffers", allocating::rows),
        ("leasing by default", leasing::rows),
        ("staged transfers", staging::rows),
        ("staged beside a blocked download", blocked::rows),
        ("polling a pool", polling::rows),
        ("urgent beside large and compute", urgent::rows),
        ("small downloads", downloading::rows),
        ("planning", planning::rows),
        ("awaiting", awaiting::rows),
        ("profiling", profiling::rows),
        ("advice", advising::rows),
        ("large copies", large::rows),
        ("pageable beside PyTorch", pytorch::rows),
        ("confined", confined::rows),
    ],
);

/// The part of the host alone.
const HOST: &str = "host to host";

/// Measures the rows of the host alone. Errors go to `failures`.
pub fn host_rows(options: &Options, failures: &mut Vec<String>, begin: &dyn Fn(&str)) -> Vec<Row> {
    if !options.wants_part(HOST) {
        return Vec::new();
    }
    begin(&format!("{GROUP}, {HOST}"));
    let rows = host::rows(options).unwrap_or_else(|error| {
        failures.push(format!("{GROUP}, {HOST}: {error:#}"));
        Vec::new()
    });
    rows.into_iter().map(|row| row.of_part(HOST)).collect()
}

/// A transfer manager over the fixture's device, the next one if present, and the host.
struct Library {
    manager: CrossBackendTransferManager,
    device: DeviceId,
    peer: Option<DeviceId>,
}

impl Library {
    fn new(fixture: &Fixture<'_>) -> Result<Self> {
        let ordinals = cuda::pair(fixture.device.ordinal())?;
        let peer = ordinals.get(1).map(|ordinal| DeviceId::Cuda(*ordinal));
        let manager = CrossBackendTransferManager::builder().registration(false).build();
        manager.register_backend(CpuBackend::new()?)?;
        manager.register_backend(CudaBackend::open(&CudaBackendConfig::default().with_devices(ordinals))?)?;
        Ok(Self { manager, device: fixture.device.id(), peer })
    }

    /// Allocates device memory, or host memory for the device.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.allocate_for(self.device, kind, bytes)
    }

    fn allocate_for(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let device = if kind == MemoryKind::Pageable { DeviceId::Cpu } else { device };
        Ok(self.manager.allocate_for(device, kind, bytes)?)
    }

    /// Fails if anything is still allocated.
    fn finish(self) -> Result<()> {
        self.manager.drain()?;
        for (name, counts) in self.manager.resource_counts() {
            ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
        }
        Ok(())
    }
}

/// Returns the nanoseconds since `begun` for each of `many`.
fn each(begun: Instant, many: usize) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / many as f64
}

/// Returns the nanoseconds of each of `many` calls in a row.
fn timed(many: usize, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..many {
        once()?;
    }
    Ok(each(begun, many))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        let rows = tested_on_the_software_driver(PARTS);
        // Those that copy are verified: the others say that they move no bytes.
        let copies = ["/planning/", "/profiling/", "/with-copy/"];
        for row in rows.iter().filter(|row| copies.iter().any(|part| row.id.contains(part))) {
            assert!(row.verified && row.bytes > 0, "{}", row.id);
        }
        let beside: Vec<_> = rows.iter().filter(|row| row.id.starts_with("scaling/pytorch/")).collect();
        assert_eq!(beside.len(), 4);
        for row in beside {
            assert!(row.path.contains("no PyTorch: ") && row.reference.is_none() && row.verified, "{row:?}");
        }
    }

    #[test]
    fn host_rows_need_no_device() {
        let options = Options::parse_from(["transload-bench", "--quick", "--repetitions", "2"]);
        let mut failures = Vec::new();
        let rows = host_rows(&options, &mut failures, &|_| ());
        assert_eq!(failures, Vec::<String>::new());
        assert!(rows.len() >= 5 && rows.iter().all(|row| row.verified && !row.simulated), "{rows:?}");
    }
}
