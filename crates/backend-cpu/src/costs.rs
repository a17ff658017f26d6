//! Default costs of copies within the host.
//!
//! Source: docs/benchmarks/2026-11-21-2xH200-streams.json, rows `methods/`, pageable to pageable memory, the mean of two
//! runs on 32 threads. A test of the facade compares it with the newest record.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

/// The kinds of host memory that the workers can access.
pub(crate) const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];

/// Bytes and nanoseconds.
const MEASURED: [(u64, u64); 6] = [
    (4 << 10, 850),
    (64 << 10, 2_600),
    (1 << 20, 38_000),
    (16 << 20, 226_000),
    (128 << 20, 1_650_000),
    (256 << 20, 6_000_000),
];

/// Returns whether the workers can access memory of this place.
pub(crate) fn is_reachable(place: Place) -> bool {
    place.device == DeviceId::Cpu && HOST_KINDS.contains(&place.kind)
}

/// Returns the costs of every pair of kinds by [`TransferMethod::DirectCopy`].
pub(crate) fn default_costs() -> Vec<PathCost> {
    let place = |kind| Place::new(DeviceId::Cpu, kind);
    let points = MEASURED.map(|(bytes, nanoseconds)| (bytes, Duration::from_nanos(nanoseconds)));
    let Some(model) = CostModel::through(&points) else { return Vec::new() };
    HOST_KINDS
        .into_iter()
        .flat_map(|src| HOST_KINDS.into_iter().map(move |dst| TransferPath::new(place(src), place(dst))))
        .map(|path| PathCost { path, method: TransferMethod::DirectCopy, model: model.clone() })
        .collect()
}
