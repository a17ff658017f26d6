//! More memory: a new segment, and what is tried where there is none.
//!
//! In this order: what is free anywhere, gathered behind waits on the device; segments that are wholly free, once their work
//! is over, and the upstream resource's own reserves; the registered callbacks. The upstream is asked again after each.

use std::{cell::RefCell, sync::atomic::Ordering};

use transload_core::{Error, ErrorKind, Fence, MemoryInfo, MemoryShortage, Result};

use super::{
    arenas::{Whose, whose},
    blocks::{Order, Piece},
    builder::CrossStreamReuse,
    reuse::Source,
    segments::Segment,
    shared::{Shared, Taken},
    size::{GRAIN, Want},
};
use crate::CudaStream;

thread_local! {
    /// The allocators in whose callbacks this thread is: one that allocates there must not call itself.
    static IN_CALLBACKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn is_shortage(error: &Error) -> bool {
    error.kind() == ErrorKind::OutOfMemory
}

impl Shared {
    pub(super) fn grow(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Taken> {
        self.refuse_what_never_fits(want)?;
        match self.climb(stream, index, want) {
            Err(error) if is_shortage(&error) => {}
            other => return other,
        }
        // Another thread may have had in hand what was missing.
        self.wait_briefly_for_hands();
        match self.climb(stream, index, want) {
            Err(error) if is_shortage(&error) => {}
            other => return other,
        }
        let shortage = self.shortage(want);
        for callback in self.callbacks_for_a_shortage() {
            let freed = {
                let _inside = Inside::enter(self.id);
                callback(&shortage)
            };
            if freed {
                match self.climb(stream, index, want) {
                    Err(error) if is_shortage(&error) => {}
                    other => return other,
                }
            }
        }
        Err(Error::out_of_memory(self.upstream.place(), self.shortage(want)))
    }

    /// Memory that nothing uses: joined of what is over anywhere, or of a new segment.
    ///
    /// # Errors
    /// `OutOfMemory` where there is none without waiting for work or giving anything back.
    pub(super) fn grow_without_waiting(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Taken> {
        self.refuse_what_never_fits(want)?;
        if self.free_bytes() >= want.size
            && let Some(taken) = self.gather(stream, index, want, false)?
        {
            return Ok(taken);
        }
        match self.grow_by(stream, index, want, self.next_segment(want)) {
            Err(error) if is_shortage(&error) => {}
            other => return other,
        }
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        self.grow_by(stream, index, want, want.size)
    }

    fn next_segment(&self, want: Want) -> u64 {
        self.options.segments.next(want, self.reserved.load(Ordering::Relaxed))
    }

    /// Tries everything once, from what costs least to what costs most.
    fn climb(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Taken> {
        if self.empty_caches()
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        if self.options.reuse == CrossStreamReuse::BeforeGrowing
            && self.free_bytes() >= want.size
            && let Some(taken) = self.gather(stream, index, want, false)?
        {
            return Ok(taken);
        }
        let sizes = [self.next_segment(want), want.size];
        for size in sizes {
            match self.grow_by(stream, index, want, size) {
                Err(error) if is_shortage(&error) => {}
                other => return other,
            }
        }
        if let Some(taken) = self.gather(stream, index, want, true)? {
            return Ok(taken);
        }
        self.wait_for_everything_free();
        if let Some(taken) = self.gather(stream, index, want, false)? {
            return Ok(taken);
        }
        self.trim();
        // If giving back fails too, it is still memory that the caller lacks.
        let _told_by_the_next_try = self.upstream.trim();
        self.grow_by(stream, index, want, want.size)
    }

    fn callbacks_for_a_shortage(&self) -> Vec<std::sync::Arc<super::shared::Callback>> {
        if IN_CALLBACKS.try_with(|inside| inside.borrow().contains(&self.id)).unwrap_or(true) {
            return Vec::new();
        }
        self.callbacks.lock().iter().map(|(_, callback)| std::sync::Arc::clone(callback)).collect()
    }

    /// What no freeing could make room for needs no waiting.
    fn refuse_what_never_fits(&self, want: Want) -> Result<()> {
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

    fn shortage(&self, want: Want) -> MemoryShortage {
        let requested = want.requested;
        let limit = self.options.limit;
        if limit != u64::MAX {
            let in_use: u64 = self.arenas.iter().map(|(_, arena)| arena.lock().blocks.tally.in_use).sum();
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

    fn free_bytes(&self) -> u64 {
        let in_use: u64 = self.arenas.iter().map(|(_, arena)| arena.lock().blocks.tally.in_use).sum();
        self.reserved.load(Ordering::Relaxed).saturating_sub(in_use)
    }

    fn grow_by(&self, stream: &CudaStream, index: u32, want: Want, size: u64) -> Result<Taken> {
        let _held = self.hold();
        let segment = self.new_segment(size, want.small)?;
        if segment.size < want.size {
            // The resource's beginning was no multiple of the grain.
            let more = size.saturating_add(GRAIN);
            self.forget_segment(segment);
            let segment = self.new_segment(more, want.small)?;
            return self.take_of_segment(stream, index, want, segment);
        }
        self.take_of_segment(stream, index, want, segment)
    }

    fn take_of_segment(
        &self,
        stream: &CudaStream,
        index: u32,
        want: Want,
        segment: Segment,
    ) -> Result<Taken> {
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
        self.place(stream, index, piece, Vec::new(), want, Source::NewSegment)
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

    pub(super) fn forget_segment(&self, segment: Segment) {
        let reserved = segment.reserved;
        drop(segment);
        self.reserved.fetch_sub(reserved, Ordering::Relaxed);
    }

    /// Blocks until what is free is also over, whoever's work it waits for. Answers the first error of that work.
    pub(super) fn wait_for_all_work(&self) -> Result<()> {
        let mut outcome = Ok(());
        self.empty_caches();
        for (index, arena) in self.arenas.iter() {
            let fences_where = |is_wanted: fn(&Fence) -> bool| -> Vec<Fence> {
                let state = arena.lock();
                let until = state.waiting.iter().flat_map(|waiting| &waiting.until);
                until
                    .filter(|fence| CudaStream::can_be_behind(fence, true) && is_wanted(fence))
                    .cloned()
                    .collect()
            };
            // Not of streams, so whoever releases one need not wait for this: it may be the one to end that work.
            for fence in fences_where(|fence| !CudaStream::can_come_after(fence)) {
                outcome = outcome.and(fence.wait());
            }
            let _held = self.hold();
            for fence in fences_where(CudaStream::can_come_after) {
                outcome = outcome.and(fence.wait());
            }
            self.ask(index);
        }
        self.wait_for_everything_free();
        outcome
    }

    /// Blocks until what is free is also over, as far as the work is a stream's. What another backend does may end only by
    /// something that this thread has still to do; it counts as not available.
    fn wait_for_everything_free(&self) {
        let _held = self.hold();
        for (_, arena) in self.arenas.iter() {
            let mut fences: Vec<Fence> = Vec::new();
            let (_, owner) = whose(arena);
            {
                let state = arena.lock();
                fences.extend(state.waiting.iter().flat_map(|waiting| waiting.until.iter().cloned()));
                if let Whose::Stream(stream) = &owner {
                    fences.push(Fence::new(std::sync::Arc::clone(&stream.timeline), state.last_point));
                }
            }
            match owner {
                Whose::Nobodys => {}
                Whose::Ended(end) => fences.push(end),
                Whose::Stream(stream) if stream.is_captured() => {}
                Whose::Stream(stream) => {
                    if let Ok(seal) = self.seal(arena, &stream) {
                        fences.push(Fence::new(std::sync::Arc::clone(&stream.timeline), seal.point));
                    }
                }
            }
            for fence in fences.iter().filter(|fence| CudaStream::can_come_after(fence)) {
                // An error means that the work is over as well.
                let _over = fence.wait();
            }
        }
    }
}

/// While it lives, this thread is in a callback of one allocator.
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
