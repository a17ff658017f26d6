//! A staged transfer under way: any number of threads take its chunks until none is left.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, Operation, QueueLease, RawBuffer, Result, Timing,
    host_access::{self, HostAccess},
};

use crate::lost::lost_on;

use super::{
    Slots,
    chunks::Chunks,
    end::End,
    slots::{SLOT, Slot},
    stream_copy::stream_copy,
};

/// Which side of the ring is what.
#[derive(Debug)]
pub(crate) enum Task {
    /// From host memory, through slots, to a device.
    Up(QueueLease),
    /// From a device, through slots, to host memory.
    Down(QueueLease),
    /// From one device, through slots, to another.
    Across(QueueLease, QueueLease),
    /// From host memory into unified memory, which is then moved to its device.
    IntoUnified(QueueLease),
    /// Out of unified memory, which is first moved to the host, into host memory.
    OutOfUnified(QueueLease),
}

/// One transfer. What it touches was claimed for it: nothing else uses the bytes in conflict until its end.
pub(crate) struct Job {
    src: RawBuffer,
    dst: RawBuffer,
    task: Task,
    /// Whose threads' state must be set up before they call it.
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    /// What must be over before the first byte moves.
    after: SmallVec<[Fence; 8]>,
    /// The ring, for tasks that go through one.
    slots: Option<Arc<Slots>>,
    chunks: Chunks,
    /// The last copy of each queue that put bytes in place.
    last: Mutex<SmallVec<[Fence; 2]>>,
    begun: OnceLock<Instant>,
    /// Whether the unified source is on the host.
    arrived: OnceLock<Result<()>>,
    end: Arc<End>,
}

/// A chunk on its way down: the copy into its slot is enqueued.
struct Coming {
    range: Range<usize>,
    slot: Slot,
    fence: Fence,
}

impl Job {
    pub(crate) fn new(
        (src, dst): (RawBuffer, RawBuffer),
        task: Task,
        backends: SmallVec<[Arc<dyn Backend>; 2]>,
        after: SmallVec<[Fence; 8]>,
        slots: Option<Arc<Slots>>,
        chunk: usize,
        end: Arc<End>,
    ) -> Arc<Self> {
        let chunks = Chunks::new(src.len(), chunk.clamp(1, SLOT));
        let last = Mutex::default();
        let (begun, arrived) = (OnceLock::new(), OnceLock::new());
        let job = Self { src, dst, task, backends, after, slots, chunks, last, begun, arrived, end };
        let job = Arc::new(job);
        job.end.belongs_to(Arc::downgrade(&job));
        job
    }

    /// Whether every chunk is taken by someone.
    pub(crate) fn is_taken(&self) -> bool {
        self.chunks.are_taken()
    }

    /// Whether everything that it must come after is known to be over.
    pub(crate) fn is_ready(&self) -> bool {
        self.after.iter().all(Fence::is_known_done)
    }

    /// Takes chunks until none is left. Blocks on earlier work that the job must come after, which was submitted earlier
    /// and does not depend on this; and on the device, for room in the ring.
    pub(crate) fn work(&self) {
        if self.chunks.are_taken() {
            return;
        }
        let _attached: SmallVec<[_; 2]> =
            self.backends.iter().map(|backend| backend.attach_thread()).collect();
        for fence in &self.after {
            // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
            let _over = fence.wait();
        }
        self.begun.get_or_init(Instant::now);
        if let Task::OutOfUnified(queue) = &self.task
            && let Err(error) = self.arrived.get_or_init(|| self.fetch(queue))
        {
            // Pages would still migrate one fault at a time; but what could not be asked for is an error, not a detour.
            while let Some(_never_moved) = self.chunks.take() {
                self.finish(Err(error.clone()));
            }
            return;
        }
        match &self.task {
            Task::IntoUnified(_) | Task::OutOfUnified(_) => self.each(|range| self.host_to_host(range)),
            Task::Up(queue) => self.each(|range| self.up(queue, range)),
            Task::Across(from, to) => self.each(|range| self.across(from, to, range)),
            Task::Down(queue) => match self.ring() {
                Ok(slots) => self.down(queue, slots),
                Err(error) => self.each(|_| Err(error.clone())),
            },
        }
    }

    fn each(&self, move_one: impl Fn(Range<usize>) -> Result<()>) {
        while let Some(range) = self.chunks.take() {
            self.finish(move_one(range));
        }
    }

    /// A taken chunk is over. The last one ends the job.
    fn finish(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.end.fail(error);
            self.chunks.cancel();
        }
        if !self.chunks.finish() {
            return;
        }
        if let Task::IntoUnified(queue) = &self.task
            && !self.end.has_failed()
            && let Err(error) = self.send_off(queue)
        {
            self.end.fail(error);
        }
        let last = std::mem::take(&mut *self.last.lock());
        for fence in last {
            if let Err(error) = fence.wait() {
                self.end.fail(lost_on(fence.timeline().device(), error));
            }
        }
        self.end.reach(self.begun.get().map(Instant::elapsed).unwrap_or_default());
    }

    /// Moves the unified source to the host, and waits for it. One thread does it, the others wait.
    fn fetch(&self, queue: &QueueLease) -> Result<()> {
        let move_here = Operation::Prefetch { buffer: &self.src, to: DeviceId::Cpu };
        // SAFETY: moving pages keeps their bytes; the source is claimed until the job's end, before which this is over.
        unsafe { queue.enqueue(&move_here, &[], Timing::Off) }?.wait()
    }

    /// Moves the unified destination to its device, once every byte is in it.
    fn send_off(&self, queue: &QueueLease) -> Result<()> {
        let move_there = Operation::Prefetch { buffer: &self.dst, to: self.dst.place().device };
        // SAFETY: as in `fetch`; the job's end waits for the fence kept here.
        let fence = unsafe { queue.enqueue(&move_there, &[], Timing::Off) }?;
        self.keep_last(fence);
        Ok(())
    }

    fn host_to_host(&self, range: Range<usize>) -> Result<()> {
        let (src, dst) = (host_side(&self.src, range.start)?, host_side(&self.dst, range.start)?);
        host_copy(src, dst, range.len());
        Ok(())
    }

    fn up(&self, queue: &QueueLease, range: Range<usize>) -> Result<()> {
        let dst = self.dst.slice(range.clone())?;
        let slots = self.ring()?;
        let mut slot = slots.take()?;
        let outcome = (|| {
            let staged = slot.buffer.slice(..range.len())?;
            host_copy(host_side(&self.src, range.start)?, slot.address.as_ptr(), range.len());
            // SAFETY: the slot is this thread's until its fence is put beside it, and stays busy until that is over; the
            // destination is claimed for this job until its end, which waits for the fence; both lengths are the range's.
            unsafe { queue.enqueue(&Operation::Copy { src: &staged, dst: &dst }, &[], Timing::Off) }
        })();
        let outcome = outcome.map(|fence| {
            self.keep_last(fence.clone());
            slot.busy = Some(fence);
        });
        slots.put(slot);
        outcome
    }

    fn across(&self, from: &QueueLease, to: &QueueLease, range: Range<usize>) -> Result<()> {
        let (src, dst) = (self.src.slice(range.clone())?, self.dst.slice(range.clone())?);
        let slots = self.ring()?;
        let mut slot = slots.take()?;
        let outcome = (|| {
            let staged = slot.buffer.slice(..range.len())?;
            // SAFETY: as in `up`; the source is claimed for reading.
            let there =
                unsafe { from.enqueue(&Operation::Copy { src: &src, dst: &staged }, &[], Timing::Off) }
                    .map_err(|error| lost_on(from.device(), error))?;
            // Its failure is the transfer's, too: the second copy knows nothing of it.
            self.keep_last(there.clone());
            slot.busy = Some(there.clone());
            if !to.can_wait_for(&there) {
                there.wait().map_err(|error| lost_on(from.device(), error))?;
            }
            let copy = Operation::Copy { src: &staged, dst: &dst };
            // SAFETY: as in `up`; the second copy comes after the first, by its fence.
            unsafe { to.enqueue(&copy, std::slice::from_ref(&there), Timing::Off) }
                .map_err(|error| lost_on(to.device(), error))
        })();
        let outcome = outcome.map(|fence| {
            self.keep_last(fence.clone());
            slot.busy = Some(fence);
        });
        slots.put(slot);
        outcome
    }

    /// Keeps one chunk ahead where the ring has room: the device fills the next slot while this thread empties one.
    fn down(&self, queue: &QueueLease, slots: &Slots) {
        let mut ahead: Option<Coming> = None;
        loop {
            let coming = match ahead.take() {
                Some(coming) => coming,
                None => {
                    let Some(range) = self.chunks.take() else { return };
                    match slots.take().and_then(|slot| self.start_down(queue, slots, slot, range)) {
                        Ok(coming) => coming,
                        Err(error) => {
                            self.finish(Err(error));
                            continue;
                        }
                    }
                }
            };
            if let Some(slot) = slots.try_take() {
                match self.chunks.take() {
                    Some(range) => match self.start_down(queue, slots, slot, range) {
                        Ok(next) => ahead = Some(next),
                        Err(error) => self.finish(Err(error)),
                    },
                    None => slots.put(slot),
                }
            }
            let Coming { range, slot, fence } = coming;
            let outcome = fence.wait().and_then(|()| {
                host_copy(slot.address.as_ptr(), host_side(&self.dst, range.start)?, range.len());
                Ok(())
            });
            slots.put(slot);
            self.finish(outcome);
        }
    }

    fn start_down(
        &self,
        queue: &QueueLease,
        slots: &Slots,
        slot: Slot,
        range: Range<usize>,
    ) -> Result<Coming> {
        let enqueued = (|| {
            let (src, staged) = (self.src.slice(range.clone())?, slot.buffer.slice(..range.len())?);
            // SAFETY: the slot is this thread's until the fence is over, which it waits for; the source is claimed for
            // reading until the job's end; both lengths are the range's.
            unsafe { queue.enqueue(&Operation::Copy { src: &src, dst: &staged }, &[], Timing::Off) }
        })();
        match enqueued {
            Ok(fence) => Ok(Coming { range, slot, fence }),
            Err(error) => {
                slots.put(slot);
                Err(error)
            }
        }
    }

    fn ring(&self) -> Result<&Arc<Slots>> {
        let missing = || Error::new(ErrorKind::Unsupported, "this task has no ring to stage in");
        self.slots.as_ref().ok_or_else(missing)
    }

    fn keep_last(&self, fence: Fence) {
        let mut last = self.last.lock();
        match last.iter_mut().find(|known| known.timeline().id() == fence.timeline().id()) {
            // Points of one timeline are reached in order.
            Some(known) if known.point() >= fence.point() => {}
            Some(known) => *known = fence,
            None => last.push(fence),
        }
    }
}

fn host_side(buffer: &RawBuffer, offset: usize) -> Result<*mut u8> {
    match buffer.host_address() {
        // SAFETY: the offset is the beginning of a chunk, which lies within the buffer.
        Some(address) => Ok(unsafe { address.add(offset) }.as_ptr()),
        None => Err(Error::new(ErrorKind::Unsupported, "the host's side has no address")),
    }
}

/// Copies between the host's side of a job and a slot.
fn host_copy(src: *mut u8, dst: *mut u8, bytes: usize) {
    host_access::note(src.addr(), bytes, HostAccess::Read);
    host_access::note(dst.addr(), bytes, HostAccess::Write);
    // SAFETY: one side is a slot that this thread holds, the other a chunk that was claimed for the job and taken by this
    // thread alone; both are valid for the chunk's length, and a slot is memory of its own.
    unsafe { stream_copy(src, dst, bytes) };
}
