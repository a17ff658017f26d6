//! The events that this library reports through [`tracing`], and the id that joins those of one transfer.
//!
//! Nothing is printed by itself: a program installs a subscriber, for example `tracing_subscriber::fmt::init()`, and filters by
//! target (`transload=info`, or `transload::staging=trace`). Names, targets and fields are stable; levels, messages and the text
//! of fields are not. Without a subscriber a transfer costs one relaxed load more.
//!
//! An event has the name of its constant below in lower case. Durations are in nanoseconds (`_ns`), and `error` is the text of
//! an [`Error`](crate::Error). `transfer` is a [`TransferId`]; it is missing for work that no
//! transfer manager submitted, and for transfers that began before there was a subscriber.
//!
//! Events of [`MEMORY`], [`DRIVER`] and [`THREADS`], and those of transfers that no manager submitted, are often noticed where a lock is held or the caller's buffers are in use. They are kept,
//! and emitted where neither is so, possibly on another thread and in another span: before the process's next allocation,
//! synchronisation of a stream or drain returns, when the end of a transfer is observed, or when a runtime's last handle is dropped.
//!
//! | Level | Use |
//! |---|---|
//! | `ERROR` | a device is lost |
//! | `WARN` | something failed, or is slower from now on |
//! | `INFO` | a detour: another method or another way was taken |
//! | `DEBUG` | each transfer, first uses, and errors that a caller gets anyway |
//! | `TRACE` | each chunk |
//!
//! A transfer is a span, too: [`TRANSFER_SPAN`].
//!
//! [`report`] emits those that several crates have in common.

mod deferred;
pub mod report;

pub(crate) use deferred::is_wanted;

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    num::NonZeroU64,
    sync::atomic::{self, AtomicU64},
};

use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::Wanted;

/// Target of events of transfers and methods.
pub const TRANSFER: &str = "transload::transfer";
/// Target of events of staged transfers and their pinned memory.
pub const STAGING: &str = "transload::staging";
/// Target of events of memory: allocators, registrations, unified memory.
pub const MEMORY: &str = "transload::memory";
/// Target of events of host threads.
pub const THREADS: &str = "transload::threads";
/// Target of events of a device's driver.
pub const DRIVER: &str = "transload::driver";

/// `DEBUG`, target [`TRANSFER`]: the span of a transfer, or of a list of pairs, from its submission until its end is observed or its handle is dropped,
/// in the span in which the submitting thread is. In it are [`TRANSFER_SUBMITTED`], [`TRANSFER_COMPLETED`], [`TRANSFER_FAILED`] if it was
/// submitted, and [`TRANSFER_ABANDONED`]. Fields `transfer`, `src`, `dst`, `bytes`, `method`, `lane`, and at its end `elapsed_ns` and `moving_ns` if they were measured.
/// The moment at which its end is observed may be long after that end.
pub const TRANSFER_SPAN: &str = "transfer";
/// `DEBUG`, target [`TRANSFER`]: a method was chosen for a transfer, and it was submitted. Fields `transfer`, `src`, `dst`, `bytes`,
/// `method`, `lane` (the device whose queue does the work), `chunks`, `predicted_ns`, `queued` (bytes before it in the copy
/// engine's queue), `rejected` (the other methods, with reasons).
pub const TRANSFER_SUBMITTED: &str = "transfer_submitted";
/// `DEBUG`, target [`TRANSFER`]: a transfer is complete, as its handle's owner observed. Fields `transfer`, `bytes`, `elapsed_ns` and
/// `moving_ns` if they were measured.
pub const TRANSFER_COMPLETED: &str = "transfer_completed";
/// `WARN`, target [`TRANSFER`]: a submitted transfer failed, or the driver refused it. Fields `transfer`, `src`, `dst`, `bytes`,
/// `method`, `lane`, `error`.
pub const TRANSFER_FAILED: &str = "transfer_failed";
/// `DEBUG`, target [`TRANSFER`]: a request was invalid, and nothing was submitted. Fields `transfer`, `error`.
pub const TRANSFER_REFUSED: &str = "transfer_refused";
/// `DEBUG`, target [`TRANSFER`]: a handle was dropped before the transfer's end was observed. The work goes on. Fields `transfer`,
/// `bytes`.
pub const TRANSFER_ABANDONED: &str = "transfer_abandoned";
/// `DEBUG`, target [`TRANSFER`]: a task's transfer waits for conflicting work before it is submitted. Field `transfer`.
pub const TRANSFER_BLOCKED: &str = "transfer_blocked";
/// `DEBUG`, target [`TRANSFER`]: a thread of the executor submits a task's transfer, since that may take long. Field `transfer`.
pub const TRANSFER_DEFERRED: &str = "transfer_deferred";
/// `WARN`, target [`TRANSFER`]: a transfer failed or was refused, and no caller observed it. The next `drain` returns the first such
/// error of a manager's transfers. Fields `transfer`, `error`. A dropped transfer that a caller enqueued on a stream directly has
/// this event if it was refused or read invalid bytes; if it fails with its device, there is [`CONTEXT_LOST`]. Waiting for a
/// transfer's fence is not observing the transfer.
pub const FAILURE_UNOBSERVED: &str = "failure_unobserved";
/// `INFO`, target [`TRANSFER`]: the cheapest method could not be used for this transfer, and the next best is tried. Fields
/// `transfer`, `src`, `dst`, `method`.
pub const METHOD_DECLINED: &str = "method_declined";
/// `WARN`, target [`TRANSFER`]: a method is not used on a path any more. Fields `src`, `dst`, `method`, `reason`.
pub const METHOD_REJECTED: &str = "method_rejected";
/// `INFO`, target [`TRANSFER`]: a method takes longer or shorter on a path than predicted, and the prediction was multiplied by
/// `factor`, for sizes from `bytes` on to less than twice as many (from 1 GiB on, all). Fields `src`, `dst`, `method`, `bytes`, `factor`.
pub const COST_REFINED: &str = "cost_refined";
/// `INFO`, target [`TRANSFER`]: peer access between two devices could not be verified, and is tried again after `skipped` transfers.
/// Fields `device`, `peer`, `skipped`, `error`.
pub const PEER_RETRY: &str = "peer_retry";
/// `WARN`, target [`TRANSFER`]: peer copies between two devices are not used. Fields `device`, `peer`, `reason`, and `error` if a
/// call failed; without one, the copied bytes were wrong.
pub const PEER_REJECTED: &str = "peer_rejected";
/// `INFO`, target of the part that reports it: a kernel of this library cannot be used, so a copy engine or the driver does its work.
/// Fields `device`, `error`.
pub const KERNEL_UNAVAILABLE: &str = "kernel_unavailable";
/// `WARN`, target [`TRANSFER`]: a stored calibration is not used, since it is damaged, stale or of another machine, or cannot be read. Fields
/// `file`, `error`.
pub const CALIBRATION_IGNORED: &str = "calibration_ignored";
/// `WARN`, target [`TRANSFER`]: a calibration is used, but could not be stored for later runtimes. Field `error`.
pub const CALIBRATION_NOT_STORED: &str = "calibration_not_stored";
/// `INFO`, target [`TRANSFER`]: a trace that an environment variable asked for was written. Fields `file`, `contents` (what it contains
/// and lacks).
pub const TRACE_WRITTEN: &str = "trace_written";
/// `WARN`, target [`TRANSFER`]: a trace that an environment variable asked for could not be begun, or not be written to its end. Fields
/// `file`, `error`.
pub const TRACE_FAILED: &str = "trace_failed";
/// `ERROR`, target [`TRANSFER`]: transfers of a device are refused from now on. Fields `device`, `error` (the first cause).
pub const DEVICE_LOST: &str = "device_lost";
/// `DEBUG`, target of the part that reports it: something that the first use of a path, device or function sets up is done. Fields
/// `what`, `device` if there is one, `elapsed_ns`.
pub const FIRST_USE: &str = "first_use";

/// `TRACE`, target [`STAGING`]: a chunk of a transfer got a staging buffer. Fields `transfer`, `offset`, `bytes`. The reporting thread
/// may hold that buffer: a subscriber that waits for a staged transfer of its own here may wait for ever.
pub const CHUNK_STARTED: &str = "chunk_started";
/// `TRACE`, target [`STAGING`]: a chunk arrived. Fields `transfer`, `offset`, `bytes`. A subscriber must not wait here either.
pub const CHUNK_COMPLETED: &str = "chunk_completed";
/// `DEBUG`, target [`STAGING`]: a chunk failed. The first such error is the transfer's. Fields `transfer`, `offset`, `bytes`,
/// `error`.
pub const CHUNK_FAILED: &str = "chunk_failed";
/// `DEBUG`, target [`STAGING`]: work that a transfer waited for failed. The transfer goes on; the bytes are idle either way. Fields
/// `transfer`, `error`.
pub const DEPENDENCY_FAILED: &str = "dependency_failed";
/// `DEBUG`, target [`STAGING`]: a staging buffer was pinned. Fields `device`, `buffers` (how many there are), `elapsed_ns`.
pub const RING_GROWN: &str = "ring_grown";
/// `WARN`, target [`STAGING`]: no further staging buffer could be pinned, so staged transfers go on with fewer, or fail without any.
/// Fields `device`, `buffers`, `most` (the ring's limit), `error`.
pub const RING_LIMITED: &str = "ring_limited";

/// `WARN`, target [`THREADS`]: code of the caller or of a backend panicked, and the panic was caught. Field `text`.
pub const PANIC_CAUGHT: &str = "panic_caught";
/// `WARN`, target [`THREADS`]: the system refused to start a thread, so others do its work, or the caller gets an error. The executor reports the first
/// refusal until it could start such a thread again. Fields `what` (what the thread is for), `error`.
pub const THREAD_REFUSED: &str = "thread_refused";
/// `DEBUG`, target [`THREADS`]: an owner of adopted memory or of a stream was dropped, after the work that used it. Field
/// `elapsed_ns` (how long its destructor ran).
pub const OWNER_DROPPED: &str = "owner_dropped";

/// `ERROR`, target [`DRIVER`]: a device's context is unusable until the process ends. Fields `device`, `error` (the first cause).
pub const CONTEXT_LOST: &str = "context_lost";
/// `WARN`, target [`DRIVER`]: a driver call in a destructor failed, so what it should release may stay until the process ends, or bytes
/// that it should write are missing. Field `error`.
pub const DROP_FAILED: &str = "drop_failed";
/// `WARN`, target [`DRIVER`]: a driver call failed, and this library goes on in another way or calls again. Fields `what` (the other
/// way), `device` if there is one, `error`.
pub const CALL_FAILED: &str = "call_failed";
/// `INFO`, target [`DRIVER`]: a runtime has no devices of a family. Fields `family`, `error`.
pub const FAMILY_ABSENT: &str = "family_absent";
/// `WARN`, target [`DRIVER`]: there were more events of memory, drivers and threads than are kept until they can be emitted. Field `count`.
pub const EVENTS_DROPPED: &str = "events_dropped";

/// `INFO`, target [`MEMORY`]: memory was short, and an allocation succeeded after memory was reclaimed. Fields `place`, `bytes`,
/// `how` (what was reclaimed).
pub const ALLOCATION_RETRIED: &str = "allocation_retried";
/// `INFO`, target [`MEMORY`]: the system refused the pages that were chosen for an allocation, which has others. Fields `what`,
/// `bytes` if they are known, `error`.
pub const PAGES_DECLINED: &str = "pages_declined";
/// `DEBUG`, target [`MEMORY`]: host memory was registered with a driver, that is, pinned. Fields `address`, `bytes`, `elapsed_ns`.
pub const HOST_REGISTERED: &str = "host_registered";
/// `DEBUG`, target [`MEMORY`]: a registration of host memory ended. Field `address`, and `error` if that failed; the memory then stays
/// until the process ends.
pub const HOST_UNREGISTERED: &str = "host_unregistered";
/// `DEBUG`, target [`MEMORY`]: a prefetch or advice that this library chose could not be given. Fields `what`, `device`, `bytes`,
/// `error`.
pub const HINT_DECLINED: &str = "hint_declined";
/// `WARN`, target [`MEMORY`]: a copy between a unified buffer's memory on host and device failed, and is repeated by the next use. Fields
/// `device`, `bytes`, `error`.
pub const UNIFIED_COPY_FAILED: &str = "unified_copy_failed";

/// Identifies a transfer in events and reports. Unique in the process.
// The lowest bits say what is wanted of the transfer, so that an `Option` has the size of a pointer.
#[derive(Clone, Copy)]
pub struct TransferId(NonZeroU64);

impl TransferId {
    /// Bits below the number: what is wanted, and whether it is a part.
    const BITS: u32 = 3;
    const PART: u64 = 4;

    /// Returns a new id if an [observer wants](crate::Observer::wants) the transfer, or a subscriber any event; otherwise this costs one
    /// relaxed load.
    #[must_use]
    #[inline]
    pub fn if_wanted(wanted: Wanted) -> Option<Self> {
        let is_traced = STATIC_MAX_LEVEL != LevelFilter::OFF && LevelFilter::current() != LevelFilter::OFF;
        if is_traced || wanted != Wanted::Failure { Self::next(wanted) } else { None }
    }

    #[cold]
    fn next(wanted: Wanted) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self::of_parts(NEXT.fetch_add(1, atomic::Ordering::Relaxed), wanted)
    }

    pub(crate) fn of_parts(number: u64, wanted: Wanted) -> Option<Self> {
        let shifted = number.checked_mul(1 << Self::BITS)?;
        NonZeroU64::new(shifted).map(|id| Self(id | wanted as u64))
    }

    /// Returns the number, as events have it.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get() >> Self::BITS
    }

    /// Returns the id for a part of the transfer that is submitted by itself: its operations are the transfer's, and it has no events of its own.
    #[must_use]
    pub fn part(self) -> Self {
        Self(self.0 | Self::PART)
    }

    /// Returns whether it is that of a [part](Self::part).
    #[must_use]
    pub fn is_part(self) -> bool {
        self.0.get() & Self::PART != 0
    }

    /// Returns whether an [observer](crate::Observer) takes the transfer's events.
    #[must_use]
    pub fn is_observed(self) -> bool {
        !self.is_part() && self.0.get() & 3 >= Wanted::Events as u64
    }

    /// Returns whether a [sink](crate::OperationSink) is given all of the transfer's operations with their times.
    #[must_use]
    pub fn is_timed(self) -> bool {
        self.0.get() & 3 == Wanted::Times as u64
    }
}

/// By number: whether it is observed is no part of an id.
impl PartialEq for TransferId {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for TransferId {}

impl PartialOrd for TransferId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TransferId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.get().cmp(&other.get())
    }
}

impl Hash for TransferId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TransferId").field(&self.get()).finish()
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
