//! A Vulkan queue: what is submitted runs in order, and each submission signals the next value of a timeline semaphore, which is its
//! point. What the host [stores](super::store) instead has a point that nothing signals.

use std::{
    collections::VecDeque,
    hint,
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ash::vk;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, Result, TimelineId, events::report, mutant, next_timeline_id,
};

use super::{
    Memory, Semaphore, Vulkan, VulkanQueue, error_of,
    gate::Waits,
    memory::Source,
    pieces::{List, PieceShader},
    record::Recorder,
    timestamps::Timestamps,
};
use crate::wakers::Wakers;

/// Bytes of the device's own memory in which patterns are written before they are copied; at most what one command writes.
pub(crate) const SCRATCH: usize = 4096;
/// How long a thread that waits looks whether the device is done before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Time after which it sleeps.
const YIELDING: Duration = Duration::from_micros(500);
/// Time of a sleep: NVIDIA's driver (580.159) sleeps for 10 ms, and finds the point reached then, after one in thirty waits on an H200.
const ASLEEP: Duration = Duration::from_millis(1);

/// A range to copy from one buffer to another, with the offsets in both.
pub(crate) type Region = vk::BufferCopy;

/// Regions of one copy. Usually there is one.
pub(crate) type Regions = SmallVec<[Region; 2]>;

/// What a submission does. Commands run in any order, except at a barrier.
pub(crate) enum Command {
    /// Copies regions, none of which overlap. With `is_bindable` a shader may do it instead, also long ones with `is_local`.
    Copy { src: vk::Buffer, dst: vk::Buffer, regions: Regions, is_bindable: bool, is_local: bool },
    /// Copies the pieces of a list, none of which overlap, by a shader.
    CopyList(List),
    /// Fills with a word; offset and length are multiples of 4.
    FillWords { dst: vk::Buffer, offset: u64, bytes: u64, word: u32 },
    /// Writes 4 to [`SCRATCH`] bytes, a multiple of 4, to the scratch memory.
    WriteScratch { bytes: Vec<u8> },
    /// Copies regions of the scratch memory.
    CopyScratch { dst: vk::Buffer, regions: Regions },
    /// Has later commands wait for earlier ones.
    Barrier,
    /// Takes ranges of exported buffers over from the other API, or hands them back.
    HandOver { ranges: SmallVec<[(vk::Buffer, Range<u64>); 2]>, takes: bool },
    /// Writes the time at which all earlier commands are complete.
    Timestamp { pool: vk::QueryPool, query: u32 },
}

pub(crate) type Commands = SmallVec<[Command; 2]>;

/// The queue, and its timeline.
pub(crate) struct Submissions {
    pub(crate) vulkan: Arc<Vulkan>,
    pub(super) queue: VulkanQueue,
    pub(super) semaphore: Semaphore,
    pub(super) pool: vk::CommandPool,
    pub(super) scratch: Memory,
    pub(super) timestamps: Timestamps,
    /// Made by the first list; `None` if it cannot be made.
    pub(super) pieces: OnceLock<Option<PieceShader>>,
    pub(super) state: Mutex<State>,
    pub(super) enqueued: AtomicU64,
    /// The last point that the driver has accepted: before that of a submission of wgpu in progress.
    pub(super) submitted: AtomicU64,
    /// The last point known to be reached; all of them after a loss.
    reached: AtomicU64,
    /// The last value that the semaphore is known to have had.
    pub(super) signalled: AtomicU64,
    /// Whether wgpu submits by it, too.
    is_of_wgpu: bool,
    /// What was reached when the device was lost, and why.
    lost: OnceLock<(u64, Error)>,
    pub(super) id: TimelineId,
    pub(super) wakers: Arc<Wakers>,
    pub(super) this: Weak<Self>,
    /// Whether waiting for everything fails.
    #[cfg(test)]
    pub(crate) hides_idle: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    /// Recorders by the point until which they are in use.
    in_flight: VecDeque<(u64, Recorder)>,
    free: Vec<Recorder>,
    /// What earlier submissions waited for: all that come later see the writes before it.
    seen: Waits,
}

impl State {
    /// Returns what a submission has to wait for.
    fn unseen(&self, after: &[(vk::Semaphore, u64)]) -> Waits {
        let is_seen = |(semaphore, value): &(vk::Semaphore, u64)| {
            self.seen.iter().any(|(seen, until)| seen == semaphore && until >= value)
        };
        after.iter().copied().filter(|wait| !is_seen(wait)).collect()
    }

    /// Notes what a submission waits for.
    fn saw(&mut self, waits: &[(vk::Semaphore, u64)]) {
        for (semaphore, value) in waits {
            match self.seen.iter_mut().find(|(seen, _)| seen == semaphore) {
                Some((_, until)) => *until = *value,
                None => self.seen.push((*semaphore, *value)),
            }
        }
    }
}

impl Submissions {
    /// Of wgpu's queue.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of_wgpu(vulkan: &Arc<Vulkan>) -> Result<Arc<Self>> {
        Self::make(Arc::clone(vulkan), vulkan.queue, true)
    }

    /// Of a queue that copies beside it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of_copies(vulkan: &Arc<Vulkan>, queue: VulkanQueue) -> Result<Arc<Self>> {
        Self::make(Arc::clone(vulkan), queue, false)
    }

    fn make(vulkan: Arc<Vulkan>, queue: VulkanQueue, is_of_wgpu: bool) -> Result<Arc<Self>> {
        let scratch = Memory::allocate_from(&vulkan, MemoryKind::Device, SCRATCH, Source::Own)?;
        let semaphore = Semaphore::new(&vulkan)?;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(queue.family)
            .flags(vk::CommandPoolCreateFlags::TRANSIENT | vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is that of the device's queue.
        let pool = unsafe { vulkan.raw.create_command_pool(&info, None) }
            .map_err(|result| error_of(vulkan.id, "vkCreateCommandPool", result))?;
        Ok(Arc::new_cyclic(|this| Self {
            vulkan,
            queue,
            semaphore,
            pool,
            scratch,
            timestamps: Timestamps::default(),
            pieces: OnceLock::new(),
            state: Mutex::default(),
            enqueued: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            signalled: AtomicU64::new(0),
            is_of_wgpu,
            lost: OnceLock::new(),
            id: next_timeline_id(),
            wakers: Arc::default(),
            this: Weak::clone(this),
            #[cfg(test)]
            hides_idle: std::sync::atomic::AtomicBool::new(false),
        }))
    }

    /// Submits commands, after everything submitted before, and after values of semaphores. Returns their point. Takes no time on the device
    /// into account: neither waits nor polls.
    ///
    /// # Errors
    /// The driver's; the loss of the device. Nothing was submitted then.
    ///
    /// # Safety
    /// * The buffers of all commands are this device's, and stay alive until the point is reached.
    /// * All regions are within their memory and not empty, and no other use of their bytes conflicts until the point is reached.
    /// * `after` are values of timeline semaphores of this device, which is not foreign.
    pub(crate) unsafe fn submit(&self, commands: &[Command], after: &[(vk::Semaphore, u64)]) -> Result<u64> {
        let mut state = self.lock()?;
        let mut recorder = self.recorder(&mut state)?;
        let after = state.unseen(after);
        let point = self.enqueued.load(Ordering::Relaxed) + 1;
        // SAFETY: the recorder is free; the caller's promise.
        match unsafe { self.record_and_submit(&mut recorder, commands, point, &after) } {
            Ok(()) => {
                state.saw(&after);
                state.in_flight.push_back((point, recorder));
                self.submitted.store(point, Ordering::Release);
                self.enqueued.store(point, Ordering::Release);
                Ok(point)
            }
            Err(error) => {
                state.free.push(recorder);
                if error.kind() == ErrorKind::DeviceLost {
                    self.lose(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Has the point be reached after everything submitted before, and a value of a semaphore.
    pub(super) fn submit_nothing(
        &self,
        state: &mut State,
        point: u64,
        after: &[(vk::Semaphore, u64)],
    ) -> Result<()> {
        let mut recorder = self.recorder(state)?;
        // SAFETY: the recorder is free, and there are no commands.
        let submitted = unsafe { self.record_and_submit(&mut recorder, &[], point, after) };
        match submitted {
            Ok(()) => state.in_flight.push_back((point, recorder)),
            Err(_) => state.free.push(recorder),
        }
        submitted
    }

    /// Locks the queue for a submission.
    ///
    /// # Errors
    /// The loss of the device; [`ErrorKind::Busy`] if a callback of wgpu calls, on the thread that has the lock.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.check_usable()?;
        // Another one has a lock of its own, but perhaps the same Vulkan queue.
        let state = match self.is_of_wgpu.then(|| self.state.try_lock()).flatten() {
            Some(state) => state,
            None => {
                self.refuse_callback()?;
                self.state.lock()
            }
        };
        // Who had the lock before may have lost the device: nothing waits for what is submitted then.
        if mutant!("wgpu/usable-under-the-lock") { Ok(state) } else { self.check_usable().map(|()| state) }
    }

    /// Returns whether the calling thread is in wgpu's submission, under the lock of wgpu's queue.
    fn is_in_wgpu(&self) -> bool {
        *self.vulkan.wgpu_thread.lock() == Some(thread::current().id())
    }

    /// # Errors
    /// [`ErrorKind::Busy`] if a callback of wgpu calls, on the thread that has the lock.
    pub(crate) fn refuse_callback(&self) -> Result<()> {
        if self.is_in_wgpu() {
            let text = format!(
                "{}: a callback of wgpu ran while wgpu submits; leave the work to another thread",
                self.vulkan.id
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(())
    }

    /// Takes a recorder that is not in use, or makes one.
    fn recorder(&self, state: &mut State) -> Result<Recorder> {
        let is_free =
            |state: &State| state.in_flight.front().is_some_and(|(point, _)| *point <= self.reached());
        if state.free.is_empty() && !is_free(state) && !state.in_flight.is_empty() {
            self.refresh_locked();
        }
        while is_free(state) {
            state.free.extend(state.in_flight.pop_front().map(|(_, recorder)| recorder));
        }
        state.free.pop().map_or_else(|| self.new_recorder(), Ok)
    }

    /// Returns the shader that copies lists, on wgpu's queue.
    pub(super) fn shader(&self) -> Option<&PieceShader> {
        if !self.is_of_wgpu || !self.vulkan.has_piece_shader() {
            return None;
        }
        let make = || {
            let made = PieceShader::new(&self.vulkan);
            made.inspect_err(|error| {
                report::call_failed("lists are copied without a shader", self.vulkan.id, error)
            })
            .ok()
        };
        self.pieces.get_or_init(make).as_ref()
    }

    /// Returns whether a shader copies lists of pieces.
    pub(crate) fn copies_lists(&self) -> bool {
        self.shader().is_some()
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.vulkan.id
    }

    pub(crate) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Reads the semaphore. Returns how many points are not reached.
    pub(crate) fn outstanding(&self) -> u64 {
        // In this order, so that the difference is never negative.
        let reached = self.refresh();
        self.enqueued().saturating_sub(reached)
    }

    /// Reads the semaphore. Returns the last point that is reached.
    pub(crate) fn refresh(&self) -> u64 {
        // SAFETY: the semaphore is alive, and of the timeline kind.
        match unsafe { self.vulkan.raw.get_semaphore_counter_value(self.semaphore.raw) } {
            Ok(value) => self.reach_unlocked(value),
            Err(result) => {
                self.lock_and_lose(error_of(self.vulkan.id, "vkGetSemaphoreCounterValue", result));
            }
        }
        self.reached()
    }

    /// Marks the points up to a value of the semaphore as reached, unless another queue has lost the device: then it may show any value.
    fn reach_unlocked(&self, value: u64) {
        match self.vulkan.lost.get().filter(|_| !mutant!("wgpu/loss-of-another")) {
            Some(error) if self.lost.get().is_none() => self.lock_and_lose(error.clone()),
            _ => self.reach_signalled(value),
        }
    }

    /// Like [`refresh`](Self::refresh), under the lock.
    pub(super) fn refresh_locked(&self) {
        // SAFETY: as above.
        match unsafe { self.vulkan.raw.get_semaphore_counter_value(self.semaphore.raw) } {
            // Otherwise the caller, who has the lock, finds the device lost.
            Ok(value) if self.vulkan.lost.get().is_none() => self.reach_signalled(value),
            Ok(_) => {}
            Err(result) => self.lose(error_of(self.vulkan.id, "vkGetSemaphoreCounterValue", result)),
        }
    }

    /// Marks the points up to a value of the semaphore as reached.
    fn reach_signalled(&self, value: u64) {
        self.signalled.fetch_max(value, Ordering::AcqRel);
        self.reach(value);
    }

    /// A lost device may show any value.
    pub(super) fn reach(&self, value: u64) {
        self.reached.fetch_max(value.min(self.enqueued()), Ordering::AcqRel);
    }

    /// Blocks until a point that was submitted is reached, or the device is lost.
    pub(crate) fn block_until(&self, point: u64) {
        if self.reached() >= point || mutant!("wgpu/wait") {
            return;
        }
        // The end of a short copy, which a sleeping thread would see later: 4 KiB take 16 µs instead of 30 by hand on an H200. Not where
        // the processor is needed by the device.
        let begun = Instant::now();
        while !self.vulkan.is_host && begun.elapsed() < YIELDING {
            if self.refresh() >= point {
                return;
            }
            if begun.elapsed() < SPIN { hint::spin_loop() } else { thread::yield_now() }
        }
        let (semaphores, values) = ([self.semaphore.raw], [point]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let most = u64::try_from(ASLEEP.as_nanos()).unwrap_or(u64::MAX);
        while self.refresh() < point {
            // SAFETY: the semaphore is alive, and of the timeline kind.
            match unsafe { self.vulkan.raw.wait_semaphores(&wait, most) } {
                Ok(()) => self.reach_unlocked(point),
                Err(vk::Result::TIMEOUT) => self.vulkan.end_lost_signals(),
                Err(result) => self.lock_and_lose(error_of(self.vulkan.id, "vkWaitSemaphores", result)),
            }
        }
    }

    /// Locks the queue, unless a callback of wgpu calls, which has the lock, and [loses](Self::lose) the device.
    pub(crate) fn lock_and_lose(&self, error: Error) {
        let has_lock = self.is_of_wgpu && self.is_in_wgpu();
        let _state = (!has_lock).then(|| self.state.lock());
        self.lose(error);
    }

    /// Marks the device as lost: all points are reached, with this error. Whatever call failed, the device is not used again, so that
    /// what could not be waited for is not mistaken for complete. Called under the lock.
    pub(super) fn lose(&self, error: Error) {
        self.lost.get_or_init(|| {
            self.vulkan.end_lost_signals();
            if !self.is_idle() && !mutant!("wgpu/may-run") {
                self.keep_device();
            }
            let first = || {
                let text = format!("{} is lost; open its backend again to use it", self.vulkan.id);
                let error = Error::caused_by(ErrorKind::DeviceLost, text, error);
                report::context_lost(self.vulkan.id, &error);
                error
            };
            (self.reached(), self.vulkan.lost.get_or_init(first).clone())
        });
        // A device that works may have a point that was not submitted: ends the waits for it, also those of streams of CUDA. The error is
        // known by now, and nothing is in flight that signals.
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore.raw).value(self.enqueued());
        // SAFETY: the semaphore is alive, and of the timeline kind; its value grows.
        unsafe {
            let value = self.vulkan.raw.get_semaphore_counter_value(self.semaphore.raw);
            if value.is_ok_and(|value| value < self.enqueued()) && !mutant!("wgpu/loss-ends-waits") {
                let _lost = self.vulkan.raw.signal_semaphore(&info);
            }
        }
        self.reached.fetch_max(u64::MAX, Ordering::AcqRel);
        self.wakers.notify();
    }

    /// Keeps the device for good, and what it may use.
    pub(super) fn keep_device(&self) {
        self.vulkan.may_run.store(true, Ordering::Release);
        std::mem::forget(Arc::clone(&self.vulkan));
    }

    /// Waits until nothing is in flight. Returns `false` if that cannot be known. Returns in finite time, also for a lost device.
    pub(super) fn is_idle(&self) -> bool {
        #[cfg(test)]
        if self.hides_idle.load(Ordering::Relaxed) {
            return false;
        }
        let is_over = |result| matches!(result, Ok(()) | Err(vk::Result::ERROR_DEVICE_LOST));
        // SAFETY: submissions go through the queue's gate.
        let idle = || is_over(unsafe { self.vulkan.raw.queue_wait_idle(self.queue.raw) });
        let (semaphores, values) = ([self.semaphore.raw], [self.submitted.load(Ordering::Acquire)]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // The queue of others has no lock for it.
        self.vulkan.is_locked && idle()
            // SAFETY: the semaphore is alive, and of the timeline kind.
            || is_over(unsafe { self.vulkan.raw.wait_semaphores(&wait, u64::MAX) })
    }

    #[cfg(all(test, feature = "cuda"))]
    pub(crate) fn raw(&self) -> vk::Queue {
        self.queue.raw
    }

    /// Marks the device as lost, as if a call had failed so.
    #[cfg(test)]
    pub(crate) fn lose_for_test(&self) {
        let error = error_of(self.vulkan.id, "a call", vk::Result::ERROR_DEVICE_LOST);
        self.lock_and_lose(error);
    }

    /// Returns the error of a point that is reached.
    pub(crate) fn outcome(&self, point: u64) -> Result<()> {
        match self.lost.get() {
            Some((good, error)) if point > *good => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// The loss of the device, also by another queue.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.vulkan.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        self.wakers.close();
        // Nothing is in flight unless an operation without buffers, or whose memory was leaked, is.
        self.block_until(self.enqueued());
        if self.vulkan.may_run.load(Ordering::Acquire) {
            std::mem::forget(std::mem::take(self.state.get_mut()));
            std::mem::forget(self.pieces.take());
            return;
        }
        // Before their pools and the device.
        let State { in_flight, free, .. } = std::mem::take(self.state.get_mut());
        for recorder in in_flight.into_iter().map(|(_, recorder)| recorder).chain(free) {
            self.destroy(recorder);
        }
        // SAFETY: all submissions are complete. A drop is exclusive.
        unsafe {
            self.destroy_timestamps();
            self.vulkan.raw.destroy_command_pool(self.pool, None);
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/unsubmitted.rs"]
mod tests;
