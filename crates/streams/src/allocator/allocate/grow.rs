//! More memory: a new segment, and what is tried where there is none.
//!
//! In this order: what is free anywhere, gathered behind waits on the device; segments that are wholly free, once their work
//! is over, and the upstream resource's own reserves; the registered callbacks. The upstream is asked again after each.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{Error, ErrorKind, Fence, MemoryInfo, MemoryShortage, Result};

use super::super::{
    arena::{
        blocks::{Order, Piece},
        size::{AllocParams, MIN_BLOCK_SIZE},
    },
    arenas::{ResolvedOwner, resolve_owner},
    segments::Segment,
    shared::{AllocatedBlock, Shared},
};
use super::{
    coalesce::Reach,
    reuse::{Effort, Found},
};
use crate::CudaStream;

thread_local! {
    /// The allocators in resolve_owner callbacks this thread is: one that allocates there must not call itself.
    static IN_CALLBACKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    pub(crate) fn grow(&self, stream: &CudaStream, want: AllocParams) -> Result<AllocatedBlock> {
        /// So often is memory looked for that others move about.
        const ROUNDS: usize = 4;
        self.check_fits(want)?;
        for _ in 0..ROUNDS {
            if let Some(taken) = self.grow_or_reclaim(stream, want)? {
                return Ok(taken);
            }
            // Another thread may have had in hand what was missing.
            self.wait_for_transit();
        }
        let shortage = self.shortage(want);
        for callback in self.out_of_memory_callbacks() {
            let freed = {
                let _inside = Inside::enter(self.id);
                callback(&shortage)
            };
            if freed && let Some(taken) = self.grow_or_reclaim(stream, want)? {
                return Ok(taken);
            }
        }
        Err(Error::out_of_memory(self.upstream.place(), self.shortage(want)))
    }

    /// Memory that nothing uses: joined of what is over anywhere, or of a new segment. `None` where there is none without
    /// waiting for work.
    pub(crate) fn grow_without_waiting(
        &self,
        stream: &CudaStream,
        want: AllocParams,
    ) -> Result<Option<AllocatedBlock>> {
        self.check_fits(want)?;
        if let Some(taken) = self.coalesce(stream, want, Reach::Complete)? {
            return Ok(Some(taken));
        }
        let next = self.options.segments.next(want, self.reserved.load(Ordering::Relaxed));
        if let Some(taken) = self.grow_by(stream, want, next)? {
            return Ok(Some(taken));
        }
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, want)?
        {
            return Ok(Some(taken));
        }
        self.grow_by(stream, want, want.size)
    }

    /// Tries everything once, from what costs least to what costs most. `None` where memory is short.
    fn grow_or_reclaim(&self, stream: &CudaStream, want: AllocParams) -> Result<Option<AllocatedBlock>> {
        // Kept buffers first: memory of this stream, in most cases.
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, want)?
        {
            return Ok(Some(taken));
        }
        let next = self.options.segments.next(want, self.reserved.load(Ordering::Relaxed));
        for size in [next, want.size] {
            if let Some(taken) = self.grow_by(stream, want, size)? {
                return Ok(Some(taken));
            }
        }
        if let Some(taken) = self.coalesce(stream, want, Reach::Any)? {
            return Ok(Some(taken));
        }
        // An error means that the work is over as well.
        let _over = self.wait_for_streams();
        if let Some(taken) = self.coalesce(stream, want, Reach::Complete)? {
            return Ok(Some(taken));
        }
        self.trim();
        // If giving back fails too, it is still memory that the caller lacks.
        let _told_by_the_next_try = self.upstream.trim();
        self.grow_by(stream, want, want.size)
    }

    fn out_of_memory_callbacks(&self) -> Vec<Arc<super::super::shared::Callback>> {
        if IN_CALLBACKS.try_with(|inside| inside.borrow().contains(&self.id)).unwrap_or(true) {
            return Vec::new();
        }
        self.callbacks.lock().iter().map(|(_, callback)| Arc::clone(callback)).collect()
    }

    /// What no freeing could make room for needs no waiting.
    fn check_fits(&self, want: AllocParams) -> Result<()> {
        /// Below this the driver is not asked first.
        const MUCH: u64 = 256 << 20;
        let beyond_limit = want.size > self.options.limit;
        let beyond_device =
            want.size >= MUCH && self.upstream.info().is_ok_and(|info| want.size > info.total);
        if beyond_limit || beyond_device {
            return Err(Error::out_of_memory(self.upstream.place(), self.shortage(want)));
        }
        Ok(())
    }

    fn shortage(&self, want: AllocParams) -> MemoryShortage {
        let requested = want.requested;
        let limit = self.options.limit;
        if limit != u64::MAX {
            let in_use: u64 = self.arenas.iter().map(|(_, arena)| arena.lock().blocks.counts.in_use).sum();
            return MemoryShortage {
                requested,
                free: Some(limit.saturating_sub(in_use)),
                total: Some(limit),
            };
        }
        let info = self.upstream.info().ok();
        MemoryShortage {
            requested,
            free: info.map(|MemoryInfo { free, .. }| free),
            total: info.map(|MemoryInfo { total, .. }| total),
        }
    }

    /// A block of a new segment of so many bytes. `None` where there is no memory for it.
    fn grow_by(&self, stream: &CudaStream, want: AllocParams, size: u64) -> Result<Option<AllocatedBlock>> {
        let _held = self.track_transit();
        let made = self.new_segment(size, want.small).and_then(|segment| {
            if segment.size >= want.size {
                return Ok(segment);
            }
            // The resource's beginning was no multiple of the grain.
            self.forget_segment(segment);
            self.new_segment(size.saturating_add(MIN_BLOCK_SIZE), want.small)
        });
        let segment = match made {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(None),
            made => made?,
        };
        let (address, size, small) = (segment.base, segment.size, segment.small);
        if size < want.size {
            self.forget_segment(segment);
            return Err(Error::new(
                ErrorKind::Device,
                "the upstream resource gave less than it was asked for",
            ));
        }
        let number = self.segments.lock().add(segment);
        let piece = Piece { address, size, segment: number, small, order: Order::default() };
        let found = Found { piece, generation: 0, behind: Vec::new() };
        self.insert_and_allocate(stream, found, want, |served| &mut served.new_segment).map(Some)
    }

    fn new_segment(&self, size: u64, small: bool) -> Result<Segment> {
        let limit = self.options.limit;
        let within = |held: u64| held.checked_add(size).filter(|sum| *sum <= limit);
        let held = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        let held = held.map_err(|held| {
            let free = Some(limit.saturating_sub(held));
            let shortage = MemoryShortage { requested: size, free, total: Some(limit) };
            Error::out_of_memory(self.upstream.place(), shortage)
        })?;
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let made = self.upstream.allocate_segment(bytes).and_then(|buffer| {
            let no_address =
                || Error::new(ErrorKind::Unsupported, "the upstream resource's memory has no address");
            Segment::new(buffer, size, small).ok_or_else(no_address)
        });
        match made {
            Ok(segment) => {
                self.peak_reserved.fetch_max(held + size, Ordering::Relaxed);
                Ok(segment)
            }
            Err(error) => {
                self.reserved.fetch_sub(size, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    pub(crate) fn forget_segment(&self, segment: Segment) {
        let reserved = segment.reserved;
        drop(segment);
        self.reserved.fetch_sub(reserved, Ordering::Relaxed);
    }

    /// Blocks until what is free is also over, whoever's work it waits for. Answers the first error of that work.
    pub(crate) fn wait_for_all_work(&self) -> Result<()> {
        let mut outcome = Ok(());
        self.empty_caches();
        for (_, arena) in self.arenas.iter() {
            let fences: Vec<Fence> = {
                let state = arena.lock();
                state.deferred.iter().flat_map(|waiting| waiting.until.iter().cloned()).collect()
            };
            let is_foreign =
                |fence: &&Fence| CudaStream::can_wait(fence, true) && !CudaStream::can_wait(fence, false);
            // Nothing is held: a thread that releases a stream need not wait for this, as it may be the one to end that work.
            for fence in fences.iter().filter(is_foreign) {
                outcome = outcome.and(fence.wait());
            }
        }
        outcome.and(self.wait_for_streams())
    }

    /// Blocks until what is free is also over, as far as the work is a stream's. What another backend does may end only by
    /// something that this thread has still to do; it counts as not available. Answers the first error of work that blocks waited
    /// for.
    fn wait_for_streams(&self) -> Result<()> {
        let mut outcome = Ok(());
        let _held = self.track_handles();
        for (index, arena) in self.arenas.iter() {
            let (generation, owner) = resolve_owner(arena);
            let (waiting, last_point) = {
                let state = arena.lock();
                let waiting: Vec<Fence> =
                    state.deferred.iter().flat_map(|waiting| waiting.until.iter().cloned()).collect();
                (waiting, state.last_point)
            };
            for fence in waiting.iter().filter(|fence| CudaStream::can_wait(fence, false)) {
                outcome = outcome.and(fence.wait());
            }
            // An error means that the work is over as well.
            let _over = match owner {
                // Of one that someone captures nothing can be waited for.
                ResolvedOwner::Ended(end) if end.timeline().held_by_user(end.point()).is_none() => end.wait(),
                ResolvedOwner::Vacant | ResolvedOwner::Ended(_) => Ok(()),
                ResolvedOwner::Stream(stream) => {
                    let watermark = if stream.own.query_captured() {
                        Ok(None)
                    } else {
                        self.record_watermark(arena, generation, &stream)
                    };
                    let sealed = watermark.ok().flatten().map_or(0, |watermark| watermark.point);
                    Fence::new(Arc::clone(&stream.timeline), sealed.max(last_point)).wait()
                }
            };
            self.poll_fences(index, Effort::Full);
        }
        outcome
    }
}

/// While it generations, this thread is in a callback of one allocator.
struct Inside;

impl Inside {
    fn enter(allocator: u64) -> Self {
        let _ending = IN_CALLBACKS.try_with(|inside| inside.borrow_mut().push(allocator));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ending = IN_CALLBACKS.try_with(|inside| inside.borrow_mut().pop());
    }
}
