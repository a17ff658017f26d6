//! Costs before anything was measured on this machine.
//!
//! Source: measured on an H200 with PCIe 5 x16, driver 580 (CUDA 13.0), plain programs on the raw driver: docs/benchmarks.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

/// Bytes and microseconds of the driver's own copy from pageable memory.
const PAGEABLE_UP: [(u64, f64); 6] = [
    (4 << 10, 7.3),
    (64 << 10, 14.7),
    (1 << 20, 73.0),
    (16 << 20, 930.0),
    (48 << 20, 3100.0),
    (256 << 20, 25_600.0),
];
/// And to it.
const PAGEABLE_DOWN: [(u64, f64); 6] = [
    (4 << 10, 8.5),
    (64 << 10, 15.5),
    (1 << 20, 91.0),
    (16 << 20, 1250.0),
    (48 << 20, 3400.0),
    (256 << 20, 14_500.0),
];
/// The same by eight threads and a ring of pinned slots.
const STAGED_UP: [(u64, f64); 4] =
    [(64 << 10, 60.0), (1 << 20, 100.0), (16 << 20, 480.0), (256 << 20, 5600.0)];
/// And back.
const STAGED_DOWN: [(u64, f64); 4] =
    [(64 << 10, 70.0), (1 << 20, 120.0), (16 << 20, 560.0), (256 << 20, 6600.0)];

fn curve(path: TransferPath, method: TransferMethod, points: &[(u64, f64)]) -> Option<PathCost> {
    let points: Vec<_> =
        points.iter().map(|(bytes, micros)| (*bytes, Duration::from_secs_f64(micros / 1e6))).collect();
    CostModel::through(&points).map(|model| PathCost { path, method, model })
}

/// Between devices that do not reach each other: down one link and up the other, chunk by chunk.
pub(crate) fn across(src: DeviceId, dst: DeviceId) -> PathCost {
    PathCost {
        path: TransferPath::new(Place::new(src, MemoryKind::Device), Place::new(dst, MemoryKind::Device)),
        method: TransferMethod::HostStaged,
        model: CostModel::linear(Duration::from_micros(100), 40e9),
    }
}

/// Moving unified memory as a whole: from the host's side it is as slow as the host's threads and the migration together.
fn migrations(host: impl Fn(MemoryKind) -> Place, here: impl Fn(MemoryKind) -> Place) -> Vec<PathCost> {
    let moved = |src, dst, micros, gigabytes: f64| PathCost {
        path: TransferPath::new(src, dst),
        method: TransferMethod::UnifiedMemory,
        model: CostModel::linear(Duration::from_micros(micros), gigabytes * 1e9),
    };
    let unified = here(MemoryKind::Unified);
    let mut costs = Vec::new();
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped] {
        costs.push(moved(host(kind), unified, 100, 15.0));
        costs.push(moved(unified, host(kind), 120, 10.0));
    }
    for other in [MemoryKind::Device, MemoryKind::Unified] {
        costs.push(moved(unified, here(other), 30, 45.0));
    }
    costs.push(moved(here(MemoryKind::Device), unified, 30, 45.0));
    costs
}

/// The default costs of one device's paths.
pub(crate) fn of(device: DeviceId) -> Vec<PathCost> {
    let micros = |us: f64| Duration::from_secs_f64(us / 1e6);
    let direct = |src: Place, dst: Place, latency: f64, gigabytes: f64| PathCost {
        path: TransferPath::new(src, dst),
        method: TransferMethod::DirectCopy,
        model: CostModel::linear(micros(latency), gigabytes * 1e9),
    };
    let in_place = |src, dst, latency, gigabytes| PathCost {
        method: TransferMethod::ZeroCopy,
        ..direct(src, dst, latency, gigabytes)
    };
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let here = |kind| Place::new(device, kind);
    let mut costs = Vec::new();
    for near in [MemoryKind::Device, MemoryKind::Unified] {
        for pinned in [MemoryKind::Pinned, MemoryKind::Mapped] {
            costs.push(direct(host(pinned), here(near), 7.6, 55.0));
            costs.push(direct(here(near), host(pinned), 8.3, 55.0));
        }
        let (latency, up, down) = match near {
            MemoryKind::Device => (11.5, 51.0, 52.0),
            // The device's threads fault pages in where they are not resident.
            _ => (234.0, 8.0, 8.0),
        };
        costs.push(in_place(host(MemoryKind::Mapped), here(near), latency, up));
        costs.push(in_place(here(near), host(MemoryKind::Mapped), latency, down));
        let (up, down) = (
            TransferPath::new(host(MemoryKind::Pageable), here(near)),
            TransferPath::new(here(near), host(MemoryKind::Pageable)),
        );
        costs.extend(curve(up, TransferMethod::DirectCopy, &PAGEABLE_UP));
        costs.extend(curve(down, TransferMethod::DirectCopy, &PAGEABLE_DOWN));
        costs.extend(curve(up, TransferMethod::HostStaged, &STAGED_UP));
        costs.extend(curve(down, TransferMethod::HostStaged, &STAGED_DOWN));
        for far in [MemoryKind::Device, MemoryKind::Unified] {
            costs.push(direct(here(near), here(far), 7.0, 2000.0));
        }
        if near == MemoryKind::Unified {
            costs.extend(migrations(host, here));
        }
    }
    costs
}

/// The default cost of the path from one device's memory to another's, where they are peers.
pub(crate) fn between(src: DeviceId, dst: DeviceId) -> PathCost {
    PathCost {
        path: TransferPath::new(Place::new(src, MemoryKind::Device), Place::new(dst, MemoryKind::Device)),
        method: TransferMethod::PeerToPeer,
        model: CostModel::linear(Duration::from_micros(7), 390e9),
    }
}
