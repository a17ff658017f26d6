//! What a caller may ask of one transfer.

use transload_core::{StreamPriority, Timing, TransferMethod, WorkloadType};

/// How one transfer is to be done. The default lets the manager choose.
///
/// ```
/// use transload_core::{StreamPriority, Timing, TransferMethod};
/// use transload_transfer::TransferOptions;
///
/// let options = TransferOptions::new()
///     .priority(StreamPriority::High)
///     .timing(Timing::Measured)
///     .forbid(TransferMethod::HostStaged);
/// assert!(options.allows(TransferMethod::DirectCopy) && !options.allows(TransferMethod::HostStaged));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOptions {
    pub(crate) priority: StreamPriority,
    pub(crate) workload: Option<WorkloadType>,
    /// One bit for each method's index.
    allowed: u8,
    pub(crate) timing: Option<Timing>,
}

impl TransferOptions {
    /// Up to so many bytes a transfer of [`StreamPriority::High`] may pass by a copy engine's queue: 1 MiB. See
    /// [`priority`](Self::priority).
    pub const SMALL: u64 = 1 << 20;

    /// Normal priority, the method's own workload, any method, timed as the manager samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { priority: StreamPriority::Normal, workload: None, allowed: u8::MAX, timing: None }
    }

    /// The priority of the queue that is leased for it.
    ///
    /// Devices order kernels by it, not the queue of a copy engine: there a small copy waits for every large one before it.
    /// So a transfer of at most [`SMALL`](Self::SMALL) bytes with [`StreamPriority::High`] takes ZeroCopy, a copy kernel
    /// over mapped or pinned memory, if the copies that this manager has queued before the engine, in the transfer's
    /// direction, are predicted to take longer than the kernel. Otherwise it takes the engine, since a kernel in turn waits
    /// for other kernels (1 MiB on an H200: 27 µs by engine and 33 by kernel alone, 29 and 9,400 next to kernels that fill
    /// the device, 8,900 and 62 behind 512 MiB of copies). Copies of less than 64 KiB and work that other code queues are
    /// not counted, and a recording is planned as if nothing were queued. Pageable memory takes
    /// HostStaged then, with the kernel between the device and the pinned staging buffers. [`forbid`](Self::forbid) of ZeroCopy
    /// takes the kernel out of both.
    #[must_use]
    pub const fn priority(mut self, priority: StreamPriority) -> Self {
        self.priority = priority;
        self
    }

    /// The workload of the queue that is leased for it. Where it is not set, the method says: `Compute` for what is copied by
    /// the device's processors (ZeroCopy), `Memory` for everything else.
    #[must_use]
    pub const fn workload(mut self, workload: WorkloadType) -> Self {
        self.workload = Some(workload);
        self
    }

    /// Pins the method: this one or an error. Takes earlier calls of `only` and [`forbid`](Self::forbid) back.
    #[must_use]
    pub const fn only(mut self, method: TransferMethod) -> Self {
        self.allowed = 1 << method as u8;
        self
    }

    /// Forbids a method.
    #[must_use]
    pub const fn forbid(mut self, method: TransferMethod) -> Self {
        self.allowed &= !(1 << method as u8);
        self
    }

    /// Whether this transfer is measured by the lane's clock, whatever the manager samples.
    #[must_use]
    pub const fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    /// Whether the method may be taken.
    #[must_use]
    pub const fn allows(&self, method: TransferMethod) -> bool {
        self.allowed & (1 << method as u8) != 0
    }

    /// Whether the transfer may pass by a copy engine's queue.
    pub(crate) const fn is_urgent(&self, bytes: u64) -> bool {
        matches!(self.priority, StreamPriority::High) && bytes <= Self::SMALL
    }

    /// The forbidden methods: a bit for each one's index.
    pub(crate) const fn forbidden(&self) -> u8 {
        !self.allowed
    }
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self::new()
    }
}
