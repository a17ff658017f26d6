//! Default costs of lists on an idle device. Whether they go through its memory is decided by a rule of the transfer manager instead, which is
//! of lists both ways at once.
//!
//! Source: medians of four runs of `transload calibrate` on an H200 with PCIe 5 x16, driver 580 (CUDA 13.0), 16 processors: of pageable memory on
//! 2026-11-29, with pieces that are scattered on the device, between two H200 linked by NVLink on 2026-11-29 (two runs), of all else on 2026-11-28.
//! Lists of 300 pieces, and of the downloads to pageable memory 16 pieces of 16 KiB, 64 KiB and 1 MiB, and 256 of 64 KiB, one by one 16 of 1 MiB, are
//! medians of 30 copies by `copy_many` on 2026-11-30.

use std::time::Duration;

use transload_core::{
    DeviceId, ListCost, ListModel, ListTime, ListWay, MemoryKind, PeerAccess, Place, TransferPath,
};

use crate::{device::DeviceState, peers::Peers};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Lengths of pieces, in bytes, and how many of them were measured, or fewer; one by one [others](SINGLES). What is staged reaches its rate only
/// by long lists.
const LENGTHS: [(u64, &[u64]); 4] = [
    (KIB, &[1, 4, 16, 1024]),
    (16 * KIB, &[1, 4, 16, 1024]),
    (64 * KIB, &[1, 4, 16, 256]),
    (MIB, &[1, 3, 4, 16, 300]),
];
const SINGLES: &[u64] = &[1, 3, 4, 16, 300];

/// Microseconds of lists, in the order of [`LENGTHS`]; of a length that was not measured, nothing.
type Micros = [&'static [f64]; LENGTHS.len()];
const WAYS: [ListWay; 3] = [ListWay::CopyEngine, ListWay::CopyKernel, ListWay::OneByOne];
type Ways = [Micros; WAYS.len()];

#[rustfmt::skip]
const PAGEABLE_UP: Ways = [
    [&[12.1, 21.5, 42.1, 1_348.9], &[19.8, 51.6, 137.5, 1_752.8], &[21.7, 42.4, 78.0, 532.5], &[56.2, 126.8, 159.3, 491.6, 6_680.0]],
    [&[16.7, 20.5, 22.4, 147.9], &[19.1, 27.6, 43.1, 564.5], &[24.1, 37.7, 66.1, 527.2], &[60.6, 131.3, 157.4, 511.2, 7_480.0]],
    [&[8.8, 17.2, 20.6, 59.4], &[12.6, 25.3, 27.5, 93.4], &[23.8, 42.1, 48.6, 154.3], &[60.5, 159.1, 183.8, 540.9]],
];
#[rustfmt::skip]
const PAGEABLE_DOWN: Ways = [
    [&[14.3, 19.3, 25.2, 873.5], &[15.9, 33.6, 40.0, 1_389.8], &[27.4, 50.8, 81.0, 606.0], &[89.7, 218.7, 242.7, 631.0, 6_540.0]],
    [&[16.9, 18.7, 20.2, 146.1], &[16.4, 25.1, 36.0, 754.0], &[24.9, 40.8, 79.0, 563.0], &[75.5, 146.1, 167.8, 628.0, 7_270.0]],
    [&[14.6, 32.5, 41.5, 161.7], &[16.4, 43.7, 57.8, 225.7], &[29.5, 82.1, 105.2, 405.9], &[92.2, 207.5, 226.9, 520.0, 9_650.0]],
];
#[rustfmt::skip]
const PINNED_UP: Ways = [
    [&[9.8, 18.2, 38.0, 1_707.3], &[14.6, 36.1, 122.0, 5_061.2], &[10.6, 20.5, 38.3, 576.1], &[33.5, 79.7, 99.8, 347.6]],
    [&[17.4, 18.0, 19.2, 78.4], &[18.6, 19.8, 24.9, 398.7], &[16.6, 22.0, 37.5, 383.8], &[40.3, 87.2, 110.6, 377.5]],
    [&[9.8, 19.5, 23.4, 75.8], &[14.3, 24.5, 28.3, 72.8], &[10.7, 21.2, 25.1, 73.0], &[34.0, 82.6, 105.6, 382.0]],
];
#[rustfmt::skip]
const PINNED_DOWN: Ways = [
    [&[9.9, 13.7, 26.0, 985.2], &[10.1, 15.0, 30.5, 1_246.1], &[11.0, 18.9, 45.0, 568.5], &[29.0, 73.7, 92.6, 337.8]],
    [&[14.7, 15.6, 16.4, 76.2], &[15.1, 16.7, 21.2, 388.7], &[16.2, 20.6, 38.3, 363.4], &[37.7, 80.7, 103.4, 363.9]],
    [&[10.1, 18.1, 21.1, 66.6], &[10.0, 18.2, 22.2, 77.1], &[10.7, 20.8, 23.3, 67.9], &[29.9, 74.7, 96.2, 363.4]],
];
#[rustfmt::skip]
const WITHIN: Ways = [
    [&[12.8, 28.8, 90.1, 5_292.7], &[13.2, 30.3, 99.5, 5_524.5], &[13.2, 27.7, 86.6, 1_258.9], &[13.8, 26.1, 31.2, 97.6]],
    [&[13.8, 14.8, 15.6, 54.0], &[14.5, 15.1, 16.4, 92.5], &[14.8, 15.3, 17.4, 65.6], &[18.2, 24.7, 26.7, 65.9]],
    [&[12.2, 26.9, 32.9, 113.1], &[12.5, 27.0, 34.1, 124.6], &[12.8, 26.1, 31.7, 109.9], &[13.5, 33.8, 42.7, 177.0]],
];
#[rustfmt::skip]
const BETWEEN: Ways = [
    [&[9.1, 12.9, 20.6, 738.2], &[9.4, 13.2, 21.3, 758.2], &[9.3, 13.7, 23.0, 230.6], &[12.0, 23.0, 23.8, 66.4]],
    [&[13.2, 13.9, 14.2, 60.4], &[13.6, 14.1, 14.9, 101.3], &[13.4, 14.8, 17.9, 88.2], &[17.5, 34.4, 40.3, 84.6]],
    [&[8.7, 18.3, 23.4, 95.3], &[8.9, 18.7, 23.5, 95.8], &[8.8, 18.5, 23.4, 97.4], &[11.6, 23.1, 27.9, 104.2]],
];

fn costs_of(src: Place, dst: Place, ways: Ways) -> impl Iterator<Item = ListCost> {
    let cost = move |(way, micros): (ListWay, Micros)| {
        let lists = LENGTHS.into_iter().zip(micros).flat_map(|((bytes, counts), micros)| {
            let counts = if way == ListWay::OneByOne { SINGLES } else { counts };
            counts.iter().zip(micros).map(move |(pieces, micros)| ListTime {
                pieces: *pieces,
                bytes,
                time: Duration::from_secs_f64(micros / 1e6),
            })
        });
        let model = ListModel::through(&lists.collect::<Vec<_>>())?;
        Some(ListCost { path: TransferPath::new(src, dst), way, exclusive: true, model })
    };
    WAYS.into_iter().zip(ways).filter_map(cost)
}

/// Returns the default costs of the lists of all paths. Those between devices that are no peers are staged, and have none.
pub(crate) fn all(states: &[DeviceState], peers: &Peers) -> Vec<ListCost> {
    let of_pair = |src: &DeviceState, dst: &DeviceState| {
        let are_peers = peers.access(src, dst).is_ok_and(|access| access != PeerAccess::Unavailable);
        are_peers.then(|| between(src.id, dst.id)).into_iter().flatten()
    };
    let pairs = states.iter().flat_map(|src| states.iter().flat_map(move |dst| of_pair(src, dst)));
    states.iter().flat_map(|state| of(state.id)).chain(pairs).collect()
}

/// Returns the default costs of the lists of one device's paths.
fn of(device: DeviceId) -> impl Iterator<Item = ListCost> {
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

/// Returns the default costs of the lists between the memory of two peers.
fn between(src: DeviceId, dst: DeviceId) -> impl Iterator<Item = ListCost> {
    let memory = |device| Place::new(device, MemoryKind::Device);
    costs_of(memory(src), memory(dst), BETWEEN)
}
