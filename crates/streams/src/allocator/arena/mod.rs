//! What the allocator keeps for one stream, behind a lock that only threads of that stream take while all goes well.
//!
//! Nothing here calls a driver. What has to be asked of it is asked with the lock open, and what was found is entered
//! afterwards: [`Arena::seal`] is such a round.

pub(crate) mod blocks;
pub(crate) mod in_flight;
pub(crate) mod quick;
pub(crate) mod size;
pub(crate) mod size_class_counts;

use std::collections::HashMap;

use serde::Serialize;
use transload_core::mutant;

use self::{
    blocks::{Blocks, Holder, Order, Piece, State},
    in_flight::InFlight,
    size::AllocParams,
};
use super::block::FreeError;
use crate::sync::{Mutex, MutexGuard};

/// One stream's blocks. Alone in its cache lines, so that streams do not slow each other down.
#[repr(align(128))]
pub(crate) struct Arena<O, F, U> {
    state: Mutex<ArenaState<O, F, U>>,
}

/// What is behind the lock. `O` says resolve_owner arena it is, `F` is a fence, `U` a stream that was recorded as a user.
pub(crate) struct ArenaState<O, F, U> {
    /// Another number for each stream that the arena served.
    pub(crate) generation: u64,
    pub(crate) owner: O,
    pub(crate) blocks: Blocks,
    /// How many frees there were in stream order.
    pub(crate) freed: u64,
    pub(crate) watermark: FreeWatermark,
    /// Blocks that are free once fences are over.
    pub(crate) deferred: Vec<DeferredFree<F>>,
    /// Whether a block counts as free only once the stream's own work is over, too.
    pub(crate) is_hosts: bool,
    /// Blocks of host memory that are free once that is.
    pub(crate) in_flight: InFlight,
    /// What of other streams this one comes after.
    pub(crate) ordered: Vec<Ordered>,
    /// Fences of streams that this one was told to come after.
    pub(crate) dependencies: Vec<F>,
    /// Streams recorded as further users of live blocks.
    pub(crate) users: HashMap<u32, Vec<U>>,
    /// Whether the stream was recorded as a user of another one's block: then its end is kept.
    pub(crate) is_user: bool,
    /// The last known point of the stream at which one of its free blocks was used.
    pub(crate) last_point: u64,
    pub(crate) served: ReuseCounts,
}

/// A point of the stream's timeline behind the first so many frees.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreeWatermark {
    pub(crate) freed: u64,
    pub(crate) point: u64,
}

/// A block that other streams use.
pub(crate) struct DeferredFree<F> {
    pub(crate) node: u32,
    pub(crate) until: Vec<F>,
}

/// How much of another stream's generation this one comes after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) generation: u64,
    pub(crate) freed: u64,
    pub(crate) point: u64,
}

/// Requests by how they were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReuseCounts {
    /// By a block of that size freed on the stream a moment ago.
    pub same_size: u64,
    /// By the best fit among the stream's free blocks.
    pub fitted: u64,
    /// By a block of another stream resolve_owner work was over.
    pub other_stream_complete: u64,
    /// By a block behind a wait for another stream.
    pub other_stream_waited: u64,
    /// By joining what several streams freed.
    pub gathered: u64,
    /// By a new segment.
    pub new_segment: u64,
}

/// Names a live block of one arena.
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
                users: HashMap::new(),
                is_user: false,
                last_point: 0,
                served: ReuseCounts::default(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ArenaState<O, F, U>> {
        self.state.lock()
    }

    /// Sees to it that every free so far is covered by a point: `record` marks one behind all work enqueued so far by the stream
    /// of this generation. What is freed meanwhile is not covered. `None` where the arena serves another stream by now.
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
        let mut state = self.lock();
        if state.generation == generation && state.watermark.freed < freed {
            state.watermark = watermark;
        }
        Ok(Some(watermark))
    }
}

impl<O, F, U> ArenaState<O, F, U> {
    /// A block of the stream's own, if there is one without asking anyone.
    #[inline]
    pub(crate) fn take_own(&mut self, want: AllocParams) -> Option<u32> {
        if let Some(node) = self.blocks.take_quick(want) {
            self.served.same_size += 1;
            return Some(node);
        }
        self.take_fitting(want)
    }

    /// As [`take_own`](Self::take_own), of the raw layer: what names the block, and its address.
    #[inline]
    pub(crate) fn take_block(&mut self, want: AllocParams) -> Option<(Handle, u64)> {
        let node = self.take_own(want)?;
        let found = self.blocks.node(node);
        Some((Handle { node, serial: found.serial }, found.address))
    }

    fn take_fitting(&mut self, want: AllocParams) -> Option<u32> {
        let mut node = self.blocks.take_fitting(want);
        if node.is_none() && self.blocks.merge_quick() {
            node = self.blocks.take_fitting(want);
        }
        self.served.fitted += u64::from(node.is_some());
        node
    }

    /// The live block that a handle names.
    #[inline]
    pub(crate) fn live(&self, handle: Handle, address: u64) -> Result<u32, FreeError> {
        match self.blocks.get(handle.node) {
            Some(node) if node.serial == handle.serial && node.address == address => match node.state {
                State::Live => Ok(handle.node),
                _ => Err(FreeError::AlreadyFreed),
            },
            // Its entry serves another block by now.
            _ => Err(FreeError::AlreadyFreed),
        }
    }

    /// The live block of the raw layer that begins at an address.
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

    /// Frees a live block in the order of the stream, if no other stream uses it. Returns whether it did.
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

    /// Frees a live block in the order of the stream.
    #[inline]
    pub(crate) fn free(&mut self, node: u32) {
        self.freed += 1;
        self.blocks.free(node, Order { freed: self.freed, point: 0 });
    }

    /// Frees a live block in an order of the stream, once the fences are over.
    pub(crate) fn free_after(&mut self, node: u32, order: Order, until: Vec<F>) {
        if until.is_empty() {
            self.blocks.free(node, order);
        } else {
            self.blocks.free_deferred(node, order);
            self.deferred.push(DeferredFree { node, until });
        }
    }

    /// Takes a range in that is free once the fences are over.
    pub(crate) fn insert_after(&mut self, piece: Piece, until: Vec<F>) {
        if until.is_empty() {
            self.blocks.insert_free(piece);
        } else {
            let node = self.blocks.insert_deferred(piece);
            self.deferred.push(DeferredFree { node, until });
        }
    }

    /// Lets go of fences that are over; blocks that waited for no others are free. The fences are put into `dropped`, for when the lock is open.
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

    /// Frees a live block of host memory resolve_owner last use is over at `point` of the stream's own timeline.
    pub(crate) fn free_in_flight(&mut self, node: u32, point: u64) {
        self.in_flight.push(point, node, self.blocks.node(node).size);
        self.blocks.free_deferred(node, Order { freed: 0, point });
    }

    /// What the stream has done with up to `reached` is free for the host. Answers whether there was anything.
    pub(crate) fn free_reached(&mut self, reached: u64) -> bool {
        let mut any = false;
        while let Some(node) = self.in_flight.pop_reached(reached) {
            self.blocks.push_quick(node);
            any = true;
        }
        any
    }

    /// A block that is in flight still, for a user who waits: the one that is over first of those that are large enough.
    pub(crate) fn take_in_flight(&mut self, want: AllocParams) -> Option<u32> {
        let Self { in_flight, blocks, .. } = self;
        if let Some(node) = in_flight.take_first(|node| blocks.node(node).size == want.size) {
            self.served.same_size += 1;
            return Some(blocks.mark_live(node, want));
        }
        let fits = |node: u32| blocks.node(node).size >= want.size && blocks.node(node).small == want.small;
        match in_flight.take_first(fits) {
            Some(node) => blocks.merge(node),
            // Only together with its neighbours.
            None => drop(self.free_reached(u64::MAX)),
        }
        self.take_fitting(want)
    }

    /// Bytes that are free only once work is over.
    pub(crate) fn busy(&self) -> u64 {
        let waiting: u64 = self.deferred.iter().map(|waiting| self.blocks.node(waiting.node).size).sum();
        self.in_flight.bytes() + waiting
    }

    /// Makes the arena ready for another stream; what is left over is for when the lock is open.
    pub(crate) fn vacate(&mut self, owner: O) -> (O, Vec<F>) {
        self.freed = 0;
        self.watermark = FreeWatermark::default();
        self.ordered.clear();
        self.is_user = false;
        self.last_point = 0;
        (std::mem::replace(&mut self.owner, owner), std::mem::take(&mut self.dependencies))
    }

    /// Keeps a fence that this stream was told to come after, but for those that another one implies: another thread may have
    /// been later with its fence and earlier here.
    pub(crate) fn depend(&mut self, fence: F, implies: impl Fn(&F, &F) -> bool, dropped: &mut Vec<F>) {
        dropped.extend(self.dependencies.extract_if(.., |known| implies(&fence, known)));
        if self.dependencies.iter().any(|known| implies(known, &fence)) {
            dropped.push(fence);
        } else {
            self.dependencies.push(fence);
        }
    }

    /// Remembers that this stream comes after so much of another generation.
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
