//! Which paths at which sizes, how often.

use transload_core::{DeviceId, MemoryKind, Place, TransferPath};

use crate::options::Options;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes on and off the powers of two.
const SIZES: [usize; 7] = [4 * KIB, 64 * KIB, MIB, 3 * MIB, 16 * MIB, 48 * MIB, 256 * MIB];
/// The largest of a quick run.
const QUICK: usize = 4 * MIB;

/// One size of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Bytes that move.
    pub bytes: usize,
    /// From here in the source.
    pub src_offset: usize,
    /// To here in the destination.
    pub dst_offset: usize,
}

impl Point {
    /// A whole number of pages from the beginning.
    #[must_use]
    pub const fn aligned(bytes: usize) -> Self {
        Self { bytes, src_offset: 0, dst_offset: 0 }
    }

    /// Whether its time is a matter of latency, not of rate.
    #[must_use]
    pub fn is_small(self) -> bool {
        self.bytes < MIB
    }
}

/// The grid's points on each path.
#[must_use]
pub fn points(options: &Options) -> Vec<Point> {
    let sizes = SIZES.into_iter().filter(|bytes| !options.quick || *bytes <= QUICK);
    let odd = Point { bytes: MIB + 3, src_offset: 13, dst_offset: 7 };
    sizes.map(Point::aligned).chain([odd]).collect()
}

/// One size of each size class.
#[must_use]
pub fn classes(options: &Options) -> Vec<usize> {
    const FULL: [usize; 6] = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 256 * MIB];
    const BRIEF: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 4 * MIB];
    if options.quick { BRIEF.to_vec() } else { FULL.to_vec() }
}

/// How often each method is repeated at one size of each class.
#[must_use]
pub fn class_repetitions(options: &Options, bytes: usize) -> usize {
    if let Some(given) = options.repetitions {
        return given as usize;
    }
    match (bytes, options.quick) {
        (0..=1_048_576, false) => 100,
        _ => 30,
    }
}

/// The largest transfer of a run.
#[must_use]
pub fn largest(options: &Options) -> usize {
    points(options).iter().map(|point| point.bytes).max().unwrap_or(QUICK)
}

/// How often a transfer of so many bytes is repeated on each side.
#[must_use]
pub fn repetitions(options: &Options, bytes: usize) -> usize {
    if let Some(given) = options.repetitions {
        return given as usize;
    }
    match (bytes, options.quick) {
        (0..=65_536, false) => 1000,
        (0..=65_536, true) => 400,
        (0..=16_777_216, false) => 150,
        (_, false) => 40,
        (_, true) => 60,
    }
}

/// Host to host.
#[must_use]
pub fn cpu_paths() -> Vec<TransferPath> {
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    vec![TransferPath::new(host, host)]
}

/// Every path of a CUDA device that a direct copy serves.
#[must_use]
pub fn cuda_paths(device: DeviceId) -> Vec<TransferPath> {
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let there = Place::new(device, MemoryKind::Device);
    vec![
        TransferPath::new(host(MemoryKind::Pinned), there),
        TransferPath::new(there, host(MemoryKind::Pinned)),
        TransferPath::new(host(MemoryKind::Pageable), there),
        TransferPath::new(there, host(MemoryKind::Pageable)),
        TransferPath::new(there, there),
        TransferPath::new(host(MemoryKind::Mapped), there),
    ]
}

/// The paths on which every method is tried.
#[must_use]
pub fn method_paths(device: DeviceId, peer: Option<DeviceId>) -> Vec<TransferPath> {
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let (there, unified) = (Place::new(device, MemoryKind::Device), Place::new(device, MemoryKind::Unified));
    let mut ends: Vec<(Place, Place)> = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped]
        .into_iter()
        .map(|kind| (host(kind), there))
        .collect();
    ends.extend([(host(MemoryKind::Pageable), unified), (there, unified)]);
    ends.extend(peer.map(|peer| (there, Place::new(peer, MemoryKind::Device))));
    let both_ways = |(a, b)| [TransferPath::new(a, b), TransferPath::new(b, a)];
    ends.into_iter().flat_map(both_ways).chain([TransferPath::new(there, there)]).collect()
}

/// A path as part of a row's identity: `cpu.pinned-to-cuda:0.device`.
#[must_use]
pub fn name(path: TransferPath) -> String {
    format!("{}.{}-to-{}.{}", path.src.device, path.src.kind, path.dst.device, path.dst.kind)
}

/// A point as part of a row's identity: its bytes, and its offsets where it has any.
#[must_use]
pub fn size(point: Point) -> String {
    let Point { bytes, src_offset, dst_offset } = point;
    if src_offset == 0 && dst_offset == 0 {
        bytes.to_string()
    } else {
        format!("{bytes}@{src_offset}+{dst_offset}")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn identities_are_ascii_and_differ() {
        let options = Options::parse_from(["transload-bench"]);
        let mut ids: Vec<String> = cuda_paths(DeviceId::Cuda(0))
            .into_iter()
            .chain(cpu_paths())
            .flat_map(|path| {
                points(&options).into_iter().map(move |point| format!("{}/{}", name(path), size(point)))
            })
            .collect();
        let count = ids.len();
        assert!(ids.iter().all(|id| id.is_ascii()));
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), count), (56, 56));
    }

    #[test]
    fn a_quick_run_is_small_and_still_counts() {
        let options = Options::parse_from(["transload-bench", "--quick"]);
        assert!(largest(&options) <= 4 << 20);
        assert!(points(&options).iter().all(|point| repetitions(&options, point.bytes) >= 30));
    }
}
