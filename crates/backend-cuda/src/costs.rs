//! Default costs.
//!
//! Source: the means of docs/benchmarks/2026-11-23-1xH200-limits.json and -second.json, rows `methods/`: H200 with PCIe 5 x16,
//! driver 580 (CUDA 13.0); 1 MiB staged into unified memory 2026-11-24-1xH200-limits-fourth.json; 1 MiB copied and moved into it, and copied within a device, the mean of those and 2026-11-26-1xH200-limits-fifth.json; between two devices 2026-11-21-2xH200-memory-and-streams.json. Unified memory began each measurement on the other side. Costs that were not measured say so. A test of
//! the facade compares the choices made by this table with the newest record.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The measured sizes, in bytes.
const SIZES: [u64; 6] = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 256 * MIB];
/// Time of a method at each size, in microseconds.
type Curve = [f64; SIZES.len()];

/// The driver's own copy from pageable memory, and to it.
const PAGEABLE_UP: Curve = [7.4, 16.1, 81.8, 954.3, 7683.6, 22_894.4];
const PAGEABLE_DOWN: Curve = [9.3, 16.6, 107.4, 1144.8, 8926.4, 18_118.7];
/// The same by staging buffers.
const STAGED_UP: Curve = [12.2, 18.5, 71.9, 472.3, 3022.6, 5936.9];
const STAGED_DOWN: Curve = [12.3, 20.2, 91.8, 674.9, 3129.0, 5755.4];
/// Between two devices that are no peers, by staging buffers.
const STAGED_ACROSS: Curve = [16.3, 19.4, 81.5, 574.2, 3195.7, 5890.3];
/// Into unified memory that is on the host: by the driver's copy, by staging, by host threads and a prefetch.
const DIRECT_INTO_UNIFIED: Curve = [41.9, 74.5, 257.6, 2724.8, 20_661.2, 37_523.3];
const STAGED_INTO_UNIFIED: Curve = [49.6, 82.5, 239.2, 2337.8, 18_576.5, 36_390.1];
const MOVED_INTO_UNIFIED: Curve = [27.0, 43.3, 242.1, 1719.1, 11_043.6, 19_590.6];
/// Out of unified memory that is on the device: likewise.
const DIRECT_OUT_OF_UNIFIED: Curve = [14.4, 20.6, 107.6, 1314.9, 9187.8, 18_228.0];
const STAGED_OUT_OF_UNIFIED: Curve = [16.6, 24.9, 103.0, 676.3, 3013.0, 5784.4];
const MOVED_OUT_OF_UNIFIED: Curve = [31.5, 44.1, 175.7, 1934.4, 12_249.5, 27_666.7];
/// Between unified memory that is on the host and device memory: the mean of both directions.
const DIRECT_WITHIN: Curve = [43.3, 72.9, 183.8, 1771.5, 12_322.8, 23_475.0];
const MOVED_WITHIN: Curve = [26.2, 30.3, 59.6, 377.0, 2765.4, 5530.6];

fn curve(path: TransferPath, method: TransferMethod, micros: Curve) -> Option<PathCost> {
    let points = SIZES.into_iter().zip(micros.map(|micros| Duration::from_secs_f64(micros / 1e6)));
    let points: Vec<_> = points.collect();
    CostModel::through(&points).map(|model| PathCost { path, method, model })
}

/// Returns the cost between devices by staging: down one link and up the other, in chunks.
pub(crate) fn across(src: DeviceId, dst: DeviceId) -> Option<PathCost> {
    let path = TransferPath::new(Place::new(src, MemoryKind::Device), Place::new(dst, MemoryKind::Device));
    curve(path, TransferMethod::HostStaged, STAGED_ACROSS)
}

/// Returns the costs of prefetching unified memory. Measured with pageable memory; host threads read other host memory
/// as fast.
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

/// Returns the default costs of one device's paths.
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
        // Measured for device memory. Assumed for unified memory, not measured: it takes longer if pages have to
        // migrate first, as the curves of pageable memory show.
        for pinned in [MemoryKind::Pinned, MemoryKind::Mapped] {
            costs.push(direct(host(pinned), here(near), 7.6, 55.0));
            costs.push(direct(here(near), host(pinned), 8.3, 55.0));
        }
        let (latency, up, down) = match near {
            MemoryKind::Device => (11.5, 51.0, 52.0),
            // The kernel faults pages in that are not resident.
            _ => (234.0, 8.0, 8.0),
        };
        // Measured for mapped memory, which is the same to the kernel as pinned memory.
        for pinned in [MemoryKind::Pinned, MemoryKind::Mapped] {
            costs.push(in_place(host(pinned), here(near), latency, up));
            costs.push(in_place(here(near), host(pinned), latency, down));
        }
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
                costs.push(direct(here(near), here(far), 10.0, 2000.0));
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

/// Returns the time of registering host memory and ending that: 2.6 ms for 64 MiB and 18 ms for 512 MiB on ordinary pages.
pub(crate) fn registration(bytes: u64) -> Duration {
    CostModel::linear(Duration::from_micros(30), 27e9).predict(bytes)
}

/// Returns the default cost between the memory of two peers.
pub(crate) fn between(src: DeviceId, dst: DeviceId) -> PathCost {
    PathCost {
        path: TransferPath::new(Place::new(src, MemoryKind::Device), Place::new(dst, MemoryKind::Device)),
        method: TransferMethod::PeerToPeer,
        model: CostModel::linear(Duration::from_micros(8), 390e9),
    }
}
