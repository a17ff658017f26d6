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
    priority: StreamPriority,
    workload: Option<WorkloadType>,
    /// One bit for each method's index.
    allowed: u8,
    timing: Option<Timing>,
}

impl TransferOptions {
    /// Up to so many bytes a transfer of [`StreamPriority::High`] takes a method without a copy engine where there is one:
    /// 1 MiB. See [`priority`](Self::priority).
    pub const SMALL: u64 = 1 << 20;

    /// Normal priority, the method's own workload, any method, timed as the manager samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { priority: StreamPriority::Normal, workload: None, allowed: u8::MAX, timing: None }
    }

    /// The priority of the queue that is leased for it.
    ///
    /// Devices order kernels by it, not what stands in line before a copy engine: there a small copy waits for every large
    /// one (0.1 to 6 s for 1 MiB behind a full line, measured). So a transfer of at most [`SMALL`](Self::SMALL) bytes with
    /// [`StreamPriority::High`] takes the cheapest method that uses no copy engine, wherever one applies, also where another
    /// one is predicted to be faster on an idle device. That is ZeroCopy, between mapped host memory and a device.
    /// [`forbid`](Self::forbid) takes it out.
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

    /// Whether a method without a copy engine goes before all others.
    pub(crate) const fn avoids_copy_engines(&self, bytes: u64) -> bool {
        matches!(self.priority, StreamPriority::High) && bytes <= Self::SMALL
    }

    pub(crate) const fn wanted_priority(&self) -> StreamPriority {
        self.priority
    }

    pub(crate) const fn wanted_workload(&self) -> Option<WorkloadType> {
        self.workload
    }

    pub(crate) const fn wanted_timing(&self) -> Option<Timing> {
        self.timing
    }
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self::new()
    }
}
