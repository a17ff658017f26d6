//! Default costs.
//!
//! Source: rows `methods/` of records under docs/benchmarks, of an H200 with PCIe 5 x16, driver 580 (CUDA 13.0): between pageable and device
//! memory, and out of unified memory, 2026-11-30-1xH200-table.json, where 4 KiB of staged downloads are the mean of 256 bytes to 32 KiB; the others
//! 2026-11-27-1xH200-limits-eighth.json, with 128 KiB interpolated. 4 MiB moved into unified memory is a
//! mean with earlier records; between two devices 2026-11-21-2xH200-memory-and-streams.json, 128 KiB, 256 KiB and 4 MiB interpolated.
//! Unified memory began each measurement on the other side. Costs that were not measured say so. A test of the facade compares the choices
//! made by this table with the newest record.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The measured sizes, in bytes.
const SIZES: [u64; 9] =
    [4 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 128 * MIB, 256 * MIB];
/// Time of a method at each size, in microseconds.
type Curve = [f64; SIZES.len()];

/// The driver's own copy from pageable memory, and to it.
const PAGEABLE_UP: Curve = [8.4, 17.3, 19.8, 29.8, 94.7, 342.6, 1209.8, 14_844.1, 24_412.1];
const PAGEABLE_DOWN: Curve = [8.6, 16.3, 23.2, 35.5, 106.7, 320.3, 1144.8, 8844.0, 17_359.5];
/// The same by staging buffers.
const STAGED_UP: Curve = [15.3, 15.2, 22.4, 28.5, 52.2, 131.5, 457.9, 3048.7, 5623.3];
const STAGED_DOWN: Curve = [12.4, 16.3, 23.2, 33.4, 83.2, 222.3, 611.2, 3072.9, 5941.3];
/// Between two devices that are no peers, by staging buffers.
const STAGED_ACROSS: Curve = [16.3, 19.4, 23.5, 31.8, 81.5, 180.0, 574.2, 3195.7, 5890.3];
/// Into unified memory that is on the host: by the driver's copy, by staging, by host threads and a prefetch.
const DIRECT_INTO_UNIFIED: Curve = [57.0, 96.5, 106.3, 125.9, 249.4, 792.9, 3533.8, 24_606.3, 48_033.2];
const STAGED_INTO_UNIFIED: Curve = [64.1, 98.7, 108.8, 129.0, 260.1, 601.6, 2232.5, 20_840.5, 41_415.6];
const MOVED_INTO_UNIFIED: Curve = [40.3, 57.8, 70.0, 94.3, 226.3, 604.0, 1721.8, 11_805.2, 21_777.1];
/// Out of unified memory that is on the device: likewise.
const DIRECT_OUT_OF_UNIFIED: Curve = [12.7, 20.3, 25.5, 39.3, 108.9, 353.2, 1214.2, 11_017.7, 21_838.5];
const STAGED_OUT_OF_UNIFIED: Curve = [14.0, 18.8, 23.6, 30.5, 60.5, 138.7, 481.5, 2897.2, 5625.2];
const MOVED_OUT_OF_UNIFIED: Curve = [32.6, 48.5, 55.5, 67.4, 174.9, 600.7, 2049.9, 12_341.6, 30_004.6];
/// Between unified memory that is on the host and device memory: the mean of both directions.
const DIRECT_WITHIN: Curve = [55.7, 92.6, 100.1, 115.2, 163.8, 555.0, 1820.2, 10_982.3, 21_500.8];
const MOVED_WITHIN: Curve = [26.4, 31.0, 31.9, 33.7, 63.3, 127.3, 380.3, 2752.1, 5478.9];

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
