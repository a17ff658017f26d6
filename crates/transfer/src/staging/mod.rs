//! Staging: a transfer is cut into chunks that tasks of the executor move through a ring of pinned buffers.

mod chunk_copy;
mod chunks;
mod ring;
mod staged_transfer;
mod stream_copy;
mod timeline;
mod wait_mode;

use std::{sync::OnceLock, thread};

pub(crate) use chunk_copy::StagedKind;
pub(crate) use chunks::{chunk_for, chunks_of};
pub(crate) use ring::StagingRing;
pub(crate) use staged_transfer::StagedTransfer;
pub(crate) use timeline::StagedTimeline;

/// More threads than this do not make a link faster (measured with 4, 8 and 14 on a PCIe 5 link).
const MOST: usize = 8;

/// Returns how many threads work on one transfer, unless the system refuses some.
pub(crate) fn default_workers() -> usize {
    static WORKERS: OnceLock<usize> = OnceLock::new();
    *WORKERS.get_or_init(|| thread::available_parallelism().map_or(2, usize::from).min(MOST))
}
