//! Counts the bytes that a manager has queued for each device's copy engines, and for copy kernels.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{DeviceId, Fence, TimelineId, TransferPath, catch_panic};

/// Bytes from which copies are counted. An engine runs smaller ones as fast as they can be submitted, so they cannot
/// pile up.
pub(crate) const COUNTED_FROM: u64 = 64 << 10;
/// Additions after which completed copies are removed, even if the count is never read.
const SWEEP_EVERY: u64 = 256;

/// The incomplete copies to or from one device.
#[derive(Debug, Default)]
pub(crate) struct EngineQueue {
    /// A copy engine runs them in order, whatever their queues' priorities.
    by_engine: CountedCopies,
    /// Kernels that copy over the link share its rate, but wait for no engine.
    by_kernels: CountedCopies,
    added: AtomicU64,
}

/// Copies that are in flight, with their bytes.
#[derive(Debug, Default)]
struct CountedCopies {
    bytes: AtomicU64,
    timelines: Mutex<Vec<PendingCopies>>,
}

/// The incomplete copies of one timeline, in its order.
#[derive(Debug)]
struct PendingCopies {
    timeline: TimelineId,
    pending: VecDeque<(Fence, u64)>,
}

/// Completed copies, to be dropped without a lock held.
type Completed = SmallVec<[(Fence, u64); 4]>;

impl EngineQueue {
    /// Counts `bytes` of a copy engine until `fence` is reached.
    pub(crate) fn add(&self, fence: &Fence, bytes: u64) {
        self.add_to(&self.by_engine, fence, bytes);
    }

    /// The same, of a kernel.
    pub(crate) fn add_kernel(&self, fence: &Fence, bytes: u64) {
        self.add_to(&self.by_kernels, fence, bytes);
    }

    fn add_to(&self, copies: &CountedCopies, fence: &Fence, bytes: u64) {
        if bytes < COUNTED_FROM {
            return;
        }
        copies.add(fence, bytes);
        if self.added.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1
            && !transload_core::mutant!("transfer/engine-queue-keeps-fences")
        {
            self.sweep();
        }
    }

    /// Counts a copy that is complete already.
    pub(crate) fn add_complete(&self) {
        self.added.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many copies were counted so far.
    pub(crate) fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// Returns the bytes of copy engines whose fences are not reached. Polls each timeline until its first incomplete fence. Takes no
    /// lock if nothing is queued. A concurrent call may make the result too large, never too small.
    pub(crate) fn queued(&self) -> u64 {
        self.by_engine.queued()
    }

    /// The same, with the bytes of kernels.
    pub(crate) fn in_flight(&self) -> u64 {
        self.queued().saturating_add(self.by_kernels.queued())
    }

    /// Removes completed copies. Holds no lock while it calls the driver.
    pub(crate) fn sweep(&self) {
        self.by_engine.sweep();
        self.by_kernels.sweep();
    }
}

impl CountedCopies {
    fn add(&self, fence: &Fence, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let timeline = fence.timeline().id();
        let mut completed = Completed::new();
        {
            let mut timelines = self.timelines.lock();
            let index =
                timelines.iter().position(|copies| copies.timeline == timeline).unwrap_or_else(|| {
                    timelines.push(PendingCopies { timeline, pending: VecDeque::new() });
                    timelines.len() - 1
                });
            if let Some(copies) = timelines.get_mut(index) {
                copies.pop_completed(Fence::is_known_complete, &mut completed);
                copies.pending.push_back((fence.clone(), bytes));
            }
        }
        self.subtract(&completed);
    }

    fn queued(&self) -> u64 {
        if self.bytes.load(Ordering::Relaxed) != 0 {
            self.sweep();
        }
        self.bytes.load(Ordering::Relaxed)
    }

    fn sweep(&self) {
        let mut timelines = std::mem::take(&mut *self.timelines.lock());
        let mut completed = Completed::new();
        for copies in &mut timelines {
            copies.pop_completed(Fence::is_complete, &mut completed);
        }
        timelines.retain(|copies| !copies.pending.is_empty());
        {
            let mut now = self.timelines.lock();
            for newer in now.drain(..) {
                match timelines.iter_mut().find(|copies| copies.timeline == newer.timeline) {
                    Some(copies) => {
                        copies.pending.extend(newer.pending);
                        // Concurrent sweeps may return their parts in any order.
                        copies.pending.make_contiguous().sort_by_key(|(fence, _)| fence.point());
                    }
                    None => timelines.push(newer),
                }
            }
            *now = timelines;
        }
        self.subtract(&completed);
    }

    fn subtract(&self, completed: &Completed) {
        let bytes: u64 = completed.iter().map(|(_, bytes)| bytes).sum();
        if bytes > 0 && !transload_core::mutant!("transfer/engine-queue-forgets") {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl PendingCopies {
    /// Removes completed copies up to the first incomplete one. One whose timeline panics stays.
    fn pop_completed(&mut self, is_complete: impl Fn(&Fence) -> bool, completed: &mut Completed) {
        let _stays = catch_panic(|| {
            while self.pending.front().is_some_and(|(fence, _)| is_complete(fence)) {
                completed.extend(self.pending.pop_front());
            }
        });
    }
}

/// All engine queues of a manager. Locked only to find routes and to sweep.
#[derive(Debug, Default)]
pub(crate) struct EngineQueues {
    queues: Mutex<Vec<(DeviceId, Direction, Arc<EngineQueue>)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDevice,
    FromDevice,
}

impl EngineQueues {
    /// Returns the queue of `lane`'s copies along the path; `None` unless one side is the host.
    pub(crate) fn get_or_create(&self, path: TransferPath, lane: DeviceId) -> Option<Arc<EngineQueue>> {
        Some(self.queue(lane, direction(path)?))
    }

    /// Returns the queue of its copies the other way.
    pub(crate) fn opposite(&self, path: TransferPath, lane: DeviceId) -> Option<Arc<EngineQueue>> {
        self.get_or_create(TransferPath::new(path.dst, path.src), lane)
    }

    fn queue(&self, lane: DeviceId, direction: Direction) -> Arc<EngineQueue> {
        let mut queues = self.queues.lock();
        if let Some((.., queue)) = queues.iter().find(|(of, to, _)| (*of, *to) == (lane, direction)) {
            return Arc::clone(queue);
        }
        let queue = Arc::<EngineQueue>::default();
        queues.push((lane, direction, Arc::clone(&queue)));
        queue
    }

    /// Removes completed copies from every queue.
    pub(crate) fn sweep(&self) {
        let queues: SmallVec<[_; 8]> =
            self.queues.lock().iter().map(|(.., queue)| Arc::clone(queue)).collect();
        queues.iter().for_each(|queue| queue.sweep());
    }
}

/// Returns the direction of a path from or to the host.
fn direction(path: TransferPath) -> Option<Direction> {
    match (path.src.device.is_cpu(), path.dst.device.is_cpu()) {
        (true, false) => Some(Direction::ToDevice),
        (false, true) => Some(Direction::FromDevice),
        _ => None,
    }
}

#[cfg(test)]
#[path = "../../tests/unit/engine_queue.rs"]
pub(crate) mod tests;
