//! Kernels that a calibration has a device run beside lists: each occupies all of its multiprocessors.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Fence, QueueLease, Result, StreamPriority, WorkloadType};

use super::measure::{Run, Stop};

/// Kernels in flight: while one runs, the next wait.
const IN_FLIGHT: u32 = 3;
/// How long the end of a calibration whose time is spent waits for its kernels, beyond the time that they take alone.
const GRACE: Duration = Duration::from_millis(20);

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
    let backend = run.manager.backend(device)?;
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Compute)?;
    let attached = backend.attach_thread();
    let end = match queue.occupy(kernel) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        end => end?,
    };
    drop(attached);
    run.poll_until(|| end.is_complete())?;
    Ok(end.wait()?)
}

/// Kernels one after another, until it is dropped. A thread of its own waits for each and enqueues the next, as that of a program that computes does.
pub(super) struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    kernel: Duration,
}

struct Shared {
    is_over: AtomicBool,
    ran: Mutex<Result<Ran>>,
}

/// Kernels that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    pub(super) kernels: u32,
    /// Their time on the device, waits for other kernels included.
    pub(super) time: Duration,
}

impl Ran {
    /// Returns those since then.
    pub(super) fn since(self, before: Self) -> Self {
        let time = self.time.saturating_sub(before.time);
        Self { kernels: self.kernels.saturating_sub(before.kernels), time }
    }
}

impl Load {
    /// Each kernel takes `kernel`.
    ///
    /// # Errors
    /// The backend's; `Unsupported` if its device has no such kernel.
    pub(super) fn new(run: &Run<'_>, device: DeviceId, kernel: Duration) -> Result<Self> {
        let backend = run.manager.backend(device)?;
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Compute)?;
        let attached = backend.attach_thread();
        let first = queue.occupy(kernel)?;
        drop(attached);
        let (is_over, ran) = (AtomicBool::new(false), Mutex::new(Ok(Ran::default())));
        let shared = Arc::new(Shared { is_over, ran });
        let its = Arc::clone(&shared);
        let feed = move || {
            let _attached = backend.attach_thread();
            if let Err(error) = its.feed(&queue, kernel, first) {
                *its.ran.lock() = Err(error);
            }
        };
        let spawned = thread::Builder::new().name("transload-load".to_owned()).spawn(feed);
        let thread = spawned.map_err(|error| {
            Error::caused_by(ErrorKind::Unsupported, "no thread for kernels beside lists", error)
        })?;
        Ok(Self { shared, thread: Some(thread), kernel })
    }

    /// Returns the kernels that ended.
    ///
    /// # Errors
    /// The queue's; that of a kernel that failed.
    pub(super) fn ran(&self) -> Result<Ran> {
        self.shared.ran.lock().clone()
    }

    /// Returns the mean time of the next kernels that end.
    ///
    /// # Errors
    /// As [`ran`](Self::ran); that the time is spent.
    pub(super) fn mean(&self, run: &Run<'_>, kernels: u32) -> Result<Duration, Stop> {
        let before = self.ran()?;
        let since = || self.ran().map(|ran| ran.since(before));
        run.poll_until(|| since().is_ok_and(|ran| ran.kernels >= kernels.max(1)) || since().is_err())?;
        let ran = since()?;
        Ok(ran.time / ran.kernels.max(1))
    }
}

impl Shared {
    /// Keeps some kernels in flight.
    fn feed(&self, queue: &QueueLease, kernel: Duration, first: Fence) -> Result<()> {
        let mut in_flight = VecDeque::from([first]);
        while let Some(oldest) = in_flight.pop_front() {
            while !self.is_over.load(Ordering::Relaxed) && in_flight.len() + 1 < IN_FLIGHT as usize {
                in_flight.push_back(queue.occupy(kernel)?);
            }
            oldest.wait()?;
            let time = oldest.timeline().take_duration(oldest.point())?.unwrap_or_default();
            if let Ok(ran) = &mut *self.ran.lock() {
                ran.kernels += 1;
                ran.time += time;
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    /// Waits for the kernels in flight: else the next measurement would be beside them. If work of others holds the device, they are left alone. They
    /// access no memory.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let (begun, most) = (Instant::now(), GRACE + 2 * IN_FLIGHT * self.kernel);
        while !thread.is_finished() && begun.elapsed() < most {
            thread::yield_now();
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}
