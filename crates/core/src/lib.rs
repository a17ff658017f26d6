//! Types and traits for moving tensors between any two memories of a machine.
//!
//! A [`Backend`] provides [`RawBuffer`]s and [`Queue`]s. [`submit`] enqueues an [`Operation`] on a queue,
//! after all conflicting work on its buffers, and returns a [`Fence`]. A [`Transfer`] is a submitted movement
//! of bytes: it runs whether or not it is awaited, and keeps its memory alive until the hardware is done,
//! even if it is dropped.
//!
//! This crate contains no backend; see `transload-backend-cpu`, `transload-backend-cuda` and `transload-backend-wgpu`. Authors of
//! backends test theirs with the module `conformance` (feature `conformance`, off by default).
//!
//! # Serialized form
//! With the feature `serde` (off by default), ids, places, costs, plans, reports and statistics can be serialized.
//! Devices, places and kinds of memory are the texts that they print as (`cuda:0`, `cuda:0/device`), methods their
//! names (`DirectCopy`), other enums their variants in snake case (`built_in`). Names of fields are those of Rust,
//! except that durations are seconds (module `serde_seconds`) and end in `_seconds`, and sizes end in `_bytes`. All that
//! has a meaning in another process can be read back, except devices of third parties ([`DeviceId::Other`]).
//!
//! # Reading order
//! [`DeviceId`] and [`MemoryKind`] (where), [`RawBuffer`] and [`Buffer`] (what), [`Queue`], [`Fence`] and
//! [`Timeline`] (when), [`Backend`] (who), [`TransferMethod`], [`TransferReport`] and [`Transfer`] (how),
//! [`Error`].

mod buffer;
#[cfg(feature = "conformance")]
pub mod conformance;
mod device;
mod error;
pub mod events;
mod hazard;
mod host;
#[doc(hidden)]
pub mod mutants;
mod panics;
mod profile;
mod queue;
#[cfg(feature = "serde")]
pub mod serde_seconds;
mod submit;
mod sync;

pub use buffer::borrowed::{Borrowed, borrow, borrow_mut};
pub use buffer::buffer_id::BufferId;
pub use buffer::guards::{ReadGuard, WriteGuard};
pub use buffer::host_bytes::HostBytes;
pub use buffer::host_view::{HostView, HostViewMut};
pub use buffer::loan::Loan;
pub use buffer::pair_list::PairList;
pub use buffer::range_guard::{PendingConflict, RangeGuard, TryLockResult};
pub use buffer::raw_buffer::{RawBuffer, range_within};
pub use buffer::reclaim::Reclaimer;
pub use buffer::registration_slot::{KeptRegistration, RegistrationSlot};
pub use buffer::spare_buffer::{Recycler, SpareBuffer};
pub use buffer::storage::Storage;
pub use buffer::typed_buffer::{Buffer, bytes_of_elements, check_same_len, slice_elements};
pub use buffer::weak_buffer::WeakBuffer;
pub use device::backend::{
    Backend, DeviceInfo, HeldPinned, MemoryAdvice, MemoryInfo, PeerAccess, PinnedCache, ResourceCounts,
    SharedBuffer,
};
pub use device::cost::{CostBasis, CostModel, PathCost};
pub use device::device_id::{DeviceId, ParseDeviceError};
pub use device::list_cost::{KnownCosts, ListCost, ListModel, ListTime, ListWay};
pub use device::method::{RejectReason, Rejected, Rejections, TransferMethod};
pub use device::place::{MemoryKind, Place, TransferPath};
pub use device::report::{QueuedBefore, TransferReport};
pub use device::size_class::SizeClass;
pub use device::staging_hints::StagingHints;
pub use error::{Error, ErrorKind, MemoryShortage, Result, Retry};
pub use events::TransferId;
pub use hazard::Access;
pub use host::{host_access, host_memory::host_memory};
pub use panics::{catch_panic, panic_text};
pub use profile::clock::{ClockAnchor, ClockId, DeviceClock, PendingStamp, Stamp};
pub use profile::engine::{
    Engine, EngineRecord, EngineRecording, EngineTask, EngineWork, Migration, OperationId, PageFaults,
};
pub use profile::operation::{OperationInfo, OperationKind};
pub use profile::scope::TransferScope;
pub use profile::sink::{OperationRecord, OperationSample, OperationSink, SinkSlot};
pub use profile::tally::{OperationCount, OperationSampling, QueueTally};
pub use queue::fence::{Done, Fence, PointSignal, Timeline, TimelineId, next_timeline_id};
pub use queue::observer::{Observer, TransferEvent, Wanted};
pub use queue::room::{full_until, may_be_full};
pub use queue::transfer::{
    CompletionHandler, RefusalHandler, Submission, Submitted, Transfer, TransferState,
};
pub use queue::{BatchHalf, HalfPairs, Queue, QueueLease, StreamPriority, Timing, WorkloadType};
pub use submit::batch::runs_by_allocation;
pub use submit::blocks::{BlockList, BlockSide, submit_blocks};
pub use submit::cast::FloatType;
pub use submit::claim::{Claims, DelayedWakes};
pub use submit::fill::fill;
pub use submit::operation::{Operation, Pitched, Uses, submit, submit_after, submit_on};
pub use submit::pattern::Pattern;
pub use submit::recording::{Recording, merge_uses, merged_uses};
pub use submit::submission::{copy_on_host, require_complete, submit_async, try_submit, try_submit_after};
pub use submit::unblocked::{TrySubmitError, Turns, Unblocked};
#[doc(hidden)]
pub use sync::spin_lock::{SpinLock, SpinLockGuard};

/// Element types of typed buffers: plain bytes without padding, pointers or destructors, such as `f32` or `[f32; 768]`.
/// What elements may be: plain old data, a trait of the crate `bytemuck`. Numbers and arrays of them are; a struct is by
/// `#[derive(bytemuck::Pod)]`; `half::f16` and `bf16` are with the feature `bytemuck` of the crate `half`.
pub use bytemuck::Pod;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
