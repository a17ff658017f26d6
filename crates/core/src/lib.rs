//! Vocabulary and traits for moving tensors between any two memories of a machine.
//!
//! A [`Backend`] gives [`RawBuffer`]s and [`Queue`]s. [`submit`] enqueues an [`Operation`] on a queue in the order that
//! the buffers' fences ask for, and answers with a [`Fence`]. A [`Transfer`] is a submitted movement of bytes: it runs
//! whether or not it is awaited, and its memory stays owned until the hardware is done, also when it is dropped.
//!
//! No backend is implemented here; `transload-backend-cpu` and `transload-backend-cuda` do that.
//!
//! Who writes a backend runs the suite in the module `conformance` (feature `conformance`, off by default) against it.
//!
//! # Reading order
//! [`DeviceId`] and [`MemoryKind`] (where), [`RawBuffer`] and [`Buffer`] (what), [`Queue`], [`Fence`] and [`Timeline`]
//! (when), [`Backend`] (who), [`TransferMethod`], [`TransferReport`] and [`Transfer`] (how it went), [`Error`].

mod backend;
mod brief_lock;
mod buffer;
mod buffer_id;
mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
mod cost;
mod device;
mod error;
mod fence;
mod fill;
mod hazard;
mod hold;
pub mod host_access;
mod host_bytes;
mod host_memory;
mod host_view;
mod loan;
mod method;
#[doc(hidden)]
pub mod mutants;
mod observer;
mod obstacle;
mod operation;
mod panics;
mod pattern;
mod place;
mod queue;
mod raw_buffer;
mod reclaim;
mod recorded;
mod report;
mod size_class;
mod source;
mod spare_buffer;
mod storage;
mod submission;
mod sync;
mod transfer;
mod whereabouts;

pub use backend::{Backend, DeviceInfo, Ledger, MemoryAdvice, MemoryInfo, PeerAccess, Shared};
#[doc(hidden)]
pub use brief_lock::{BriefGuard, BriefLock};
pub use buffer::{Buffer, bytes_of_elements, check_same_len};
pub use buffer_id::BufferId;
pub use claim::{Access, Claims};
pub use cost::{CostBasis, CostModel, PathCost};
pub use device::{DeviceId, ParseDeviceError};
pub use error::{Error, ErrorKind, MemoryShortage, Result, Retry};
pub use fence::{Done, Fence, Timeline, TimelineId, next_timeline_id};
pub use fill::fill;
pub use hold::{Blocked, Hold, Holding};
pub use host_bytes::HostBytes;
pub use host_memory::host_memory;
pub use host_view::{HostView, HostViewMut};
pub use loan::Loan;
pub use method::{RejectReason, Rejected, Rejections, TransferMethod};
pub use observer::{Observer, TransferEvent};
pub use obstacle::{Obstacle, Turns, Unsubmitted};
pub use operation::{Operation, Pitched, Uses, submit, submit_on};
pub use panics::{catch_panic, panic_text};
pub use pattern::Pattern;
pub use place::{MemoryKind, Place, TransferPath};
pub use queue::{Queue, QueueLease, StreamPriority, Timing, WorkloadType};
pub use raw_buffer::{RawBuffer, WeakBuffer, range_within};
pub use reclaim::Reclaimer;
pub use recorded::{Recorded, merge_uses, merged_uses};
pub use report::{QueuedBefore, TransferReport};
pub use size_class::SizeClass;
pub use spare_buffer::{Recycler, SpareBuffer};
pub use storage::Storage;
pub use submission::{copy_at_once, submit_async, try_submit};
pub use transfer::{Completion, RefusalHandler, Submission, Submitted, Transfer};

/// Element types of typed buffers: plain bytes without padding, pointers or destructors, such as `f32` or `[f32; 768]`.
pub use bytemuck::Pod;
