//! One device: its queues, its memory and its counts.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use ash::vk;
use transload_core::{
    DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryKind, Place, QueueTally, RawBuffer, Reclaimer,
    ResourceCounts, Result, SinkSlot, catch_panic, events::report, mutant,
};

use super::{
    Memory, Submissions, Vulkan, Waits,
    clock::WgpuClock,
    gate,
    staging::StagingPool,
    storage::{Counters, WgpuStorage},
};

/// The kinds of host memory that a queue copies.
pub(crate) const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];

/// A queue, with what its operations use.
pub(crate) struct Line {
    pub(crate) queue: Arc<Submissions>,
    /// Among the device's queues.
    pub(crate) index: usize,
    pub(crate) staging: StagingPool,
    /// The counts of the queue for a profiler's sink.
    pub(crate) tally: Arc<QueueTally>,
}

impl Line {
    fn new(index: usize, queue: &Arc<Submissions>) -> Arc<Self> {
        let (queue, staging) = (Arc::clone(queue), StagingPool::default());
        Arc::new(Self { queue, index, staging, tally: Arc::default() })
    }
}

pub(crate) struct DeviceState {
    pub(crate) info: DeviceInfo,
    /// That of `wgpu`.
    pub(crate) queue: Arc<Submissions>,
    pub(crate) wgpu: Arc<Line>,
    /// What copies beside it.
    pub(crate) copiers: Vec<Arc<Line>>,
    pub(crate) clock: Arc<WgpuClock>,
    /// Number of copiers that were leased.
    leased: AtomicUsize,
    pub(crate) counters: Arc<Counters>,
    pub(crate) leases: AtomicU64,
    /// The place for a profiler's sink.
    pub(crate) sink: SinkSlot,
    pub(crate) reclaimer: Arc<Reclaimer>,
    /// The memory that CUDA has, too.
    #[cfg(feature = "cuda")]
    pub(crate) shared: crate::cuda::SharedTable,
    /// Copies from and to CUDA's memory.
    #[cfg(feature = "cuda")]
    pub(crate) between: std::sync::OnceLock<crate::cuda::Between>,
    /// Whether a drain has returned the loss of the device.
    loss_reported: AtomicBool,
}

impl DeviceState {
    /// # Errors
    /// The driver's.
    pub(crate) fn new(vulkan: Arc<Vulkan>, info: DeviceInfo) -> Result<Arc<Self>> {
        let copier = |queue| Submissions::of_copies(&vulkan, queue);
        let copiers: Vec<_> = vulkan.copy_queues.iter().copied().map(copier).collect::<Result<_>>()?;
        let queue = Submissions::of_wgpu(&vulkan)?;
        Ok(Arc::new(Self {
            info,
            wgpu: Line::new(0, &queue),
            copiers: (1..).zip(&copiers).map(|(index, queue)| Line::new(index, queue)).collect(),
            clock: Arc::new(WgpuClock::new(&queue, copiers)),
            queue,
            leased: AtomicUsize::new(0),
            sink: SinkSlot::default(),
            counters: Arc::default(),
            leases: AtomicU64::new(0),
            reclaimer: Arc::default(),
            #[cfg(feature = "cuda")]
            shared: crate::cuda::SharedTable::default(),
            #[cfg(feature = "cuda")]
            between: std::sync::OnceLock::new(),
            loss_reported: AtomicBool::new(false),
        }))
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.info.id
    }

    /// Returns all queues.
    fn lines(&self) -> impl Iterator<Item = &Arc<Line>> {
        iter::once(&self.wgpu).chain(&self.copiers)
    }

    /// Returns the queue that the next lease for transfers in parts gets. Wgpu's if a framework's buffers are adopted.
    pub(crate) fn next_copier(&self) -> &Arc<Line> {
        if self.is_any_adopted() {
            return &self.wgpu;
        }
        let next = self.leased.fetch_add(1, Ordering::Relaxed) % self.copiers.len().max(1);
        self.copiers.get(next).unwrap_or(&self.wgpu)
    }

    /// Returns how many queues such leases get in turns.
    pub(crate) fn copiers(&self) -> usize {
        if self.is_any_adopted() { 1 } else { self.copiers.len().max(1) }
    }

    /// Returns whether there are buffers that a queue which only copies does not copy alone.
    fn is_any_adopted(&self) -> bool {
        self.counters.adopted.load(Ordering::Relaxed) > 0 && !mutant!("wgpu/adopted-by-wgpu")
    }

    /// Returns the queue of urgent copies. Wgpu's if the others are the same of Vulkan, or if a framework's buffers are adopted.
    pub(crate) fn urgent(&self) -> &Arc<Line> {
        let are_apart = self.copiers.iter().all(|line| line.queue.queue.raw != self.queue.queue.raw);
        if are_apart && !self.is_any_adopted() { self.least_busy() } else { &self.wgpu }
    }

    /// Returns a queue that has nothing to do, first wgpu's, unless a framework submits to that, of which nothing is known; else of those that
    /// only copy, whose copies are parts of transfers, the one that has the least to do.
    pub(crate) fn least_busy(&self) -> &Arc<Line> {
        if mutant!("wgpu/urgent-copies-pass") {
            return &self.wgpu;
        }
        let is_idle = |line: &&Arc<Line>| line.queue.outstanding() == 0;
        let idle = Some(&self.wgpu).filter(|line| !self.queue.vulkan.is_shared && is_idle(line));
        let least = || self.copiers.iter().min_by_key(|line| line.queue.outstanding());
        idle.or_else(least).unwrap_or(&self.wgpu)
    }

    /// Returns what wgpu's commands wait for: what is complete of the copiers, to see what they have written, and those of the fences that are
    /// of the copiers.
    pub(crate) fn copied<'a>(&self, after: impl IntoIterator<Item = &'a Fence>) -> Waits {
        let mut waits = self.awaited_of(&self.wgpu, after);
        self.copiers.iter().filter_map(|line| line.queue.known()).for_each(|wait| add(&mut waits, wait));
        waits
    }

    /// Returns what commands of a queue wait for: these, and what is complete of the others, to see what they have written.
    pub(super) fn with_written_by_others(&self, line: &Line, after: &[(vk::Semaphore, u64)]) -> Waits {
        let mut waits = Waits::from_slice(after);
        if !mutant!("wgpu/sees-other-queues") {
            let others = self.lines().filter(|other| other.index != line.index);
            others.filter_map(|other| other.queue.known()).for_each(|wait| add(&mut waits, wait));
        }
        waits
    }

    /// Returns what a queue waits for on the device to come after the work of another one of the device; `None` for other work. A copier does
    /// not wait for wgpu's queue, whose shaders may take long: copies of other transfers come behind.
    pub(super) fn awaited(&self, line: &Line, fence: &Fence) -> Option<(vk::Semaphore, u64)> {
        let id = fence.timeline().id();
        let by = self.lines().find(|other| other.queue.id == id)?;
        let may_take_long = by.index == self.wgpu.index && line.index != by.index;
        if may_take_long { None } else { by.queue.awaited(fence.point()) }
    }

    /// Returns what a queue waits for on the device to come after those of the fences that are of the others and not complete.
    pub(crate) fn awaited_of<'a>(&self, line: &Line, fences: impl IntoIterator<Item = &'a Fence>) -> Waits {
        let mut waits = Waits::new();
        let of_others = |fence: &&Fence| fence.timeline().id() != line.queue.id && !fence.is_complete();
        let open = fences.into_iter().filter(of_others).filter_map(|fence| self.awaited(line, fence));
        open.filter(|_| !mutant!("wgpu/waits-on-device")).for_each(|wait| add(&mut waits, wait));
        waits
    }

    /// Returns whether a queue copies between two places: within the device, between it and the host, or CUDA's memory of the same GPU.
    pub(crate) fn can_copy(&self, src: Place, dst: Place) -> bool {
        #[cfg(feature = "cuda")]
        if let Some(between) = self.between.get() {
            let is_here = |place: Place| place == Place::new(self.id(), MemoryKind::Device);
            if between.is_theirs(src) && is_here(dst) || is_here(src) && between.is_theirs(dst) {
                return true;
            }
        }
        self.can_copy_alone(src, dst)
    }

    /// The same, without CUDA's memory.
    pub(crate) fn can_copy_alone(&self, src: Place, dst: Place) -> bool {
        let is_here = |place: Place| place == Place::new(self.id(), MemoryKind::Device);
        let is_host = |place: Place| {
            place.device.is_cpu()
                && HOST_KINDS.contains(&place.kind)
                && self.info.kinds.contains(&MemoryKind::Pinned)
        };
        match (is_here(src), is_here(dst)) {
            (true, true) => true,
            (true, false) => is_host(dst),
            (false, true) => is_host(src),
            (false, false) => false,
        }
    }

    /// Allocates a buffer. If memory is short, frees what is only kept, waits for dropped memory in flight, and tries again.
    pub(crate) fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.queue.check_usable()?;
        if !self.info.kinds.contains(&kind) {
            let kinds: Vec<_> = self.info.kinds.iter().map(ToString::to_string).collect();
            let why = match kind {
                MemoryKind::Mapped => ", since its own memory is not the host's, or not cached by it",
                _ => "",
            };
            let text = format!("{} has no {kind} memory{why}; it has {}", self.id(), kinds.join(" and "));
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "requested 0 bytes; at least 1 is valid"));
        }
        self.info.check_allocation(bytes as u64)?;
        self.reclaimer.sweep();
        let allocate = || WgpuStorage::allocate(&self.queue.vulkan, kind, bytes, &self.counters);
        let storage = match allocate() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.reclaim() => {
                allocate().inspect(|_| {
                    let place = if kind == MemoryKind::Device { self.id() } else { DeviceId::Cpu };
                    report::allocation_retried(
                        Place::new(place, kind),
                        bytes as u64,
                        "dropped buffers were freed",
                    );
                })?
            }
            other => other?,
        };
        report::emit_deferred();
        Ok(RawBuffer::new(Box::new(storage), &self.reclaimer))
    }

    /// Takes a buffer of wgpu.
    pub(crate) fn adopt(&self, buffer: &wgpu::Buffer) -> Result<RawBuffer> {
        let memory = Memory::adopt(&self.queue.vulkan, buffer)?;
        let storage = WgpuStorage::adopt(memory, &self.counters);
        Ok(RawBuffer::new(Box::new(storage), &self.reclaimer))
    }

    /// Frees memory that is only kept or pending free. Returns whether any was.
    pub(crate) fn reclaim(&self) -> bool {
        let blocks = &self.queue.vulkan.blocks;
        let bytes = || (self.counters.bytes.load(Ordering::Relaxed), blocks.bytes().0);
        let before = bytes();
        self.lines().for_each(|line| line.staging.release(&line.queue));
        #[cfg(feature = "cuda")]
        let is_released = self.between.get().is_some_and(|between| between.release().is_some());
        #[cfg(not(feature = "cuda"))]
        let is_released = false;
        let _of_others = self.reclaimer.drain_where(|fence| fence.timeline().device() == self.id());
        self.poll_wgpu();
        blocks.trim();
        let after = bytes();
        is_released || after.0 < before.0 || after.1 < before.1
    }

    /// Has wgpu drop what its complete submissions used: it keeps that of the last one until the next.
    fn poll_wgpu(&self) {
        if self.queue.refuse_callback().is_err() || mutant!("wgpu/polls-wgpu") {
            return;
        }
        // It panics if it finds the device lost, and callbacks of its user may.
        if let Err(panicked) = catch_panic(|| self.queue.vulkan.wgpu_device().poll(wgpu::PollType::Poll)) {
            report::call_failed("wgpu's poll", self.id(), &panicked);
        }
    }

    /// Adds the counts of what is alive.
    pub(crate) fn add_to(&self, counts: &mut ResourceCounts) {
        counts.allocations += self.counters.allocations.load(Ordering::Acquire);
        counts.bytes += self.counters.bytes.load(Ordering::Acquire);
        let unused = self.queue.vulkan.blocks.bytes().1;
        counts.bytes += unused;
        counts.cached_bytes += self.lines().map(|line| line.staging.bytes()).sum::<u64>() + unused;
        counts.pending_free += self.reclaimer.len() as u64;
        counts.leases += self.leases.load(Ordering::Relaxed);
    }

    /// Waits for all work, then frees what is kept. The loss of the device is returned once.
    pub(crate) fn drain(&self) -> Result<()> {
        for line in self.lines() {
            line.queue.block_until(line.queue.enqueued());
            line.staging.release(&line.queue);
        }
        let outcome = self.queue.check_usable().and(self.reclaimer.drain());
        #[cfg(feature = "cuda")]
        let outcome = self.between.get().map_or(Ok(()), |between| between.drain()).and(outcome);
        // Also after a loss.
        let freed = self.reclaimer.drain();
        self.poll_wgpu();
        self.queue.vulkan.blocks.trim();
        match outcome.and(freed) {
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                if self.loss_reported.swap(true, Ordering::Relaxed) { Ok(()) } else { Err(error) }
            }
            other => other,
        }
    }
}

/// Adds what to wait for; of one semaphore only the last value.
fn add(waits: &mut Waits, (semaphore, value): (vk::Semaphore, u64)) {
    match waits.iter_mut().find(|(other, _)| *other == semaphore) {
        Some((_, until)) => *until = value.max(*until),
        None => waits.push((semaphore, value)),
    }
}

impl Drop for DeviceState {
    /// Waits: what is in flight uses the staging buffers, and wgpu's queue the semaphores of the others.
    fn drop(&mut self) {
        let copiers = self.copiers.iter().map(|line| &line.queue);
        copiers.clone().for_each(|queue| queue.block_until(queue.enqueued()));
        if self.queue.vulkan.is_shared && !self.copiers.is_empty() {
            // SAFETY: there are no commands.
            let see = || unsafe { self.queue.submit(&[], &self.copied([])) };
            // What a framework submits later sees what these wrote, also before they are hidden. If it is refused, the next one does that.
            let _first = see();
            gate::hide(self.queue.queue.raw, copiers);
            // After what the framework has submitted until now, which may wait for their semaphores.
            if let Err(error) = see()
                && !self.queue.is_idle()
            {
                self.queue.lock_and_lose(error);
            }
        }
        self.queue.block_until(self.queue.enqueued());
        // It may have buffers, whose memory keeps the device.
        self.poll_wgpu();
    }
}

#[cfg(test)]
#[path = "../../tests/unit/lost.rs"]
mod tests;
