//! Default costs of lists by copy engines and by kernel, on an idle device.
//!
//! Measured on 2026-11-23 on an H200 with PCIe 5 x16, driver 580 (CUDA 13.0), by `transload-bench --only many`, but those within a
//! device: these are assumed.

use std::time::Duration;

use transload_core::{DeviceId, ListCost, ListModel, ListTime, ListWay, MemoryKind, Place, TransferPath};

const KIB: u64 = 1 << 10;

/// Microseconds of a list of no pieces, and of each piece by its length.
type Micros<'a> = (f64, &'a [(u64, f64)]);

const PINNED_UP: [Micros<'static>; 2] = [
    (
        10.0,
        &[(0, 1.7), (4 * KIB, 1.7), (24 * KIB, 1.55), (32 * KIB, 0.71), (64 * KIB, 1.6), (KIB * KIB, 19.35)],
    ),
    (20.0, &[(0, 0.1), (4 * KIB, 0.115), (32 * KIB, 0.66), (64 * KIB, 1.31), (KIB * KIB, 20.5)]),
];
const PINNED_DOWN: [Micros<'static>; 2] = [
    (10.0, &[(0, 0.38), (4 * KIB, 0.42), (32 * KIB, 0.7), (64 * KIB, 1.56), (KIB * KIB, 19.35)]),
    (10.0, &[(0, 0.08), (4 * KIB, 0.1), (32 * KIB, 0.645), (64 * KIB, 1.28), (KIB * KIB, 20.0)]),
];
const PAGEABLE_UP: [Micros<'static>; 2] = [
    (30.0, &[(0, 1.4), (4 * KIB, 1.44), (64 * KIB, 1.96), (KIB * KIB, 23.7)]),
    (30.0, &[(0, 0.4), (4 * KIB, 0.45), (64 * KIB, 1.95), (KIB * KIB, 23.8)]),
];
const PAGEABLE_DOWN: [Micros<'static>; 2] = [
    (30.0, &[(0, 0.9), (4 * KIB, 0.95), (64 * KIB, 1.72), (KIB * KIB, 22.9)]),
    (30.0, &[(0, 0.4), (4 * KIB, 0.45), (64 * KIB, 1.7), (KIB * KIB, 23.0)]),
];
/// A copy engine begins a piece in about a microsecond, the kernel has a tenth of the memory's rate.
const WITHIN: [Micros<'static>; 2] =
    [(8.0, &[(0, 1.0), (KIB * KIB, 1.5)]), (8.0, &[(0, 0.1), (KIB * KIB, 4.2)])];

fn costs_of(src: Place, dst: Place, ways: [Micros<'static>; 2]) -> impl Iterator<Item = ListCost> {
    let cost = move |(way, (fixed, lengths)): (ListWay, Micros<'_>)| {
        let lists = lengths.iter().flat_map(|(bytes, piece)| {
            [1, 1000].map(|pieces: u32| ListTime {
                pieces: pieces.into(),
                bytes: *bytes,
                time: Duration::from_secs_f64((fixed + piece * f64::from(pieces)) / 1e6),
            })
        });
        let model = ListModel::through(&lists.collect::<Vec<_>>())?;
        Some(ListCost { path: TransferPath::new(src, dst), way, exclusive: true, model })
    };
    [ListWay::CopyEngine, ListWay::CopyKernel].into_iter().zip(ways).filter_map(cost)
}

/// Returns the default costs of the lists of one device's paths.
pub(crate) fn of(device: DeviceId) -> impl Iterator<Item = ListCost> {
    let there = Place::new(device, MemoryKind::Device);
    let kinds = [
        (MemoryKind::Pageable, PAGEABLE_UP, PAGEABLE_DOWN),
        (MemoryKind::Pinned, PINNED_UP, PINNED_DOWN),
        (MemoryKind::Mapped, PINNED_UP, PINNED_DOWN),
    ];
    let of_host = kinds.into_iter().flat_map(move |(kind, up, down)| {
        let host = Place::new(DeviceId::Cpu, kind);
        costs_of(host, there, up).chain(costs_of(there, host, down))
    });
    of_host.chain(costs_of(there, there, WITHIN))
}
