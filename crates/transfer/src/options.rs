//! Options of one transfer.

use transload_core::{StreamPriority, Timing, TransferMethod, WorkloadType};

/// Options of one transfer. By default the manager chooses.
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
    /// Whether the transfer is to have nothing to do with registered memory.
    unregistered: bool,
}

impl TransferOptions {
    /// The largest transfer, in bytes, of [`StreamPriority::High`] that may bypass a copy engine's queue: 1 MiB. See
    /// [`priority`](Self::priority).
    pub const SMALL: u64 = 1 << 20;

    /// Normal priority, the method's own workload, any method, measured as the manager samples.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            priority: StreamPriority::Normal,
            workload: None,
            allowed: u8::MAX,
            timing: None,
            unregistered: false,
        }
    }

    /// Sets the priority of the queue leased for the transfer.
    ///
    /// Devices order kernels by priority, but not a copy engine's queue: there a small copy waits for every earlier
    /// large one.
    /// So a transfer of at most [`SMALL`](Self::SMALL) bytes with [`StreamPriority::High`] uses ZeroCopy, a copy kernel
    /// over mapped or pinned memory, if the copies that this manager has queued for the engine in that direction are
    /// predicted to take longer than the kernel. Otherwise it uses the engine, since a kernel waits for other kernels
    /// (1 MiB on an H200: 27 µs by engine and 33 by kernel alone, 29 and 9,400 next to kernels that fill the device,
    /// 8,900 and 62 after 512 MiB of copies). Copies of less than 64 KiB and work queued by other code are not counted,
    /// and a recording is planned as if nothing were queued. Pageable memory uses HostStaged then, with the kernel
    /// between the device and the pinned staging buffers. [`forbid`](Self::forbid)ding ZeroCopy disables the kernel in
    /// both cases. On a Vulkan device of the wgpu backend a copy with [`StreamPriority::High`] uses another queue while
    /// the usual one has work.
    #[must_use]
    pub const fn priority(mut self, priority: StreamPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the workload of the queue leased for the transfer. Default: `Compute` for copy kernels (ZeroCopy), `Memory`
    /// for every other method.
    #[must_use]
    pub const fn workload(mut self, workload: WorkloadType) -> Self {
        self.workload = Some(workload);
        self
    }

    /// Allows this method only. Overrides earlier calls of `only` and [`forbid`](Self::forbid).
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

    /// Sets whether this transfer is measured by the lane's clock, instead of the manager's sampling.
    #[must_use]
    pub const fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    /// Returns whether the method is allowed.
    #[must_use]
    pub const fn allows(&self, method: TransferMethod) -> bool {
        self.allowed & (1 << method as u8) != 0
    }

    /// Ordinary host memory is copied as such, however often.
    pub(crate) const fn unregistered(mut self) -> Self {
        self.unregistered = true;
        self
    }

    /// Returns whether registered memory is copied as pinned memory, and memory that is staged again and again gets registered.
    pub(crate) fn may_be_registered(&self) -> bool {
        self.allows(TransferMethod::DirectCopy)
            && (!self.unregistered || transload_core::mutant!("transfer/calibration-registers-nothing"))
    }

    /// Returns whether the transfer may bypass a copy engine's queue.
    pub(crate) const fn is_urgent(&self, bytes: u64) -> bool {
        matches!(self.priority, StreamPriority::High) && bytes <= Self::SMALL
    }

    /// Returns the forbidden methods: a bit for each method's index.
    pub(crate) const fn forbidden(&self) -> u8 {
        !self.allowed
    }
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self::new()
    }
}
