//! What the engines of devices did, by a driver's own records: a second source next to stamps.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{DeviceClock, DeviceId, Result};

/// Identifies a timed operation in the process, for records of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(NonZeroU64);

impl OperationId {
    /// Returns a new id.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }

    /// Returns the id with this number; `None` for 0.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns its number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// What did the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Engine {
    /// A copy engine.
    Copy,
    /// The multiprocessors.
    Compute,
}

/// What an engine did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineTask {
    /// A copy from the host to the device.
    CopyToDevice,
    /// A copy from the device to the host.
    CopyFromDevice,
    /// A copy within the device, to another device, or within the host.
    CopyWithin,
    /// A fill.
    Fill,
    /// A kernel.
    Kernel,
}

/// A span in which an engine worked, without waiting for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineWork {
    /// The call of the driver that enqueued it; see [`EngineRecord::Called`].
    pub call: u64,
    /// The device.
    pub device: DeviceId,
    /// What was done.
    pub task: EngineTask,
    /// By what; `None` if the driver does not say.
    pub engine: Option<Engine>,
    /// Bytes of a copy or fill.
    pub bytes: u64,
    /// The begin, in nanoseconds of the recording's clock.
    pub begin: i64,
    /// The end.
    pub end: i64,
}

/// Bytes of unified memory that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The device, to or from which they moved.
    pub device: DeviceId,
    /// Whether to it.
    pub to_device: bool,
    /// Whether a page fault caused it; of those to the host not known.
    pub by_fault: bool,
    /// Where they are.
    pub address: u64,
    /// How many.
    pub bytes: u64,
    /// The begin, in nanoseconds of the recording's clock.
    pub begin: i64,
    /// The end.
    pub end: i64,
}

/// Page faults of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFaults {
    /// The device that faulted; `None` for the host.
    pub device: Option<DeviceId>,
    /// An address of their page.
    pub address: u64,
    /// How many of the host, or groups of the device.
    pub count: u64,
    /// Of a device: from when a group is served until its accesses go on, in nanoseconds of the recording's clock. Of the host not known.
    pub served: Option<(i64, i64)>,
}

/// A record of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineRecord {
    /// An engine worked, for any user of the device in this process.
    Worked(EngineWork),
    /// Unified memory moved.
    Migrated(Migration),
    /// Accesses of unified memory had to wait for it.
    Faulted(PageFaults),
    /// A call of the driver was made for an operation that was passed to a sink. May come before or after the work, and for calls without any.
    Called {
        /// The call.
        call: u64,
        /// The operation.
        operation: OperationId,
    },
}

/// Records what the engines of a backend's devices do. Its drop ends that.
pub trait EngineRecording: Send + Sync {
    /// Returns the clock of the records: that of the process, whatever the device.
    fn clock(&self) -> &Arc<dyn DeviceClock>;

    /// Returns whether migrations and page faults of unified memory are recorded.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with the cause, if not.
    fn records_migrations(&self) -> Result<()>;

    /// Appends the records of complete work that are not taken yet, and returns how many were lost since the last call. May take milliseconds. A driver may keep some back
    /// while other work is in flight; with `all` it does not, and records of work in flight are lost.
    ///
    /// # Errors
    /// The driver's.
    fn take(&self, records: &mut Vec<EngineRecord>, all: bool) -> Result<u64>;
}
