//! Costs before anything was measured on this machine.
//!
//! Source: measured on H200 machines with PCIe 5 x16, driver 580 (CUDA 13.0): docs/benchmarks. Unified memory began each
//! measurement where it was not needed. What was not measured says so where it stands.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

/// Bytes and microseconds of a method on a path.
type Curve = [(u64, f64)];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The driver's own copy from pageable memory, and to it.
const PAGEABLE_UP: &Curve = &[
    (4 * KIB, 7.9),
    (64 * KIB, 17.0),
    (MIB, 91.0),
    (16 * MIB, 1130.0),
    (128 * MIB, 9100.0),
    (256 * MIB, 24_400.0),
];
const PAGEABLE_DOWN: &Curve = &[
    (4 * KIB, 11.6),
    (64 * KIB, 19.7),
    (MIB, 117.0),
    (16 * MIB, 1225.0),
    (128 * MIB, 10_900.0),
    (256 * MIB, 19_300.0),
];
/// The same by eight threads and a ring of pinned slots. Threads that sleep are slower to begin than those of the
/// benchmark: what they take then is added to the small sizes.
const STAGED_UP: &Curve =
    &[(64 * KIB, 60.0), (MIB, 120.0), (16 * MIB, 663.0), (128 * MIB, 3230.0), (256 * MIB, 5790.0)];
const STAGED_DOWN: &Curve =
    &[(64 * KIB, 60.0), (MIB, 110.0), (16 * MIB, 626.0), (128 * MIB, 3560.0), (256 * MIB, 6050.0)];
/// Into unified memory that is on the host, by the driver's copy, by staging, and by the host's threads and a migration.
const DIRECT_INTO_UNIFIED: &Curve =
    &[(4 * KIB, 48.6), (64 * KIB, 88.0), (MIB, 248.0), (16 * MIB, 2834.0), (256 * MIB, 34_600.0)];
const STAGED_INTO_UNIFIED: &Curve =
    &[(4 * KIB, 98.0), (64 * KIB, 128.0), (MIB, 400.0), (16 * MIB, 3020.0), (256 * MIB, 38_200.0)];
const MOVED_INTO_UNIFIED: &Curve =
    &[(4 * KIB, 61.0), (64 * KIB, 73.0), (MIB, 211.0), (16 * MIB, 1640.0), (256 * MIB, 21_300.0)];
/// Out of unified memory that is on the device, likewise.
const DIRECT_OUT_OF_UNIFIED: &Curve =
    &[(4 * KIB, 14.5), (64 * KIB, 23.0), (MIB, 118.0), (16 * MIB, 1173.0), (256 * MIB, 17_900.0)];
const STAGED_OUT_OF_UNIFIED: &Curve =
    &[(64 * KIB, 60.0), (MIB, 127.0), (16 * MIB, 638.0), (128 * MIB, 3130.0), (256 * MIB, 6320.0)];
const MOVED_OUT_OF_UNIFIED: &Curve =
    &[(4 * KIB, 62.0), (64 * KIB, 71.0), (MIB, 210.0), (16 * MIB, 1290.0), (256 * MIB, 23_300.0)];
/// Between unified memory that is on the host and the device's own.
const DIRECT_WITHIN: &Curve =
    &[(4 * KIB, 39.0), (64 * KIB, 65.0), (MIB, 115.0), (16 * MIB, 1690.0), (256 * MIB, 22_000.0)];
const MOVED_WITHIN: &Curve =
    &[(4 * KIB, 23.5), (64 * KIB, 27.0), (MIB, 49.5), (16 * MIB, 384.0), (256 * MIB, 5740.0)];

fn curve(path: TransferPath, method: TransferMethod, points: &Curve) -> Option<PathCost> {
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

/// Moving unified memory as a whole. Measured from pageable memory; the host's threads read other host memory as fast.
fn migrations(host: impl Fn(MemoryKind) -> Place, here: impl Fn(MemoryKind) -> Place) -> Vec<PathCost> {
    let unified = here(MemoryKind::Unified);
    let mut costs = Vec::new();
    let mut moved = |src, dst, points| {
        costs.extend(curve(TransferPath::new(src, dst), TransferMethod::UnifiedMemory, points));
    };
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped] {
        moved(host(kind), unified, MOVED_INTO_UNIFIED);
        moved(unified, host(kind), MOVED_OUT_OF_UNIFIED);
    }
    for other in [MemoryKind::Device, MemoryKind::Unified] {
        moved(unified, here(other), MOVED_WITHIN);
    }
    moved(here(MemoryKind::Device), unified, MOVED_WITHIN);
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
        // Measured for the device's own memory. For unified memory this is a guess, not a measurement: where its pages
        // have to migrate first it takes longer, as the curves of pageable memory show.
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
        let [direct_up, direct_down, staged_up, staged_down] = match near {
            MemoryKind::Device => [PAGEABLE_UP, PAGEABLE_DOWN, STAGED_UP, STAGED_DOWN],
            _ => [DIRECT_INTO_UNIFIED, DIRECT_OUT_OF_UNIFIED, STAGED_INTO_UNIFIED, STAGED_OUT_OF_UNIFIED],
        };
        costs.extend(curve(up, TransferMethod::DirectCopy, direct_up));
        costs.extend(curve(down, TransferMethod::DirectCopy, direct_down));
        costs.extend(curve(up, TransferMethod::HostStaged, staged_up));
        costs.extend(curve(down, TransferMethod::HostStaged, staged_down));
        for far in [MemoryKind::Device, MemoryKind::Unified] {
            if near == MemoryKind::Device && far == MemoryKind::Device {
                costs.push(direct(here(near), here(far), 7.0, 2000.0));
            } else {
                let within = TransferPath::new(here(near), here(far));
                costs.extend(curve(within, TransferMethod::DirectCopy, DIRECT_WITHIN));
            }
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
