//! What copies within the host cost before anything was measured.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

/// The kinds of memory that the workers reach: all of them the host's.
pub(crate) const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];

/// A function call and a look at a queue.
const LATENCY: Duration = Duration::from_micros(1);
/// One core's memcpy on a common server, bytes per second.
const RATE: f64 = 10e9;

/// Whether the workers reach memory of this place.
pub(crate) fn is_reachable(place: Place) -> bool {
    place.device == DeviceId::Cpu && HOST_KINDS.contains(&place.kind)
}

/// Every pair of kinds by [`TransferMethod::DirectCopy`].
pub(crate) fn default_costs() -> Vec<PathCost> {
    let place = |kind| Place::new(DeviceId::Cpu, kind);
    HOST_KINDS
        .into_iter()
        .flat_map(|src| HOST_KINDS.into_iter().map(move |dst| TransferPath::new(place(src), place(dst))))
        .map(|path| PathCost {
            path,
            method: TransferMethod::DirectCopy,
            model: CostModel::linear(LATENCY, RATE),
        })
        .collect()
}
