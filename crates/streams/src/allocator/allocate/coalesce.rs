//! Searches all streams: free memory of other streams, also coalesced into one block, and segments to release.

use std::ops::RangeInclusive;

use transload_core::{ErrorKind, Fence, Result, Timeline, mutant};

use super::super::{
    arena::{
        FreeWatermark, Ordered, ReuseCounts,
        blocks::{Node, Order, Piece, State},
        size::AllocParams,
    },
    arenas::{Arena, ArenaState, Owner, serves},
    shared::{AllocatedBlock, Shared},
};
use super::reuse::{Effort, Found, stream_of};
use crate::{CudaStream, sync::MutexGuard};

/// Which memory a search may use; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Completed memory of destroyed streams.
    Ended,
    /// Memory whose work is complete, or which the stream is already ordered after.
    Complete,
    /// One block that needs a wait on the device.
    OneBlock,
    /// Adjacent blocks of any streams, with waits.
    Any,
}

/// A locked arena.
pub(crate) struct Locked<'a> {
    index: u32,
    pub(crate) state: MutexGuard<'a, ArenaState>,
}

/// Parameters of a search.
struct Search<'a> {
    /// Live streams by arena index, and whether a wait for them can be enqueued.
    streams: &'a [Option<(CudaStream, bool)>],
    /// Arena and generation of the requesting stream.
    own: u32,
    generation: u64,
    /// What that stream is ordered after.
    ordered: Vec<Ordered>,
    reach: Reach,
    buffer: bool,
}

/// A usable free block.
struct Candidate {
    at: usize,
    node: u32,
    address: u64,
    size: u64,
    segment: u32,
    /// Whether it needs no waits beyond its own fences.
    is_ready: bool,
    /// Whether that is so for any stream: the work on it is complete.
    is_complete: bool,
}

/// Memory removed from an arena.
struct TakenPart {
    index: u32,
    generation: u64,
    piece: Piece,
    until: Vec<Fence>,
    is_ready: bool,
    is_complete: bool,
    /// The end of the arena's stream, if it was destroyed.
    end: Option<Fence>,
}

impl Shared {
    /// Locks all arenas by index. Do not call the driver or drop a fence meanwhile.
    pub(crate) fn lock_all(&self) -> Vec<Locked<'_>> {
        self.arenas.iter().map(|(index, arena)| Locked { index, state: arena.lock() }).collect()
    }

    /// Returns the live streams by arena index. Drop them without arena locks.
    fn streams(&self, wait: bool) -> Vec<Option<(CudaStream, bool)>> {
        let mut streams = Vec::new();
        for (_, arena) in self.arenas.iter() {
            // One by one: a stream dropped here locks its arena.
            let stream = stream_of(&arena.lock());
            streams.push(stream.map(|stream| {
                let can_be_waited_for = wait && !stream.own.query_captured();
                (stream, can_be_waited_for)
            }));
        }
        streams
    }

    /// Allocates from free memory of any stream: the smallest block that fits, or else the smallest run of adjacent
    /// blocks.
    pub(crate) fn coalesce(
        &self,
        stream: &CudaStream,
        params: AllocParams,
        reach: Reach,
    ) -> Result<Option<AllocatedBlock>> {
        let wait = reach > Reach::Complete;
        // A captured stream cannot wait for work outside its graph.
        if wait && stream.own.query_captured() {
            return Ok(None);
        }
        let _held = self.track_transit();
        let (own, generation, ordered) = {
            let own = self.arena_for(stream)?;
            let ordered = if params.buffer { Vec::new() } else { own.state.ordered.clone() };
            (own.index, own.state.generation, ordered)
        };
        let ended = |arena: &Arena| matches!(arena.lock().owner, Owner::Ended(_));
        let others = self.arenas.iter().filter(|(other, _)| *other != own);
        let others: Vec<_> = others.filter(|(_, arena)| reach > Reach::Ended || ended(arena)).collect();
        if others.is_empty() && reach <= Reach::Complete {
            return Ok(None);
        }
        for (other, _) in others {
            self.poll_fences(other, Effort::Full);
        }
        let streams = self.streams(wait);
        let search = Search { streams: &streams, own, generation, ordered, reach, buffer: params.buffer };
        let mut to_drop = Vec::new();
        let parts: Vec<TakenPart> = {
            let mut directory = self.arenas.directory.lock();
            let mut locked = self.lock_all();
            let found = candidates(&mut locked, &search);
            let most = if reach == Reach::Any { u64::MAX } else { params.most };
            let Some(run) = best_fit(&found, params.size..=most, reach) else { return Ok(None) };
            let parts = extract_parts(&mut locked, run, params.size);
            for Locked { index, state } in &mut locked {
                to_drop.extend(directory.vacate(*index, state));
            }
            parts
        };
        drop(to_drop);
        let mut found: Option<Found> = None;
        let mut orders = Vec::new();
        let mut behind = Vec::new();
        // Whether this stream waited for work on it before, which no other stream did.
        let mut is_after = false;
        for part in &parts {
            behind.extend(part.until.iter().cloned());
            let is_own = (part.index, part.generation) == (own, generation);
            is_after |= !is_own && part.is_ready && !part.is_complete;
            if !is_own && !part.is_ready {
                let other =
                    streams.get(part.index as usize).and_then(Option::as_ref).map(|(stream, _)| stream);
                match self.end_of(part, other, &mut orders) {
                    Ok(end) => behind.extend(end),
                    Err(_) => {
                        // Return the memory to its streams, whose users see their errors.
                        parts.into_iter().for_each(|part| self.return_part(part));
                        return Ok(None);
                    }
                }
            }
            let order = if is_own { part.piece.order } else { Order::default() };
            match &mut found {
                None => {
                    let piece = Piece { order, ..part.piece };
                    found = Some(Found { piece, generation, behind: Vec::new(), is_after: false });
                }
                Some(found) => {
                    found.piece.size += part.piece.size;
                    found.piece.order = found.piece.order.and(order);
                }
            }
        }
        let Some(found) = found else { return Ok(None) };
        let count: fn(&mut ReuseCounts) -> &mut u64 = match (parts.len(), behind.is_empty()) {
            (1, true) => |served| &mut served.other_stream_complete,
            (1, false) => |served| &mut served.other_stream_waited,
            _ => |served| &mut served.gathered,
        };
        drop(parts);
        let taken = self.insert_and_allocate(stream, Found { behind, is_after, ..found }, params, count)?;
        if !params.buffer {
            let mut own = self.arena_for(stream)?;
            orders.into_iter().for_each(|ordered| own.state.note_order(ordered));
        }
        Ok(Some(taken))
    }

    /// Returns a fence for the work of the stream that freed the memory. Records an event only if none covers it yet.
    fn end_of(
        &self,
        part: &TakenPart,
        stream: Option<&CudaStream>,
        orders: &mut Vec<Ordered>,
    ) -> Result<Option<Fence>> {
        // The stream is that of the part unless it was destroyed, or another one in its arena was.
        let (None, Some(stream), Some(arena)) = (&part.end, stream, self.arenas.get(part.index)) else {
            return Ok(part.end.clone());
        };
        let order = part.piece.order;
        let mut known = {
            let state = arena.lock();
            // A changed generation: the stream was released meanwhile, so its work is complete.
            (state.generation == part.generation).then_some(state.watermark)
        };
        if known.is_some_and(|watermark| watermark.freed < order.freed) {
            known = self.record_watermark(arena, part.generation, stream)?;
        }
        Ok(known.map(|watermark| {
            let (freed, sealed) = if order.freed > 0 { (watermark.freed, watermark.point) } else { (0, 0) };
            let point = sealed.max(order.point);
            orders.push(Ordered { generation: part.generation, freed, point });
            Fence::new(std::sync::Arc::clone(&stream.timeline), point)
        }))
    }

    fn return_part(&self, part: TakenPart) {
        let TakenPart { index, generation, mut piece, mut until, end, .. } = part;
        until.extend(end);
        if let Some(arena) = self.arenas.get(index) {
            let mut state = arena.lock();
            // If the arena was vacated meanwhile, the work of its stream is complete.
            if state.generation != generation || matches!(state.owner, Owner::Vacant) {
                piece.order = Order::default();
            }
            state.insert_after(piece, until);
        }
    }

    /// Releases entirely free segments whose work is known to be complete. Returns their bytes.
    pub(crate) fn trim(&self) -> u64 {
        self.empty_caches();
        let _held = self.track_transit();
        let streams = self.streams(false);
        for ((other, arena), stream) in self.arenas.iter().zip(&streams) {
            self.poll_fences(other, Effort::Full);
            let Some((stream, _)) = stream.as_ref().filter(|(stream, _)| !stream.own.query_captured()) else {
                continue;
            };
            let (generation, freed) = {
                let state = arena.lock();
                // Released meanwhile: the frees are another stream's.
                if !serves(&state, stream) {
                    continue;
                }
                (state.generation, state.freed)
            };
            // An idle stream has passed all earlier frees, without an event; a lost one does no work.
            let is_complete = match stream.is_ready() {
                Ok(ready) => ready,
                Err(error) => error.kind() == ErrorKind::DeviceLost && !mutant!("streams/trim-after-loss"),
            };
            if is_complete {
                arena.lock().note_watermark(generation, FreeWatermark { freed, point: 0 });
            }
        }
        let search = Search {
            streams: &streams,
            own: u32::MAX,
            generation: 0,
            ordered: Vec::new(),
            reach: Reach::Complete,
            buffer: false,
        };
        let (mut removed, mut to_drop) = (Vec::new(), Vec::new());
        {
            let mut directory = self.arenas.directory.lock();
            let mut locked = self.lock_all();
            let candidates = candidates(&mut locked, &search);
            let mut segments = self.segments.lock();
            for run in candidates.chunk_by(|one, next| one.segment == next.segment) {
                let Some(segment) = run.first().map(|first| first.segment) else { continue };
                let whole: u64 = run.iter().map(|candidate| candidate.size).sum();
                if segments.get(segment).is_none_or(|found| found.size != whole) {
                    continue;
                }
                for candidate in run {
                    let _gone = locked[candidate.at].state.blocks.extract(candidate.node, candidate.size);
                }
                removed.extend(segments.remove(segment));
            }
            for Locked { index, state } in &mut locked {
                to_drop.extend(directory.vacate(*index, state));
            }
        }
        let bytes = removed.iter().map(|segment| segment.reserved).sum();
        removed.into_iter().for_each(|segment| self.forget_segment(segment));
        bytes
    }
}

/// Returns how much of a stream's work is complete: frees up to a number, uses up to a point.
pub(crate) fn completed(state: &ArenaState, stream: Option<&CudaStream>) -> (u64, u64) {
    match &state.owner {
        Owner::Vacant => (u64::MAX, u64::MAX),
        Owner::Ended(end) if end.is_known_complete() => (u64::MAX, u64::MAX),
        Owner::Ended(_) => (0, 0),
        Owner::Stream(_) => {
            let reached =
                stream.filter(|stream| serves(state, stream)).map_or(0, |stream| stream.own.reached());
            (if state.watermark.point <= reached { state.watermark.freed } else { 0 }, reached)
        }
    }
}

/// Returns the usable blocks by segment and address.
fn candidates(locked: &mut [Locked<'_>], search: &Search<'_>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (at, Locked { index, state }) in locked.iter_mut().enumerate() {
        // The generation differs if the stream was released meanwhile.
        let is_own = (*index, state.generation) == (search.own, search.generation);
        if search.reach == Reach::Ended && !is_own && !matches!(state.owner, Owner::Ended(_)) {
            continue;
        }
        state.blocks.merge_quick();
        // A stream that was added later or is being destroyed gives no fence: use only its completed memory.
        let stream = search.streams.get(at).and_then(Option::as_ref);
        let stream = stream.filter(|(stream, _)| serves(state, stream));
        let complete = completed(state, stream.map(|(stream, _)| stream));
        let (mut freed, mut point) = complete;
        if let Some(known) = search.ordered.iter().find(|known| known.generation == state.generation) {
            (freed, point) = (freed.max(known.freed), point.max(known.point));
        }
        let can_wait = search.reach > Reach::Complete
            && match &state.owner {
                Owner::Vacant => true,
                Owner::Ended(end) => !end.is_unrecorded(),
                Owner::Stream(_) => stream.is_some_and(|(_, can_be_waited_for)| *can_be_waited_for),
            };
        let is_ready = |order: Order| is_own || (order.freed <= freed && order.point <= point);
        let is_complete = |order: Order| order.freed <= complete.0 && order.point <= complete.1;
        let may_be_taken = |node: u32, block: &Node| match block.state {
            State::Free => true,
            State::PendingFree if search.reach > Reach::Complete => {
                let can_wait = |fence: &Fence| CudaStream::can_wait(fence, search.buffer);
                let mut listed = state.deferred.iter().filter(|waiting| waiting.node == node);
                listed.any(|waiting| waiting.until.iter().all(can_wait)) || state.in_flight.contains(node)
            }
            _ => false,
        };
        for (node, block) in state.blocks.iter().filter(|(node, block)| may_be_taken(*node, block)) {
            let Node { address, size, segment, order, .. } = *block;
            let (is_ready, is_complete) = (is_ready(order), is_complete(order));
            if is_ready || can_wait {
                candidates.push(Candidate { at, node, address, size, segment, is_ready, is_complete });
            }
        }
    }
    candidates.sort_unstable_by_key(|candidate| (candidate.segment, candidate.address));
    candidates
}

fn best_fit(candidates: &[Candidate], sizes: RangeInclusive<u64>, reach: Reach) -> Option<&[Candidate]> {
    let bytes = |run: &&[Candidate]| run.iter().map(|candidate| candidate.size).sum::<u64>();
    let beside = |one: &Candidate, next: &Candidate| {
        one.segment == next.segment && one.address + one.size == next.address
    };
    let single = candidates.chunks(1).filter(|run| sizes.contains(&bytes(run))).min_by_key(bytes);
    single.or_else(|| {
        let runs = candidates.chunk_by(beside).filter(|run| sizes.contains(&bytes(run)));
        if reach == Reach::OneBlock { None } else { runs.min_by_key(bytes) }
    })
}

/// Removes this many bytes of a run from their arenas.
fn extract_parts(locked: &mut [Locked<'_>], run: &[Candidate], bytes: u64) -> Vec<TakenPart> {
    let (mut parts, mut missing) = (Vec::new(), bytes);
    for candidate in run {
        if missing == 0 {
            break;
        }
        let Locked { index, state } = &mut locked[candidate.at];
        let mut until = Vec::new();
        if state.blocks.node(candidate.node).state == State::PendingFree {
            let _in_flight = state.in_flight.take_first(|node| node == candidate.node);
            if let Some(at) = state.deferred.iter().position(|waiting| waiting.node == candidate.node) {
                until = state.deferred.swap_remove(at).until;
            }
        }
        let (size, end) = match &state.owner {
            Owner::Stream(_) => (missing.min(candidate.size), None),
            // No other user for the rest.
            Owner::Ended(end) => (candidate.size, Some(end.fence())),
            Owner::Vacant => (candidate.size, None),
        };
        let piece = state.blocks.extract(candidate.node, size);
        missing = missing.saturating_sub(piece.size);
        parts.push(TakenPart {
            index: *index,
            generation: state.generation,
            piece,
            until,
            is_ready: candidate.is_ready,
            is_complete: candidate.is_complete,
            end,
        });
    }
    parts
}
