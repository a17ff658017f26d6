//! Paths, sizes and numbers of repetitions.

use transload_core::{DeviceId, MemoryKind, Place, TransferPath};

use crate::options::Options;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes of a full run: powers of two and others.
const SIZES: [usize; 7] = [4 * KIB, 64 * KIB, MIB, 3 * MIB, 16 * MIB, 48 * MIB, 256 * MIB];
/// Largest size of a quick run.
const QUICK: usize = 4 * MIB;

/// One size of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Number of bytes.
    pub bytes: usize,
    /// Offset in the source.
    pub src_offset: usize,
    /// Offset in the destination.
    pub dst_offset: usize,
}

impl Point {
    /// A point without offsets.
    #[must_use]
    pub const fn aligned(bytes: usize) -> Self {
        Self { bytes, src_offset: 0, dst_offset: 0 }
    }

    /// Returns whether latency, not bandwidth, determines the time.
    #[must_use]
    pub fn is_small(self) -> bool {
        self.bytes < MIB
    }
}

/// Returns the points measured on each path.
#[must_use]
pub fn points(options: &Options) -> Vec<Point> {
    let sizes = SIZES.into_iter().filter(|bytes| !options.quick || *bytes <= QUICK);
    let odd = Point { bytes: MIB + 3, src_offset: 13, dst_offset: 7 };
    sizes.map(Point::aligned).chain([odd]).collect()
}

/// Returns the sizes at which every method is tried: each power of two from 256 B to 256 MiB, or few of them.
#[must_use]
pub fn method_sizes(options: &Options) -> Vec<usize> {
    const BRIEF: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 4 * MIB];
    if options.quick { BRIEF.to_vec() } else { (8..=28).map(|power| 1 << power).collect() }
}

/// Returns the repetitions of each method at a size of `method_sizes`.
#[must_use]
pub fn method_repetitions(options: &Options, bytes: usize) -> usize {
    if let Some(given) = options.repetitions {
        return given as usize;
    }
    match (bytes, options.quick) {
        (0..=1_048_576, false) => 100,
        _ => 30,
    }
}

/// Returns the size of a run's largest transfer.
#[must_use]
pub fn largest(options: &Options) -> usize {
    points(options).iter().map(|point| point.bytes).max().unwrap_or(QUICK)
}

/// Returns the repetitions of a transfer of `bytes` bytes on each side.
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

/// Returns the host-to-host paths.
#[must_use]
pub fn cpu_paths() -> Vec<TransferPath> {
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    vec![TransferPath::new(host, host)]
}

/// Returns every path of a CUDA device that DirectCopy supports.
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

/// Returns the paths on which every method is tried.
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

/// Formats a path for a row's id: `cpu.pinned-to-cuda:0.device`.
#[must_use]
pub fn name(path: TransferPath) -> String {
    format!("{}.{}-to-{}.{}", path.src.device, path.src.kind, path.dst.device, path.dst.kind)
}

/// Formats a point for a row's id: its bytes, and its offsets if not 0.
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
    fn ids_are_ascii_and_differ() {
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
    fn methods_are_tried_at_each_power_of_two() {
        let sizes = method_sizes(&Options::parse_from(["transload-bench"]));
        assert_eq!((sizes.first(), sizes.last()), (Some(&256), Some(&(256 * MIB))));
        assert!(sizes.windows(2).all(|pair| pair[1] == 2 * pair[0]));
    }

    #[test]
    fn quick_run_is_small_with_enough_repetitions() {
        let options = Options::parse_from(["transload-bench", "--quick"]);
        assert!(largest(&options) <= 4 << 20);
        assert!(points(&options).iter().all(|point| repetitions(&options, point.bytes) >= 30));
    }
}
