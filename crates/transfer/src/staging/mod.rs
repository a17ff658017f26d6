//! Staging: executor tasks move a transfer in chunks through a ring of pinned buffers.

mod chunk_copy;
mod chunks;
mod fresh;
mod memory;
mod parts;
mod pieces;
mod queues;
mod repeated;
mod ring;
mod rings;
mod segments;
mod short_upload;
mod staged_transfer;
mod through_device;
mod timeline;
mod tuning;
mod wait_mode;

use std::{sync::OnceLock, thread};

pub(crate) use chunk_copy::StagedKind;
pub(crate) use chunks::{EVEN as EVEN_CHUNKS, chunks_of, even_chunk};
pub use memory::StagingMemory;
pub(crate) use parts::helpers_for;
pub(crate) use pieces::Pieces;
pub(crate) use queues::Queues;
pub(crate) use repeated::{REGISTERED_FROM, RepeatedStaging, registered_path};
pub use ring::STAGING_BUFFER;
pub(crate) use ring::{RingHold, StagingRing};
pub(crate) use rings::StagingRings;
pub(crate) use short_upload::ShortUpload;
pub(crate) use staged_transfer::StagedTransfer;
pub(crate) use through_device::ThroughDevice;
pub(crate) use timeline::StagedTimeline;
pub use tuning::StagingTuning;

use crate::built_in::WORKERS;

/// Returns the number of worker threads of one transfer, unless the system refuses some.
pub(crate) fn default_workers() -> usize {
    static NUMBER: OnceLock<usize> = OnceLock::new();
    *NUMBER.get_or_init(|| thread::available_parallelism().map_or(2, usize::from).min(WORKERS))
}
