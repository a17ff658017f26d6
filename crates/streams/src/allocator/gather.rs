//! Looking at all streams at once: joining neighbours that different streams freed, and giving whole segments back.

use std::ops::RangeInclusive;

use transload_core::{ErrorKind, Fence, Result, mutant};

use super::{
    arena::Seal,
    arenas::{ArenaState, Owner, alive},
    blocks::{Node, Order, Piece, State},
    reuse::{Source, over},
    shared::{Shared, Taken},
    size::Want,
    sync::MutexGuard,
};
use crate::CudaStream;

/// An arena that is locked.
struct Locked<'a> {
    index: u32,
    state: MutexGuard<'a, ArenaState>,
}

/// A free block that may be joined with its neighbours.
struct Candidate {
    arena: usize,
    node: u32,
    address: u64,
    size: u64,
    segment: u32,
}

impl Shared {
    /// Every arena, locked in the order of their indices. No driver call and no drop of a fence may happen meanwhile.
    fn lock_all(&self) -> Vec<Locked<'_>> {
        self.arenas.iter().map(|(index, arena)| Locked { index, state: arena.lock() }).collect()
    }

    /// The streams that are there, by index of their arena. To be dropped when no arena is locked.
    fn streams(&self) -> Vec<Option<CudaStream>> {
        let of = |state: &ArenaState| match &state.owner {
            Owner::Stream(weak) => alive(weak),
            _ => None,
        };
        // Collected one by one: a stream that ends here would want its arena's lock.
        let mut streams = Vec::new();
        for (_, arena) in self.arenas.iter() {
            let stream = of(&arena.lock());
            streams.push(stream);
        }
        streams
    }

    /// Joins free neighbours of all streams to one block that is large enough, the smallest such. With `wait` also those
    /// whose work is in flight, behind waits.
    pub(super) fn gather(
        &self,
        stream: &CudaStream,
        index: u32,
        want: Want,
        wait: bool,
    ) -> Result<Option<Taken>> {
        /// How often blocks that were freed while the others were looked at are looked at again.
        const ROUNDS: usize = 16;
        let wait = wait && !stream.is_captured();
        let _held = self.hold();
        for _ in 0..ROUNDS {
            let streams = self.streams();
            if wait {
                self.seal_others(&streams, index);
            }
            for (other, _) in self.arenas.iter() {
                self.ask(other);
            }
            let mut behind = Vec::new();
            let piece = {
                let mut locked = self.lock_all();
                let found = candidates(&mut locked, &streams, index, wait, want.buffer);
                let most = if wait { u64::MAX } else { want.most };
                match smallest_run(&found, want.size..=most) {
                    Some(run) => join(&mut locked, &streams, index, run, &mut behind),
                    None if wait && freed_meanwhile(&locked, index) => continue,
                    None => None,
                }
            };
            let Some(piece) = piece else { return Ok(None) };
            return self.place(stream, index, piece, behind, want, Source::Gathered).map(Some);
        }
        Ok(None)
    }

    /// Has points recorded behind what other streams freed.
    fn seal_others(&self, streams: &[Option<CudaStream>], index: u32) {
        for ((other, arena), stream) in self.arenas.iter().zip(streams) {
            if let Some(stream) = stream.as_ref().filter(|stream| other != index && !stream.is_captured()) {
                // Blocks that no point covers are left out.
                let _covered = self.seal(arena, stream);
            }
        }
    }

    /// Gives wholly free segments back whose work is known to be over. Answers their bytes.
    pub(super) fn trim(&self) -> u64 {
        self.empty_caches();
        let _held = self.hold();
        let streams = self.streams();
        for ((other, arena), stream) in self.arenas.iter().zip(&streams) {
            self.ask(other);
            let Some(stream) = stream.as_ref().filter(|stream| !stream.is_captured()) else { continue };
            let (life, freed) = {
                let state = arena.lock();
                (state.life, state.freed)
            };
            // An idle stream is behind all that was freed before it was asked, without an event; a lost one runs nothing.
            let is_over = match stream.is_ready() {
                Ok(ready) => ready,
                Err(error) => error.kind() == ErrorKind::DeviceLost && !mutant!("streams/trim-after-loss"),
            };
            if is_over {
                let mut state = arena.lock();
                if state.life == life && state.seal.freed <= freed {
                    state.seal = Seal { freed, point: 0 };
                }
            }
        }
        let mut removed = Vec::new();
        {
            let mut locked = self.lock_all();
            let candidates = candidates(&mut locked, &streams, u32::MAX, false, false);
            let mut segments = self.segments.lock();
            for run in candidates.chunk_by(|one, next| one.segment == next.segment) {
                let Some(segment) = run.first().map(|first| first.segment) else { continue };
                let whole: u64 = run.iter().map(|candidate| candidate.size).sum();
                if segments.get(segment).is_none_or(|found| found.size != whole) {
                    continue;
                }
                for candidate in run {
                    let _gone = locked[candidate.arena].state.blocks.extract(candidate.node, candidate.size);
                }
                removed.extend(segments.remove(segment));
            }
        }
        let bytes = removed.iter().map(|segment| segment.reserved).sum();
        removed.into_iter().for_each(|segment| self.forget_segment(segment));
        bytes
    }
}

/// Whether the node's order is over.
fn is_over(order: Order, (freed, point): (u64, u64)) -> bool {
    order.freed <= freed && order.point <= point
}

/// Whether some other stream freed blocks that its last seal does not cover.
fn freed_meanwhile(locked: &[Locked<'_>], own: u32) -> bool {
    let uncovered = |Locked { index, state }: &Locked<'_>| {
        *index != own && matches!(state.owner, Owner::Stream(_)) && state.freed > state.seal.freed
    };
    locked.iter().any(uncovered)
}

/// What may be joined, by segment and address.
fn candidates(
    locked: &mut [Locked<'_>],
    streams: &[Option<CudaStream>],
    own: u32,
    wait: bool,
    buffer: bool,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (arena, Locked { index, state }) in locked.iter_mut().enumerate() {
        if wait {
            state.rest_reached(u64::MAX);
        }
        state.blocks.flush();
        let stream = streams.get(arena).and_then(Option::as_ref);
        let until = over(state, stream);
        // What is freed after the seal is not behind it. A stream that was not there when they were collected, or is just
        // ending, gives no fence: of it only what is over will do.
        let covered = match &state.owner {
            Owner::Vacant | Owner::Ended(_) => Some(u64::MAX),
            Owner::Stream(_) => stream.is_some().then_some(state.seal.freed),
        };
        let in_order = |order: Order| {
            *index == own
                || is_over(order, until)
                || (wait && covered.is_some_and(|covered| order.freed <= covered))
        };
        let fits = |node: u32, block: &Node| match block.state {
            State::Free => in_order(block.order),
            State::Waiting => {
                let can_wait = |fence: &Fence| CudaStream::can_be_behind(fence, buffer);
                let mut listed = state.waiting.iter().filter(|waiting| waiting.node == node);
                wait && listed.any(|waiting| waiting.until.iter().all(can_wait)) && in_order(block.order)
            }
            _ => false,
        };
        for (node, block) in state.blocks.iter().filter(|(node, block)| fits(*node, block)) {
            let Node { address, size, segment, .. } = *block;
            candidates.push(Candidate { arena, node, address, size, segment });
        }
    }
    candidates.sort_unstable_by_key(|candidate| (candidate.segment, candidate.address));
    candidates
}

fn smallest_run(candidates: &[Candidate], sizes: RangeInclusive<u64>) -> Option<&[Candidate]> {
    let beside = |one: &Candidate, next: &Candidate| {
        one.segment == next.segment && one.address + one.size == next.address
    };
    let bytes = |run: &&[Candidate]| run.iter().map(|candidate| candidate.size).sum::<u64>();
    candidates.chunk_by(beside).filter(|run| sizes.contains(&bytes(run))).min_by_key(bytes)
}

/// Takes the blocks of a run out of their arenas as one piece of the arena `own`.
fn join(
    locked: &mut [Locked<'_>],
    streams: &[Option<CudaStream>],
    own: u32,
    run: &[Candidate],
    behind: &mut Vec<Fence>,
) -> Option<Piece> {
    let mut joined: Option<Piece> = None;
    for candidate in run {
        let Locked { index, state } = &mut locked[candidate.arena];
        if let Some(at) = state.waiting.iter().position(|waiting| waiting.node == candidate.node) {
            behind.extend(state.waiting.swap_remove(at).until);
        }
        let piece = state.blocks.extract(candidate.node, candidate.size);
        let order = if *index == own {
            piece.order
        } else {
            let stream = streams.get(candidate.arena).and_then(Option::as_ref);
            if !is_over(piece.order, over(state, stream)) {
                match (&state.owner, stream) {
                    (Owner::Ended(end), _) => behind.push(end.fence()),
                    (_, Some(stream)) => {
                        let sealed = if piece.order.freed > 0 { state.seal.point } else { 0 };
                        let point = sealed.max(piece.order.point);
                        behind.push(Fence::new(std::sync::Arc::clone(&stream.timeline), point));
                    }
                    // No candidate then.
                    (_, None) => {}
                }
            }
            Order::default()
        };
        match &mut joined {
            None => joined = Some(Piece { order, ..piece }),
            Some(joined) => {
                joined.size += piece.size;
                joined.order.freed = joined.order.freed.max(order.freed);
                joined.order.point = joined.order.point.max(order.point);
            }
        }
    }
    joined
}

/// For statistics and snapshots.
pub(super) fn each_arena(shared: &Shared, mut look: impl FnMut(u32, &ArenaState)) {
    for Locked { index, state } in shared.lock_all() {
        look(index, &state);
    }
}
