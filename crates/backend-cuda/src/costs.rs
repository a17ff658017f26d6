//! Costs before anything was measured on this machine.
//!
//! Source: measured on an H200 with PCIe 5 x16, driver 580 (CUDA 13.0), plain programs on the raw driver: docs/benchmarks.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

/// The default costs of one device's paths.
pub(crate) fn of(device: DeviceId) -> Vec<PathCost> {
    let micros = |us: f64| Duration::from_secs_f64(us / 1e6);
    let direct = |src: Place, dst: Place, latency: f64, gigabytes: f64| PathCost {
        path: TransferPath::new(src, dst),
        method: TransferMethod::DirectCopy,
        model: CostModel::linear(micros(latency), gigabytes * 1e9),
    };
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let here = |kind| Place::new(device, kind);
    let mut costs = Vec::new();
    for near in [MemoryKind::Device, MemoryKind::Unified] {
        for pinned in [MemoryKind::Pinned, MemoryKind::Mapped] {
            costs.push(direct(host(pinned), here(near), 7.6, 55.0));
            costs.push(direct(here(near), host(pinned), 8.3, 55.0));
        }
        costs.push(direct(host(MemoryKind::Pageable), here(near), 8.0, 9.0));
        costs.push(direct(here(near), host(MemoryKind::Pageable), 11.0, 14.0));
        for far in [MemoryKind::Device, MemoryKind::Unified] {
            costs.push(direct(here(near), here(far), 7.0, 2000.0));
        }
    }
    costs
}
