//! Gets more memory: a new segment, or what can be reclaimed.
//!
//! In this order: free memory of all streams, coalesced, with waits on the device; entirely free segments, once their
//! work is complete, and the upstream resource's reserves; registered callbacks. The upstream is tried again after
//! each.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{Error, ErrorKind, Fence, MemoryInfo, MemoryShortage, Result, events::report};

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
    /// Allocators whose callbacks this thread is running: an allocation there must not call them again.
    static IN_CALLBACKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    pub(crate) fn grow(&self, stream: &CudaStream, params: AllocParams) -> Result<AllocatedBlock> {
        let grown = self.grow_or_call_back(stream, params);
        report::emit_deferred();
        grown
    }

    fn grow_or_call_back(&self, stream: &CudaStream, params: AllocParams) -> Result<AllocatedBlock> {
        /// Attempts while other threads move memory around.
        const ROUNDS: usize = 4;
        self.check_fits(params)?;
        for _ in 0..ROUNDS {
            if let Some(taken) = self.grow_or_reclaim(stream, params)? {
                return Ok(taken);
            }
            // Another thread may have had the memory in transit.
            self.wait_for_transit();
        }
        let shortage = self.shortage(params);
        for callback in self.out_of_memory_callbacks() {
            let freed = {
                let _inside = Inside::enter(self.id);
                callback(&shortage)
            };
            if freed && let Some(taken) = self.grow_or_reclaim(stream, params)? {
                return Ok(taken);
            }
        }
        Err(Error::out_of_memory(self.upstream.place(), self.shortage(params)))
    }

    /// Allocates memory without work in flight: coalesced from completed blocks, or a new segment. `None` if that
    /// requires a wait.
    pub(crate) fn grow_without_waiting(
        &self,
        stream: &CudaStream,
        params: AllocParams,
    ) -> Result<Option<AllocatedBlock>> {
        self.check_fits(params)?;
        if let Some(taken) = self.coalesce(stream, params, Reach::Complete)? {
            return Ok(Some(taken));
        }
        let next = self.options.segments.next(params, self.reserved.load(Ordering::Relaxed));
        if let Some(taken) = self.grow_by(stream, params, next)? {
            return Ok(Some(taken));
        }
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, params)?
        {
            return Ok(Some(taken));
        }
        self.grow_by(stream, params, params.size)
    }

    /// Tries every source once, cheapest first. `None` if memory is short.
    fn grow_or_reclaim(&self, stream: &CudaStream, params: AllocParams) -> Result<Option<AllocatedBlock>> {
        // Cached buffers first: usually memory of this stream.
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, params)?
        {
            return Ok(Some(taken));
        }
        let next = self.options.segments.next(params, self.reserved.load(Ordering::Relaxed));
        for size in [next, params.size] {
            if let Some(taken) = self.grow_by(stream, params, size)? {
                return Ok(Some(taken));
            }
        }
        let reclaimed = self.reclaim(stream, params)?;
        Ok(reclaimed.map(|(taken, how)| {
            report::allocation_retried(self.upstream.place(), params.requested, how);
            taken
        }))
    }

    /// Makes use of free memory of all streams. Returns how it got memory.
    fn reclaim(
        &self,
        stream: &CudaStream,
        params: AllocParams,
    ) -> Result<Option<(AllocatedBlock, &'static str)>> {
        if let Some(taken) = self.coalesce(stream, params, Reach::Any)? {
            return Ok(Some((taken, "free blocks were joined")));
        }
        // An error means that the work is over as well.
        self.wait_for_streams().unwrap_or_else(|error| self.report_failure("failed work is over", &error));
        if let Some(taken) = self.coalesce(stream, params, Reach::Complete)? {
            return Ok(Some((taken, "streams were waited for")));
        }
        self.trim();
        let trimmed = self.upstream.trim();
        trimmed.unwrap_or_else(|error| self.report_failure("the next allocation is tried", &error));
        let grown = self.grow_by(stream, params, params.size)?;
        Ok(grown.map(|taken| (taken, "free segments were released")))
    }

    fn report_failure(&self, what: &'static str, error: &Error) {
        report::call_failed(what, self.upstream.device(), error);
    }

    fn out_of_memory_callbacks(&self) -> Vec<Arc<super::super::shared::Callback>> {
        if IN_CALLBACKS.try_with(|inside| inside.borrow().contains(&self.id)).unwrap_or(true) {
            return Vec::new();
        }
        self.callbacks.lock().iter().map(|(_, callback)| Arc::clone(callback)).collect()
    }

    /// Fails if the request can never fit.
    fn check_fits(&self, params: AllocParams) -> Result<()> {
        /// From this size on, query the device's total memory first.
        const MUCH: u64 = 256 << 20;
        let beyond_limit = params.size > self.options.limit;
        let beyond_device =
            params.size >= MUCH && self.upstream.info().is_ok_and(|info| params.size > info.total);
        if beyond_limit || beyond_device {
            return Err(Error::out_of_memory(self.upstream.place(), self.shortage(params)));
        }
        Ok(())
    }

    fn shortage(&self, params: AllocParams) -> MemoryShortage {
        let requested = params.requested;
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

    /// Allocates from a new segment of this size. `None` if memory is short.
    fn grow_by(&self, stream: &CudaStream, params: AllocParams, size: u64) -> Result<Option<AllocatedBlock>> {
        let _held = self.track_transit();
        let made = self.new_segment(size, params.small).and_then(|segment| {
            if segment.size >= params.size {
                return Ok(segment);
            }
            // The start was not aligned.
            self.forget_segment(segment);
            self.new_segment(size.saturating_add(MIN_BLOCK_SIZE), params.small)
        });
        let segment = match made {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(None),
            made => made?,
        };
        let (address, size, small) = (segment.base, segment.size, segment.small);
        if size < params.size {
            self.forget_segment(segment);
            return Err(Error::new(
                ErrorKind::Device,
                format!("upstream returned {size} bytes, requested {}", params.size),
            ));
        }
        let number = self.segments.lock().add(segment);
        let piece = Piece { address, size, segment: number, small, order: Order::default() };
        let found = Found { piece, generation: 0, behind: Vec::new(), is_after: false };
        self.insert_and_allocate(stream, found, params, |served| &mut served.new_segment).map(Some)
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

    /// Blocks until all work on free memory is complete, also that of other backends. Returns its first error.
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
            // Holds no guard: a thread in `release_stream` may have to finish that work.
            for fence in fences.iter().filter(is_foreign) {
                outcome = outcome.and(fence.wait());
            }
        }
        outcome.and(self.wait_for_streams())
    }

    /// Blocks until streams' work on free memory is complete. Work of other backends may depend on this thread, so
    /// its memory counts as unavailable. Returns the first error of work that blocks waited for.
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
                // A captured stream cannot be waited for.
                ResolvedOwner::Ended(end) if end.held_by_user().is_none() => end.wait(),
                ResolvedOwner::Vacant | ResolvedOwner::Ended(_) => Ok(()),
                ResolvedOwner::Stream(stream) => {
                    let watermark = if stream.own.query_captured() {
                        Ok(None)
                    } else {
                        self.record_watermark(arena, generation, &stream)
                    };
                    // After an error the wait is for the last point, and returns the stream's error.
                    let sealed = watermark.ok().flatten().map_or(0, |watermark| watermark.point);
                    Fence::new(Arc::clone(&stream.timeline), sealed.max(last_point)).wait()
                }
            };
            self.poll_fences(index, Effort::Full);
        }
        outcome
    }
}

/// Marks this thread as running callbacks of an allocator.
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
