//! A stream's blocks, behind a lock that usually only threads of that stream take.
//!
//! Nothing here calls the driver. Callers query it without the lock and enter the result afterwards, as
//! [`Arena::record_watermark`] does.

pub(crate) mod blocks;
pub(crate) mod in_flight;
pub(crate) mod quick;
pub(crate) mod size;
pub(crate) mod size_class_counts;

use std::collections::HashMap;

use transload_core::mutant;

use self::{
    blocks::{Blocks, Holder, Order, Piece, State},
    in_flight::InFlight,
    size::AllocParams,
};
use super::block::FreeError;
use crate::sync::{Mutex, MutexGuard};

/// A stream's blocks, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct Arena<O, F, U> {
    state: Mutex<ArenaState<O, F, U>>,
}

/// State behind the lock. `O` is the owner, `F` a fence, `U` a recorded user.
pub(crate) struct ArenaState<O, F, U> {
    /// Another one for each stream that the arena serves, from 1; 0 while it is vacant.
    pub(crate) generation: u64,
    pub(crate) owner: O,
    pub(crate) blocks: Blocks,
    /// Number of stream-ordered frees.
    pub(crate) freed: u64,
    pub(crate) watermark: FreeWatermark,
    /// Blocks that become free when their fences are complete.
    pub(crate) deferred: Vec<DeferredFree<F>>,
    /// Host memory: a block is free only when the stream's own work is complete.
    pub(crate) is_hosts: bool,
    /// Blocks of host memory in flight on this stream.
    pub(crate) in_flight: InFlight,
    /// What this stream is ordered after on other streams.
    pub(crate) ordered: Vec<Ordered>,
    /// Fences of explicit dependencies.
    pub(crate) dependencies: Vec<F>,
    /// Point of this stream after its last wait for an event. Not a fence, which would keep the stream alive.
    pub(crate) waits_point: u64,
    /// Recorded users of live blocks.
    pub(crate) users: HashMap<u32, Vec<U>>,
    /// How often the stream was recorded as a user of a block; of another one's its end must be recorded.
    pub(crate) recorded: u64,
    /// Last known point of the stream that uses one of its free blocks.
    pub(crate) last_point: u64,
    pub(crate) served: ReuseCounts,
}

/// What a stream has used so far. Another one has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses {
    generation: u64,
    allocated: u64,
    freed: u64,
    recorded: u64,
}

/// A point of the stream that covers the first `freed` frees.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreeWatermark {
    pub(crate) freed: u64,
    pub(crate) point: u64,
}

/// A freed block that other streams still use.
pub(crate) struct DeferredFree<F> {
    pub(crate) node: u32,
    pub(crate) until: Vec<F>,
}

/// How much of another generation's work this stream is ordered after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) generation: u64,
    pub(crate) freed: u64,
    pub(crate) point: u64,
}

/// Requests by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReuseCounts {
    /// A recently freed block of that size on the stream.
    pub same_size: u64,
    /// The best fit among the stream's free blocks.
    pub fitted: u64,
    /// A completed block of another stream.
    pub other_stream_complete: u64,
    /// A block of another stream, with a wait.
    pub other_stream_waited: u64,
    /// Coalesced blocks of several streams.
    pub gathered: u64,
    /// A new segment.
    pub new_segment: u64,
}

/// Identifies a live block of one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) node: u32,
    pub(crate) serial: u64,
}

impl<O, F, U> Arena<O, F, U> {
    pub(crate) fn new(owner: O) -> Self {
        Self {
            state: Mutex::new(ArenaState {
                generation: 0,
                owner,
                blocks: Blocks::new(),
                freed: 0,
                watermark: FreeWatermark::default(),
                deferred: Vec::new(),
                is_hosts: false,
                in_flight: InFlight::default(),
                ordered: Vec::new(),
                dependencies: Vec::new(),
                waits_point: 0,
                users: HashMap::new(),
                recorded: 0,
                last_point: 0,
                served: ReuseCounts::default(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ArenaState<O, F, U>> {
        self.state.lock()
    }

    /// Ensures that a recorded point covers all frees so far. `record` returns a point after all work enqueued so
    /// far. Later frees are not covered. `None` if the arena serves another generation.
    pub(crate) fn record_watermark<E>(
        &self,
        generation: u64,
        record: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<FreeWatermark>, E> {
        let freed = {
            let state = self.lock();
            if state.generation != generation {
                return Ok(None);
            }
            if state.watermark.freed == state.freed {
                return Ok(Some(state.watermark));
            }
            state.freed
        };
        let watermark = FreeWatermark { freed, point: record()? };
        self.lock().note_watermark(generation, watermark);
        Ok(Some(watermark))
    }
}

impl<O, F, U> ArenaState<O, F, U> {
    /// Allocates from the stream's free blocks without polling.
    #[inline]
    pub(crate) fn take_own(&mut self, params: AllocParams) -> Option<u32> {
        if let Some(node) = self.blocks.take_quick(params) {
            self.served.same_size += 1;
            return Some(node);
        }
        self.take_fitting(params)
    }

    /// Like [`take_own`](Self::take_own), but returns the handle and the address.
    #[inline]
    pub(crate) fn take_block(&mut self, params: AllocParams) -> Option<(Handle, u64)> {
        let node = self.take_own(params)?;
        let found = self.blocks.node(node);
        Some((Handle { node, serial: found.serial }, found.address))
    }

    fn take_fitting(&mut self, params: AllocParams) -> Option<u32> {
        let mut node = self.blocks.take_fitting(params);
        if node.is_none() && self.blocks.merge_quick() {
            node = self.blocks.take_fitting(params);
        }
        self.served.fitted += u64::from(node.is_some());
        node
    }

    /// Returns the live block named by a handle.
    #[inline]
    pub(crate) fn live(&self, handle: Handle, address: u64) -> Result<u32, FreeError> {
        match self.blocks.get(handle.node) {
            Some(node) if node.serial == handle.serial && node.address == address => match node.state {
                State::Live => Ok(handle.node),
                _ => Err(FreeError::AlreadyFreed),
            },
            // The node was reused for another block.
            _ => Err(FreeError::AlreadyFreed),
        }
    }

    /// Returns the live plain block that starts at an address.
    pub(crate) fn live_at(&self, address: u64) -> Result<u32, FreeError> {
        let index = self.blocks.at(address).ok_or(FreeError::NeverAllocated)?;
        let node = self.blocks.node(index);
        match (node.state, node.holder) {
            (State::Live, Holder::Buffer) if !mutant!("streams/buffer-owns-its-block") => {
                Err(FreeError::OwnedByBuffer)
            }
            (State::Live, _) => Ok(index),
            _ => Err(FreeError::AlreadyFreed),
        }
    }

    /// Frees a live block in stream order, if it has no other users. Returns whether it did.
    #[inline]
    pub(crate) fn free_exclusive(&mut self, found: Result<u32, FreeError>) -> bool {
        match found {
            Ok(node) if self.blocks.node(node).holder == Holder::Caller => {
                self.free(node);
                true
            }
            _ => false,
        }
    }

    /// Frees a live block in stream order.
    #[inline]
    pub(crate) fn free(&mut self, node: u32) {
        self.freed += 1;
        self.blocks.free(node, Order { freed: self.freed, point: 0 });
    }

    /// Frees a live block once the fences are complete.
    pub(crate) fn free_after(&mut self, node: u32, order: Order, until: Vec<F>) {
        if until.is_empty() {
            self.blocks.free(node, order);
        } else {
            self.blocks.free_deferred(node, order);
            self.deferred.push(DeferredFree { node, until });
        }
    }

    /// Inserts a range that is free once the fences are complete.
    pub(crate) fn insert_after(&mut self, piece: Piece, until: Vec<F>) {
        if until.is_empty() {
            self.blocks.insert_free(piece);
        } else {
            let node = self.blocks.insert_deferred(piece);
            self.deferred.push(DeferredFree { node, until });
        }
    }

    /// Removes completed fences and frees blocks without remaining ones. The fences go to `dropped`, to be dropped
    /// without the lock.
    pub(crate) fn free_completed(&mut self, over: impl Fn(&F) -> bool, dropped: &mut Vec<F>) {
        let mut index = 0;
        while let Some(waiting) = self.deferred.get_mut(index) {
            dropped.extend(waiting.until.extract_if(.., |fence| over(fence)));
            if waiting.until.is_empty() {
                let DeferredFree { node, .. } = self.deferred.swap_remove(index);
                let Order { freed, point } = self.blocks.node(node).order;
                if self.is_hosts && freed == 0 && point > 0 {
                    self.in_flight.push(point, node, self.blocks.node(node).size);
                } else {
                    self.blocks.merge(node);
                }
            } else {
                index += 1;
            }
        }
    }

    /// Frees a live block of host memory whose last use completes at `point` of its own stream.
    pub(crate) fn free_in_flight(&mut self, node: u32, point: u64) {
        self.in_flight.push(point, node, self.blocks.node(node).size);
        self.blocks.free_deferred(node, Order { freed: 0, point });
    }

    /// Frees the in-flight blocks up to `reached`. Returns whether there were any.
    pub(crate) fn free_reached(&mut self, reached: u64) -> bool {
        let mut any = false;
        while let Some(node) = self.in_flight.pop_reached(reached) {
            self.blocks.push_quick(node);
            any = true;
        }
        any
    }

    /// Allocates a block still in flight, for a caller that waits: the first to complete that is large enough.
    pub(crate) fn take_in_flight(&mut self, params: AllocParams) -> Option<u32> {
        let Self { in_flight, blocks, .. } = self;
        if let Some(node) = in_flight.take_first(|node| blocks.node(node).size == params.size) {
            self.served.same_size += 1;
            return Some(blocks.mark_live(node, params));
        }
        let fits =
            |node: u32| blocks.node(node).size >= params.size && blocks.node(node).small == params.small;
        match in_flight.take_first(fits) {
            Some(node) => blocks.merge(node),
            // None fits alone: merge them all.
            None => drop(self.free_reached(u64::MAX)),
        }
        self.take_fitting(params)
    }

    /// Returns the bytes in freed blocks that wait for work.
    pub(crate) fn busy(&self) -> u64 {
        let waiting: u64 = self.deferred.iter().map(|waiting| self.blocks.node(waiting.node).size).sum();
        self.in_flight.bytes() + waiting
    }

    /// Enters a watermark that was found without the lock, unless one of more frees or an earlier point of as many is known, or the arena
    /// has been vacated.
    pub(crate) fn note_watermark(&mut self, generation: u64, found: FreeWatermark) {
        let known = self.watermark;
        let is_better = found.freed > known.freed || found.freed == known.freed && found.point < known.point;
        if self.generation == generation && is_better {
            self.watermark = found;
        }
    }

    pub(crate) fn uses(&self) -> Uses {
        let allocated = self.blocks.allocated();
        Uses { generation: self.generation, allocated, freed: self.freed, recorded: self.recorded }
    }

    /// Makes a vacant arena serve a stream.
    pub(crate) fn enter(&mut self, generation: u64, owner: O, is_hosts: bool) {
        self.generation = generation;
        self.is_hosts = is_hosts;
        self.owner = owner;
    }

    /// Resets the arena for another stream. Drop the result without the lock.
    pub(crate) fn vacate(&mut self, owner: O) -> (O, Vec<F>) {
        if !mutant!("streams/vacated-arena-takes-no-watermark") {
            self.generation = 0;
        }
        self.freed = 0;
        self.watermark = FreeWatermark::default();
        self.ordered.clear();
        self.recorded = 0;
        self.last_point = 0;
        self.waits_point = 0;
        (std::mem::replace(&mut self.owner, owner), std::mem::take(&mut self.dependencies))
    }

    /// Adds a dependency, unless another implies it, and removes those it implies. Threads may arrive out of order.
    pub(crate) fn depend(&mut self, fence: F, implies: impl Fn(&F, &F) -> bool, dropped: &mut Vec<F>) {
        dropped.extend(self.dependencies.extract_if(.., |known| implies(&fence, known)));
        if self.dependencies.iter().any(|known| implies(known, &fence)) {
            dropped.push(fence);
        } else {
            self.dependencies.push(fence);
        }
    }

    /// Records that this stream is ordered after another generation's work.
    pub(crate) fn note_order(&mut self, ordered: Ordered) {
        const KEPT: usize = 64;
        if self.ordered.len() >= KEPT {
            self.ordered.remove(0);
        }
        match self.ordered.iter_mut().find(|known| known.generation == ordered.generation) {
            Some(known) => {
                known.freed = known.freed.max(ordered.freed);
                known.point = known.point.max(ordered.point);
            }
            None => self.ordered.push(ordered),
        }
    }
}
