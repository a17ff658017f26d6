//! Looking at all streams at once: memory that other streams freed, also joined to one block, and segments to give back.

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

/// Which memory a search may take; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// What streams left that are gone, if their work is over.
    Ended,
    /// What is over, or what the stream comes after anyway.
    Complete,
    /// One block behind a wait on the device.
    OneBlock,
    /// Neighbours of any streams, behind waits.
    Any,
}

/// An arena that is locked.
pub(crate) struct Locked<'a> {
    index: u32,
    pub(crate) state: MutexGuard<'a, ArenaState>,
}

/// What a search is for.
struct Search<'a> {
    /// By index of their arena: streams that were there, and whether a wait for them can be enqueued.
    streams: &'a [Option<(CudaStream, bool)>],
    /// The arena of the stream that asks, and its generation there.
    own: u32,
    generation: u64,
    /// What that stream comes after.
    ordered: Vec<Ordered>,
    reach: Reach,
    buffer: bool,
}

/// A free block that may be taken.
struct Candidate {
    at: usize,
    node: u32,
    address: u64,
    size: u64,
    segment: u32,
    /// Whether nothing has to be waited for but what the block itself names.
    is_ready: bool,
}

/// A piece of memory that was taken out of an arena.
struct TakenPart {
    index: u32,
    generation: u64,
    piece: Piece,
    until: Vec<Fence>,
    is_ready: bool,
    /// The end of the arena's stream, if it ended.
    end: Option<Fence>,
}

impl Shared {
    /// Every arena, locked in the order of their indices. No driver call and no drop of a fence may happen meanwhile.
    pub(crate) fn lock_all(&self) -> Vec<Locked<'_>> {
        self.arenas.iter().map(|(index, arena)| Locked { index, state: arena.lock() }).collect()
    }

    /// The streams that are there, by index of their arena. To be dropped when no arena is locked.
    fn streams(&self, wait: bool) -> Vec<Option<(CudaStream, bool)>> {
        let mut streams = Vec::new();
        for (_, arena) in self.arenas.iter() {
            // One by one: a stream that ends here would want its arena's lock.
            let stream = stream_of(&arena.lock());
            streams.push(stream.map(|stream| {
                let can_be_waited_for = wait && !stream.own.query_captured();
                (stream, can_be_waited_for)
            }));
        }
        streams
    }

    /// Takes free memory of any stream: the best_fit block that is large enough, or else the best_fit neighbours that are it
    /// together.
    pub(crate) fn coalesce(
        &self,
        stream: &CudaStream,
        want: AllocParams,
        reach: Reach,
    ) -> Result<Option<AllocatedBlock>> {
        let wait = reach > Reach::Complete;
        // A captured stream cannot wait for work outside of its graph.
        if wait && stream.own.query_captured() {
            return Ok(None);
        }
        let _held = self.track_transit();
        let (own, generation, ordered) = {
            let own = self.arena_for(stream)?;
            let ordered = if want.buffer { Vec::new() } else { own.state.ordered.clone() };
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
        let search = Search { streams: &streams, own, generation, ordered, reach, buffer: want.buffer };
        let mut to_drop = Vec::new();
        let parts: Vec<TakenPart> = {
            let mut directory = self.arenas.directory.lock();
            let mut locked = self.lock_all();
            let found = candidates(&mut locked, &search);
            let most = if reach == Reach::Any { u64::MAX } else { want.most };
            let Some(run) = best_fit(&found, want.size..=most, reach) else { return Ok(None) };
            let parts = extract_parts(&mut locked, run, want.size);
            for Locked { index, state } in &mut locked {
                to_drop.extend(directory.vacate(*index, state));
            }
            parts
        };
        drop(to_drop);
        let mut found: Option<Found> = None;
        let mut orders = Vec::new();
        let mut behind = Vec::new();
        for part in &parts {
            behind.extend(part.until.iter().cloned());
            let is_own = (part.index, part.generation) == (own, generation);
            if !is_own && !part.is_ready {
                let other =
                    streams.get(part.index as usize).and_then(Option::as_ref).map(|(stream, _)| stream);
                match self.end_of(part, other, &mut orders) {
                    Ok(end) => behind.extend(end),
                    Err(_) => {
                        // The memory stays with its streams, resolve_owner errors are told to who uses them.
                        parts.into_iter().for_each(|part| self.return_part(part));
                        return Ok(None);
                    }
                }
            }
            let order = if is_own { part.piece.order } else { Order::default() };
            match &mut found {
                None => {
                    let piece = Piece { order, ..part.piece };
                    found = Some(Found { piece, generation, behind: Vec::new() });
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
        let taken = self.insert_and_allocate(stream, Found { behind, ..found }, want, count)?;
        if !want.buffer {
            let mut own = self.arena_for(stream)?;
            orders.into_iter().for_each(|ordered| own.state.note_order(ordered));
        }
        Ok(Some(taken))
    }

    /// A fence behind what the stream that freed the memory does with it. An event is recorded only if none covers it yet.
    fn end_of(
        &self,
        part: &TakenPart,
        stream: Option<&CudaStream>,
        orders: &mut Vec<Ordered>,
    ) -> Result<Option<Fence>> {
        let (Some(stream), Some(arena)) = (stream, self.arenas.get(part.index)) else {
            return Ok(part.end.clone());
        };
        let order = part.piece.order;
        let mut known = {
            let state = arena.lock();
            // Another generation: the stream was released meanwhile, and its work is over.
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
            // Where the arena was left meanwhile, the stream that freed it is done.
            if state.generation != generation || matches!(state.owner, Owner::Vacant) {
                piece.order = Order::default();
            }
            state.insert_after(piece, until);
        }
    }

    /// Gives wholly free segments back resolve_owner work is known to be over. Answers their bytes.
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
                (state.generation, state.freed)
            };
            // An idle stream is behind all that was freed before it was asked, without an event; a lost one runs nothing.
            let is_complete = match stream.is_ready() {
                Ok(ready) => ready,
                Err(error) => error.kind() == ErrorKind::DeviceLost && !mutant!("streams/trim-after-loss"),
            };
            if is_complete {
                let mut state = arena.lock();
                if state.generation == generation && state.watermark.freed <= freed {
                    state.watermark = FreeWatermark { freed, point: 0 };
                }
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

/// How much of a stream's generation is over: frees up to a number, and uses up to a point.
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

/// What may be taken, by segment and address.
fn candidates(locked: &mut [Locked<'_>], search: &Search<'_>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (at, Locked { index, state }) in locked.iter_mut().enumerate() {
        // Released meanwhile, the stream may have left its arena to another one.
        let is_own = (*index, state.generation) == (search.own, search.generation);
        if search.reach == Reach::Ended && !is_own && !matches!(state.owner, Owner::Ended(_)) {
            continue;
        }
        state.blocks.merge_quick();
        // A stream that was not there when they were collected, or is just ending, gives no fence: of it only what is over
        // will do.
        let stream = search.streams.get(at).and_then(Option::as_ref);
        let stream = stream.filter(|(stream, _)| serves(state, stream));
        let (mut freed, mut point) = completed(state, stream.map(|(stream, _)| stream));
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
            let is_ready = is_ready(order);
            if is_ready || can_wait {
                candidates.push(Candidate { at, node, address, size, segment, is_ready });
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

/// Takes so many bytes of a run out of their arenas.
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
            // Nobody else takes the rest.
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
            end,
        });
    }
    parts
}
