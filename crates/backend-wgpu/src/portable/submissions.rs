//! The one wgpu queue of a device: what is submitted runs in order, and each submission has the next point.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard, ReentrantMutex};
use transload_core::{
    DeviceId, Error, ErrorKind, Result, TimelineId, catch_panic, events::report, mutant, next_timeline_id,
};
use wgpu::{PollError, PollType};

use crate::{
    api::{in_scopes, refused, unknown_commands},
    wakers::Wakers,
};

/// How long a thread keeps the context of OpenGL from others.
const SERIAL: Duration = Duration::from_millis(20);

/// Points whose submissions are not known to be complete.
type InFlight = VecDeque<(u64, wgpu::SubmissionIndex)>;

/// The queue, and its timeline.
pub(crate) struct Submissions {
    pub(super) id: DeviceId,
    pub(super) device: wgpu::Device,
    queue: wgpu::Queue,
    /// Locked while a submission is made.
    in_flight: Mutex<InFlight>,
    enqueued: AtomicU64,
    /// The last point known to be reached; all of them after a loss.
    reached: Arc<AtomicU64>,
    /// The thread that submits, under the lock, and whether wgpu has taken the commands. Before that a waker may be dropped there, and after it
    /// callbacks of wgpu's user are called.
    submitting: Mutex<Option<(ThreadId, bool)>>,
    /// Held in each wait on OpenGL, where wgpu panics if it does not get the context for some seconds. A callback may wait, too.
    serial: Option<ReentrantMutex<()>>,
    /// What was reached when the device was lost, and why.
    lost: OnceLock<(u64, Error)>,
    pub(super) timeline: TimelineId,
    pub(super) wakers: Arc<Wakers>,
    pub(super) this: Weak<Self>,
}

impl Submissions {
    pub(crate) fn new(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            id,
            queue,
            in_flight: Mutex::default(),
            enqueued: AtomicU64::new(0),
            reached: Arc::default(),
            submitting: Mutex::default(),
            serial: (device.adapter_info().backend == wgpu::Backend::Gl).then(ReentrantMutex::default),
            lost: OnceLock::new(),
            timeline: next_timeline_id(),
            wakers: Arc::default(),
            this: Weak::clone(this),
            device,
        })
    }

    /// Submits command buffers, after everything submitted before, and after `write`, which writes to buffers by the queue. Calls
    /// `commit` with their point first: wgpu calls callbacks of its user, which may need what the caller has claimed.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock), before `commit`; after it those of [`captured`](Self::captured), or the loss of the device. Nothing
    /// was submitted, and the point is reached after those before.
    pub(crate) fn submit(
        &self,
        buffers: Vec<wgpu::CommandBuffer>,
        write: impl FnOnce(&wgpu::Queue),
        commit: impl FnOnce(u64),
    ) -> Result<()> {
        let mut in_flight = self.lock()?;
        let this_thread = thread::current().id();
        *self.submitting.lock() = Some((this_thread, false));
        let point = self.enqueued.load(Ordering::Relaxed) + 1;
        // Before the submission: a fence of the point may be waited for as soon as it is committed.
        self.enqueued.store(point, Ordering::Release);
        commit(point);
        // Without what they read, the commands do not run.
        let written = self.captured(|| write(&self.queue));
        let written = if mutant!("wgpu/portable-writes-first") { Ok(()) } else { written };
        let submitted = written.and_then(|()| {
            self.captured(|| {
                *self.submitting.lock() = Some((this_thread, true));
                self.queue.submit(buffers)
            })
        });
        // A submission to a lost device is ignored silently.
        if self.check_alive().is_ok() {
            let reached = Arc::clone(&self.reached);
            let call = catch_panic(|| {
                self.queue.on_submitted_work_done(move || {
                    reached.fetch_max(point, Ordering::AcqRel);
                });
            });
            let known = self.reached();
            while in_flight.front().is_some_and(|(point, _)| *point <= known) {
                in_flight.pop_front();
            }
            if let Ok(index) = &submitted {
                in_flight.push_back((point, index.clone()));
            }
            if let Err(panicked) = call {
                self.lose(panicked);
            }
        }
        *self.submitting.lock() = None;
        drop(in_flight);
        if submitted.is_err() {
            // It may run after all: what a callback did wrong looks the same.
            self.block_until(point);
        }
        self.check_usable()?;
        submitted.map(drop)
    }

    /// Locks the queue for a submission.
    ///
    /// # Errors
    /// The loss of the device; [`ErrorKind::Busy`] if a callback of wgpu calls, on the thread that has the lock.
    fn lock(&self) -> Result<MutexGuard<'_, InFlight>> {
        self.check_usable()?;
        if let Some(in_flight) = self.in_flight.try_lock() {
            return Ok(in_flight);
        }
        self.refuse_callback()?;
        Ok(self.in_flight.lock())
    }

    /// # Errors
    /// [`ErrorKind::Busy`] if a callback of wgpu calls, on the thread that has the lock.
    pub(crate) fn refuse_callback(&self) -> Result<()> {
        if self.submitting.lock().is_some_and(|(thread, _)| thread == thread::current().id()) {
            let text = format!(
                "{}: a callback of wgpu ran while wgpu submits; leave the work to another thread",
                self.id
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(())
    }

    /// Returns whether the calling thread submits, and wgpu has not taken the commands yet.
    pub(super) fn is_about_to_submit(&self) -> bool {
        *self.submitting.lock() == Some((thread::current().id(), false))
    }

    /// Calls wgpu, and returns the first error that it reports.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with wgpu's reason if it refuses what it is given; [`ErrorKind::OutOfMemory`];
    /// [`ErrorKind::Device`]; the loss of the device, as which a panic counts.
    pub(crate) fn captured<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        let outcome = self.in_scopes(call);
        if outcome.is_err() {
            // A lost device's objects are invalid.
            self.check_alive()?;
        }
        outcome
    }

    fn in_scopes<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        let outcome = in_scopes(&self.device, call);
        let (value, error) = outcome.map_err(|panicked| {
            unknown_commands(self.id, &panicked).unwrap_or_else(|| {
                self.lose(panicked.clone());
                panicked
            })
        })?;
        error.map_or(Ok(value), |error| Err(refused(self.id, error)))
    }

    /// Checks that wgpu has not given the device up. Then it says nothing, also not of a call that is wrong for any device.
    ///
    /// # Errors
    /// The loss of the device.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let nothing = wgpu::BufferDescriptor {
            label: None,
            size: 4,
            usage: wgpu::BufferUsages::empty(),
            mapped_at_creation: false,
        };
        if self.in_scopes(|| self.device.create_buffer(&nothing)).is_ok() && !mutant!("wgpu/portable-loss") {
            self.lose(Error::new(ErrorKind::DeviceLost, "wgpu has given it up, or it was destroyed"));
        }
        self.check_usable()
    }

    pub(crate) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Has wgpu check what is complete, and call the callbacks of that, but for those that another thread is about to call. Returns the
    /// last point that is reached.
    pub(crate) fn refresh(&self) -> u64 {
        if self.lost.get().is_none() {
            self.wait_in_wgpu(PollType::Poll);
        }
        self.reached()
    }

    /// Blocks until a point that was enqueued is reached, or the device is lost.
    pub(crate) fn block_until(&self, point: u64) {
        while self.reached() < point && !mutant!("wgpu/portable-wait") {
            let (at, submission_index) = self.submission_of(point);
            let timeout = self.serial.as_ref().map(|_| SERIAL);
            if self.wait_in_wgpu(PollType::Wait { submission_index, timeout }) {
                self.reached.fetch_max(at, Ordering::AcqRel);
            }
        }
    }

    /// Returns the first submission that reaches a point, and its point. None is the last one of all: for a point that was refused, which
    /// comes after all before, and in a callback of the submission in progress.
    fn submission_of(&self, point: u64) -> (u64, Option<wgpu::SubmissionIndex>) {
        if self.refuse_callback().is_err() {
            return (point, None);
        }
        // Waits for a submission in progress.
        let in_flight = self.in_flight.lock();
        let found = in_flight.iter().find(|(at, _)| *at >= point).cloned();
        found.map_or((point, None), |(at, index)| (at, Some(index)))
    }

    /// Waits in wgpu, or checks what is complete. Returns `false` if the wait ended early.
    fn wait_in_wgpu(&self, wait: PollType) -> bool {
        let _serial = self.serial.as_ref().map(ReentrantMutex::lock);
        // wgpu panics if it finds the device lost.
        match catch_panic(|| self.device.poll(wait)) {
            Ok(Ok(_)) => return true,
            // The caller goes on.
            Ok(Err(PollError::Timeout)) => {}
            Ok(Err(error)) => self.lose(Error::caused_by(ErrorKind::Device, "wgpu's poll", error)),
            Err(panicked) => self.lose(panicked),
        }
        false
    }

    /// Marks the device as lost: all points are reached, with this error. Nothing that runs on uses memory of the host: wgpu keeps its
    /// staging buffers. Takes no lock, since wgpu calls it on any thread.
    pub(crate) fn lose(&self, error: Error) {
        self.lost.get_or_init(|| {
            let text = format!("{} is lost; open its backend again to use it", self.id);
            let error = Error::caused_by(ErrorKind::DeviceLost, text, error);
            report::context_lost(self.id, &error);
            (self.reached(), error)
        });
        self.reached.fetch_max(u64::MAX, Ordering::AcqRel);
        self.wakers.notify();
    }

    /// Returns the error of a point that is reached.
    pub(crate) fn outcome(&self, point: u64) -> Result<()> {
        match self.lost.get() {
            Some((good, error)) if point > *good => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// The loss of the device.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        self.wakers.close();
    }
}

#[cfg(test)]
#[path = "../../tests/unit/unwritten.rs"]
mod tests;
