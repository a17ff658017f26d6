//! A block for a request that the stream's own free memory does not serve at once.

use std::sync::Arc;

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::super::{
    arena::{ReuseCounts, blocks::Piece, size::AllocParams},
    arenas::{ArenaState, Owner, alive},
    shared::{AllocatedBlock, Shared},
};
use super::coalesce::{Reach, completed};
use crate::{CudaStream, completion::stream_end::StreamEnd};

/// How many streams may answer that nothing is over before no more are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Records no event either: a run of small copies stays without one as long as there is other memory.
    Little = 4,
    Full = 64,
}

/// Memory in hand.
pub(crate) struct Found {
    pub(crate) piece: Piece,
    /// ResolvedOwner order the piece has.
    pub(crate) generation: u64,
    /// What is to be waited for.
    pub(crate) behind: Vec<Fence>,
}

/// The stream of an arena, if it is still there. To be dropped after the lock.
pub(crate) fn stream_of(state: &ArenaState) -> Option<CudaStream> {
    match &state.owner {
        Owner::Stream(weak) => alive(weak),
        _ => None,
    }
}

impl Shared {
    /// A block for a buffer: the stream's own, another's, or of a new segment.
    pub(crate) fn allocate_for_buffer(
        &self,
        stream: &CudaStream,
        want: AllocParams,
        ahead: u64,
    ) -> Result<AllocatedBlock> {
        if let Some(taken) = self.take_own(stream, want)? {
            return Ok(taken);
        }
        if ahead > 0
            && let Some(taken) = self.allocate_ahead(stream, want, ahead)?
        {
            return Ok(taken);
        }
        self.allocate_slow(stream, want)
    }

    #[cold]
    pub(crate) fn allocate_slow(&self, stream: &CudaStream, want: AllocParams) -> Result<AllocatedBlock> {
        // The block that served the request may be one of before the stream was released.
        if let Some(taken) = self.take_own(stream, want)? {
            return Ok(taken);
        }
        // Plain blocks are in the stream's order anyway.
        if !want.buffer && self.ahead > 0 {
            let mut own = self.arena_for(stream)?;
            if own.state.in_flight.bytes() >= want.size
                && let Some(node) = own.state.take_in_flight(want)
            {
                return self.finish_allocation(stream, own, node, Vec::new());
            }
        }
        let index = self.arena_for(stream)?.index;
        if self.poll_fences(index, Effort::Full)
            && let Some(taken) = self.take_own(stream, want)?
        {
            return Ok(taken);
        }
        for reach in [Reach::Complete, Reach::OneBlock] {
            if let Some(taken) = self.coalesce(stream, want, reach)? {
                return Ok(taken);
            }
        }
        self.grow(stream, want)
    }

    /// For a buffer that the host is about to write: a block that nothing in flight uses; where the bound is reached, the one
    /// that is over first. `None` where the stream has none at all.
    #[cold]
    pub(crate) fn allocate_ahead(
        &self,
        stream: &CudaStream,
        want: AllocParams,
        ahead: u64,
    ) -> Result<Option<AllocatedBlock>> {
        let (index, rested) = {
            let mut own = self.arena_for(stream)?;
            (own.index, own.state.free_reached(stream.own.reached()))
        };
        if rested && let Some(taken) = self.take_own(stream, want)? {
            return Ok(Some(taken));
        }
        if self.poll_fences(index, Effort::Little)
            && let Some(taken) = self.take_own(stream, want)?
        {
            return Ok(Some(taken));
        }
        // Also with nothing of its own in flight: what other streams have in flight would be given next.
        let busy = self.arena_for(stream)?.state.busy();
        let reaches_bound = busy.saturating_add(want.size) > ahead;
        let unused = if reaches_bound {
            self.coalesce(stream, want, Reach::Ended)
        } else {
            self.grow_without_waiting(stream, want)
        };
        match unused {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            Ok(None) => {}
            other => return other,
        }
        let mut own = self.arena_for(stream)?;
        let node = own.state.take_in_flight(want);
        node.map(|node| self.finish_allocation(stream, own, node, Vec::new())).transpose()
    }

    /// Asks the driver how far an arena's stream and the fences in it are. Answers whether blocks became free by that.
    pub(crate) fn poll_fences(&self, index: u32, effort: Effort) -> bool {
        let Some(arena) = self.arenas.get(index) else { return false };
        let _held = self.track_transit();
        let mut fences: Vec<Fence> = Vec::new();
        let mut dropped = Vec::new();
        let stream;
        {
            let state = arena.lock();
            fences.extend(state.deferred.iter().flat_map(|waiting| waiting.until.iter().cloned()));
            let points = [state.in_flight.first().unwrap_or(0), state.watermark.point, state.last_point];
            stream = stream_of(&state);
            if let Some(stream) = &stream {
                let has_event = |point: u64| stream.own.events.points.is_covered(point);
                let points = points.into_iter().filter(|point| *point > 0);
                let points = points.filter(|point| effort == Effort::Full || has_event(*point));
                fences.extend(points.map(|point| Fence::new(Arc::clone(&stream.timeline), point)));
            }
            if let Owner::Ended(end) = &state.owner {
                fences.push(end.fence());
            }
        }
        // Of one stream the first ones only, since what comes behind them is not over before. An error counts as over: it is
        // told to who awaits the work.
        fences.retain(|fence| !fence.is_known_complete());
        fences.sort_by_key(|fence| (fence.timeline().id(), fence.point()));
        let streams = fences.chunk_by(|one, next| one.timeline().id() == next.timeline().id());
        let unfinished = streams.filter(|of_one| !of_one.iter().all(Fence::is_complete));
        let _asked = unfinished.take(effort as usize).count();
        let mut state = arena.lock();
        let before = state.deferred.len();
        state.free_completed(Fence::is_known_complete, &mut dropped);
        let (_, reached) = completed(&state, stream.as_ref());
        let rested = state.free_reached(reached) || state.deferred.len() < before;
        drop(state);
        rested
    }

    /// Puts memory into a stream's arena, its beginning as a live block behind the fences.
    pub(crate) fn insert_and_allocate(
        &self,
        stream: &CudaStream,
        found: Found,
        want: AllocParams,
        count: fn(&mut ReuseCounts) -> &mut u64,
    ) -> Result<AllocatedBlock> {
        let Found { piece, generation, mut behind } = found;
        let over: Vec<Fence> = behind.extract_if(.., |fence| fence.is_known_complete()).collect();
        // A buffer's users wait for the fences themselves, where their queues can.
        let waits = |fence: &Fence| !want.buffer || fence.timeline().as_any().is::<StreamEnd>();
        let waited = behind
            .iter()
            .filter(|fence| waits(fence))
            .try_fold(false, |_, fence| stream.wait_fence(fence).map(|()| true));
        let mut own = self.arena_for(stream)?;
        let state = &mut *own.state;
        // Where the stream was released meanwhile, what it did before is over.
        let mut order = if state.generation == generation { piece.order } else { Default::default() };
        let waited = match waited {
            Ok(waited) => waited,
            Err(error) => {
                state.insert_after(Piece { order, ..piece }, behind);
                return Err(error);
            }
        };
        let passed: Vec<Fence> = behind.extract_if(.., |fence| waits(fence)).collect();
        if waited {
            // From here on it is as if this stream had freed it: later users come after the fences.
            state.freed += 1;
            order.freed = state.freed;
        }
        let node = state.blocks.insert_live(Piece { size: want.size, order, ..piece }, want);
        if piece.size > want.size {
            let (address, size) = (piece.address + want.size, piece.size - want.size);
            state.insert_after(Piece { address, size, order, ..piece }, behind.clone());
        }
        *count(&mut state.served) += 1;
        let taken = self.finish_allocation(stream, own, node, behind);
        drop((over, passed));
        taken
    }
}
