//! Kernels that a calibration has a device run beside lists: each occupies all of its multiprocessors.

use std::{collections::VecDeque, sync::Arc, thread, time::Duration};

use transload_core::{Backend, DeviceId, ErrorKind, Fence, QueueLease, Result, StreamPriority, WorkloadType};

use super::measure::{Run, Stop};

/// Kernels in flight: while one runs, the next wait.
const IN_FLIGHT: usize = 3;

/// Waits until a kernel of this time has run on a device: copies that need one would wait, too, for a kernel of others that never ends. Devices
/// without such kernels are not waited for.
///
/// # Errors
/// That the time is spent; the backend's.
pub(super) fn await_idle(run: &Run<'_>, device: DeviceId, kernel: Duration) -> Result<(), Stop> {
    run.check()?;
    if transload_core::mutant!("transfer/calibrates-idle-devices") {
        return Ok(());
    }
    let mut load = match Load::new(run, device, kernel) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        load => load?,
    };
    load.mean(run, 1)?;
    load.end(run);
    Ok(())
}

/// Kernels one after another, as long as someone feeds them.
pub(super) struct Load {
    backend: Arc<dyn Backend>,
    queue: QueueLease,
    /// How long each occupies the device.
    time: Duration,
    in_flight: VecDeque<Fence>,
    /// Kernels that ended.
    pub(super) ended: u32,
    /// The time of these on the device, waits for other kernels included.
    pub(super) taken: Duration,
}

impl Load {
    /// Each kernel takes `time`.
    ///
    /// # Errors
    /// The backend's; `Unsupported` if its device has no such kernel.
    pub(super) fn new(run: &Run<'_>, device: DeviceId, time: Duration) -> Result<Self> {
        let backend = run.manager.backend(device)?;
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Compute)?;
        let in_flight = VecDeque::new();
        let mut load = Self { backend, queue, time, in_flight, ended: 0, taken: Duration::ZERO };
        load.feed()?;
        Ok(load)
    }

    /// Returns the mean time of the next kernels that end.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub(super) fn mean(&mut self, run: &Run<'_>, kernels: u32) -> Result<Duration, Stop> {
        let (ended, taken) = (self.ended, self.taken);
        while self.ended - ended < kernels.max(1) {
            self.poll(run)?;
        }
        Ok(self.taken.saturating_sub(taken) / (self.ended - ended))
    }

    /// Feeds the device once, for a thread that waits for something.
    ///
    /// # Errors
    /// As [`feed`](Self::feed); that the time is spent: work of others may hold the device for ever.
    pub(super) fn poll(&mut self, run: &Run<'_>) -> Result<(), Stop> {
        self.feed()?;
        thread::yield_now();
        if transload_core::mutant!("transfer/budget-ends-waits") { Ok(()) } else { run.check() }
    }

    /// Counts the kernels that ended, and enqueues as many.
    ///
    /// # Errors
    /// The queue's; that of a kernel that failed.
    pub(super) fn feed(&mut self) -> Result<()> {
        let _attached = self.backend.attach_thread();
        while let Some(oldest) = self.in_flight.front().filter(|oldest| oldest.is_complete()) {
            oldest.wait()?;
            self.taken += oldest.timeline().take_duration(oldest.point())?.unwrap_or_default();
            self.ended += 1;
            self.in_flight.pop_front();
        }
        while self.in_flight.len() < IN_FLIGHT {
            self.in_flight.push_back(self.queue.occupy(self.time)?);
        }
        Ok(())
    }

    /// Waits for the kernels in flight: else the next measurement would be beside them. If the time is spent, they are left alone. They
    /// access no memory.
    pub(super) fn end(self, run: &Run<'_>) {
        while run.check().is_ok() && !self.in_flight.iter().all(Fence::is_complete) {
            thread::yield_now();
        }
    }
}
