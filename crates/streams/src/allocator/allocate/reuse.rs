//! Serves a request that the stream's own free blocks do not serve at once.

use std::sync::Arc;

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::super::{
    arena::{ReuseCounts, blocks::Piece, size::AllocParams},
    arenas::{ArenaState, Owner, alive},
    shared::{AllocatedBlock, Shared},
};
use super::coalesce::{Reach, completed};
use crate::{CudaStream, completion::stream_end::StreamEnd};

/// Number of incomplete streams after which polling stops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Also records no events: do not flush a batch while other memory is available.
    Little = 4,
    Full = 64,
}

/// Memory removed from its arenas.
pub(crate) struct Found {
    pub(crate) piece: Piece,
    /// Generation to which the piece's order belongs.
    pub(crate) generation: u64,
    /// Fences to wait for.
    pub(crate) behind: Vec<Fence>,
    /// Whether only this stream may use it without a wait, since it waited for the work on it before.
    pub(crate) is_after: bool,
}

/// Returns the arena's stream, if alive. Drop it after the lock.
pub(crate) fn stream_of(state: &ArenaState) -> Option<CudaStream> {
    match &state.owner {
        Owner::Stream(weak) => alive(weak),
        _ => None,
    }
}

impl Shared {
    /// Allocates a block for a buffer: from the stream, another stream, or a new segment.
    pub(crate) fn allocate_for_buffer(
        &self,
        stream: &CudaStream,
        params: AllocParams,
        run_ahead_limit: u64,
    ) -> Result<AllocatedBlock> {
        if let Some(taken) = self.take_own(stream, params)? {
            return Ok(taken);
        }
        if run_ahead_limit > 0
            && let Some(taken) = self.allocate_ahead(stream, params, run_ahead_limit)?
        {
            return Ok(taken);
        }
        self.allocate_slow(stream, params)
    }

    #[cold]
    pub(crate) fn allocate_slow(&self, stream: &CudaStream, params: AllocParams) -> Result<AllocatedBlock> {
        // Retry: the first arena may have been from before a release.
        if let Some(taken) = self.take_own(stream, params)? {
            return Ok(taken);
        }
        // Plain blocks are stream-ordered, so a block in flight will do.
        if !params.buffer && self.run_ahead_limit > 0 {
            let mut own = self.arena_for(stream)?;
            if own.state.in_flight.bytes() >= params.size
                && let Some(node) = own.state.take_in_flight(params)
            {
                return self.finish_allocation(stream, own, node, Vec::new());
            }
        }
        let index = self.arena_for(stream)?.index;
        if self.poll_fences(index, Effort::Full)
            && let Some(taken) = self.take_own(stream, params)?
        {
            return Ok(taken);
        }
        for reach in [Reach::Complete, Reach::OneBlock] {
            if let Some(taken) = self.coalesce(stream, params, reach)? {
                return Ok(taken);
            }
        }
        self.grow(stream, params)
    }

    /// Allocates a block without work in flight, for a buffer that the host will write; at the run-ahead limit, the
    /// block that completes first. `None` if the stream has none.
    #[cold]
    pub(crate) fn allocate_ahead(
        &self,
        stream: &CudaStream,
        params: AllocParams,
        run_ahead_limit: u64,
    ) -> Result<Option<AllocatedBlock>> {
        let (index, rested) = {
            let mut own = self.arena_for(stream)?;
            (own.index, own.state.free_reached(stream.own.reached()))
        };
        if rested && let Some(taken) = self.take_own(stream, params)? {
            return Ok(Some(taken));
        }
        if self.poll_fences(index, Effort::Little)
            && let Some(taken) = self.take_own(stream, params)?
        {
            return Ok(Some(taken));
        }
        // Also if this stream has nothing in flight: otherwise blocks in flight on other streams would come next.
        let busy = self.arena_for(stream)?.state.busy();
        let reaches_bound = busy.saturating_add(params.size) > run_ahead_limit;
        let unused = if reaches_bound {
            self.coalesce(stream, params, Reach::Ended)
        } else {
            self.grow_without_waiting(stream, params)
        };
        match unused {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            Ok(None) => {}
            other => return other,
        }
        let mut own = self.arena_for(stream)?;
        let node = own.state.take_in_flight(params);
        node.map(|node| self.finish_allocation(stream, own, node, Vec::new())).transpose()
    }

    /// Polls the fences of an arena and its stream. Returns whether blocks became free.
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
        // Poll the fences of a stream in order until one is incomplete: later ones cannot be complete. An error
        // counts as complete; waiters of that work see it.
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

    /// Inserts memory into a stream's arena and allocates its beginning, after the fences.
    pub(crate) fn insert_and_allocate(
        &self,
        stream: &CudaStream,
        found: Found,
        params: AllocParams,
        count: fn(&mut ReuseCounts) -> &mut u64,
    ) -> Result<AllocatedBlock> {
        let Found { piece, generation, mut behind, is_after } = found;
        let over: Vec<Fence> = behind.extract_if(.., |fence| fence.is_known_complete()).collect();
        // A buffer's users wait for the fences themselves if their queues can.
        let waits = |fence: &Fence| !params.buffer || fence.timeline().as_any().is::<StreamEnd>();
        let waited = behind
            .iter()
            .filter(|fence| waits(fence))
            .try_fold(false, |_, fence| stream.wait_fence(fence).map(|()| true));
        let mut own = self.arena_for(stream)?;
        let state = &mut *own.state;
        // If the stream was released meanwhile, its earlier work is complete.
        let mut order = if state.generation == generation { piece.order } else { Default::default() };
        // Count what this stream waited for as a free on it: work ordered after that is ordered after the fences.
        if matches!(waited, Ok(true))
            || is_after && !transload_core::mutant!("streams/passed-on-behind-waits")
        {
            state.freed += 1;
            order.freed = state.freed;
        }
        if let Err(error) = waited {
            state.insert_after(Piece { order, ..piece }, behind);
            return Err(error);
        }
        let passed: Vec<Fence> = behind.extract_if(.., |fence| waits(fence)).collect();
        let node = state.blocks.insert_live(Piece { size: params.size, order, ..piece }, params);
        if piece.size > params.size {
            let (address, size) = (piece.address + params.size, piece.size - params.size);
            state.insert_after(Piece { address, size, order, ..piece }, behind.clone());
        }
        *count(&mut state.served) += 1;
        let taken = self.finish_allocation(stream, own, node, behind);
        drop((over, passed));
        taken
    }
}
