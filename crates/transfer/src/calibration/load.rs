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
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, QueueLease, Result, StreamPriority, WorkloadType,
};

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

/// Kernels one after another, until it is dropped.
pub(super) struct Load {
    shared: Arc<Shared>,
    /// Waits for each kernel and enqueues the next, as that of a program that computes does. `None` where time is virtual, which a thread
    /// that waits would advance: there the kernels go on while somebody asks what ran.
    thread: Option<JoinHandle<()>>,
    kernel: Duration,
}

struct Shared {
    is_over: AtomicBool,
    feeder: Mutex<Feeder>,
    ran: Mutex<Result<Ran>>,
}

/// Kernels in flight, oldest first.
struct Feeder {
    backend: Arc<dyn Backend>,
    queue: QueueLease,
    kernel: Duration,
    in_flight: VecDeque<Fence>,
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
        let mut feeder = Feeder { backend, queue, kernel, in_flight: VecDeque::new() };
        feeder.feed()?;
        let (is_over, ran) = (AtomicBool::new(false), Mutex::new(Ok(Ran::default())));
        let shared = Arc::new(Shared { is_over, feeder: Mutex::new(feeder), ran });
        let its = Arc::clone(&shared);
        let is_virtual = run.calibration.simulated;
        let spawn =
            || thread::Builder::new().name("transload-load".to_owned()).spawn(move || its.keep_running());
        let thread = (!is_virtual).then(spawn).transpose().map_err(|error| {
            Error::caused_by(ErrorKind::OutOfMemory, "no thread for kernels beside lists", error)
        })?;
        Ok(Self { shared, thread, kernel })
    }

    /// Returns the kernels that ended.
    ///
    /// # Errors
    /// The queue's; that of a kernel that failed.
    pub(super) fn ran(&self) -> Result<Ran> {
        if self.thread.is_none() {
            let mut feeder = self.shared.feeder.lock();
            while let Some(oldest) = feeder.in_flight.pop_front_if(|oldest| oldest.is_complete()) {
                self.shared.count(&oldest)?;
            }
            feeder.feed()?;
        }
        self.shared.ran.lock().clone()
    }

    /// Returns the mean time of the next kernels that end.
    ///
    /// # Errors
    /// As [`ran`](Self::ran); that the time is spent.
    pub(super) fn mean(&self, run: &Run<'_>, kernels: u32) -> Result<Duration, Stop> {
        let before = self.ran()?;
        let mut since = Ok(Ran::default());
        run.poll_until(|| {
            since = self.ran().map(|ran| ran.since(before));
            since.as_ref().map_or(true, |ran| ran.kernels >= kernels.max(1))
        })?;
        let ran = since?;
        Ok(ran.time / ran.kernels.max(1))
    }
}

impl Feeder {
    fn feed(&mut self) -> Result<()> {
        let _attached = self.backend.attach_thread();
        while self.in_flight.len() < IN_FLIGHT as usize {
            self.in_flight.push_back(self.queue.occupy(self.kernel)?);
        }
        Ok(())
    }
}

impl Shared {
    /// Waits for a kernel, and counts it.
    fn count(&self, kernel: &Fence) -> Result<()> {
        kernel.wait()?;
        let time = kernel.timeline().take_duration(kernel.point())?.unwrap_or_default();
        if let Ok(ran) = &mut *self.ran.lock() {
            ran.kernels = ran.kernels.saturating_add(1);
            ran.time = ran.time.saturating_add(time);
        }
        Ok(())
    }

    fn keep_running(&self) {
        let mut feeder = self.feeder.lock();
        let _attached = feeder.backend.attach_thread();
        while let Some(oldest) = feeder.in_flight.pop_front() {
            let is_over = self.is_over.load(Ordering::Relaxed);
            let counted = self.count(&oldest);
            if let Err(error) = counted.and_then(|()| if is_over { Ok(()) } else { feeder.feed() }) {
                *self.ran.lock() = Err(error);
                break;
            }
        }
    }
}

impl Drop for Load {
    /// Waits for the kernels in flight: else the next measurement would be beside them. If work of others holds the device, they are left alone. They
    /// access no memory.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let is_idle = || match &self.thread {
            Some(thread) => thread.is_finished(),
            None => self.shared.feeder.lock().in_flight.iter().all(Fence::is_complete),
        };
        let (begun, most) = (Instant::now(), GRACE + 2 * IN_FLIGHT * self.kernel);
        while !is_idle() && begun.elapsed() < most {
            thread::yield_now();
        }
    }
}
