//! Memory that other streams freed: what is over for certain first, then what a wait on the device makes safe.

use transload_core::{Error, ErrorKind, Fence, Result, Timeline};

use super::{
    arena::{Ordered, Waiting},
    arenas::{Arena, ArenaState, Owner, alive, resume},
    blocks::{Order, Piece},
    ending::EndOfStream,
    questions::ask_in_order,
    shared::{Shared, Taken},
    size::Want,
};
use crate::CudaStream;

/// How a request was served, for the statistics.
#[derive(Clone, Copy)]
pub(super) enum Source {
    OtherStreamOver,
    OtherStreamBehindWait,
    Gathered,
    NewSegment,
}

/// How much of a stream's life is over: frees up to a number, and uses up to a point.
pub(super) fn over(state: &ArenaState, stream: Option<&CudaStream>) -> (u64, u64) {
    match &state.owner {
        Owner::Vacant => (u64::MAX, u64::MAX),
        Owner::Ended(end) if end.is_known_over() => (u64::MAX, u64::MAX),
        Owner::Ended(_) => (0, 0),
        Owner::Stream(_) => {
            let reached = stream.map_or(0, |stream| stream.own.reached());
            (if state.seal.point <= reached { state.seal.freed } else { 0 }, reached)
        }
    }
}

/// The stream of an arena, if it is still there. To be dropped after the lock.
pub(super) fn stream_of(state: &ArenaState) -> Option<CudaStream> {
    match &state.owner {
        Owner::Stream(weak) => alive(weak),
        _ => None,
    }
}

impl Shared {
    /// A block for a buffer: the stream's own, another's, or of a new segment.
    pub(super) fn take_for_buffer(&self, stream: &CudaStream, want: Want, ahead: u64) -> Result<Taken> {
        let (index, _) = self.arena_of(stream)?;
        if let Some(taken) = self.take_own(stream, index, want)? {
            return Ok(taken);
        }
        if ahead > 0
            && let Some(taken) = self.take_ahead(stream, index, want, ahead)?
        {
            return Ok(taken);
        }
        self.take_slowly(stream, index, want)
    }

    #[cold]
    pub(super) fn take_slowly(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Taken> {
        use super::builder::CrossStreamReuse;
        // The block that served the request may be one that was there before the stream was released.
        if self.resume(stream, index)
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        // Plain blocks are in the stream's order anyway.
        if !want.buffer
            && self.ahead > 0
            && self.arenas.get(index).is_some_and(|arena| arena.lock().rest_for(want.size, want.small))
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        if self.ask(index)
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        if self.absorb_ended(index)
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(taken);
        }
        if self.options.reuse == CrossStreamReuse::BeforeGrowing
            && let Some(taken) = self.take_from_others(stream, index, want)?
        {
            return Ok(taken);
        }
        self.grow(stream, index, want)
    }

    /// Has the stream's arena serve it again where it was released. Answers whether it was.
    pub(super) fn resume(&self, stream: &CudaStream, index: u32) -> bool {
        self.arenas.get(index).is_some_and(|arena| {
            let mut state = arena.lock();
            let was_released = state.is_kept;
            resume(&mut state, &stream.own);
            was_released
        })
    }

    pub(super) fn take_from_others(
        &self,
        stream: &CudaStream,
        index: u32,
        want: Want,
    ) -> Result<Option<Taken>> {
        for (other, _) in self.arenas.iter().filter(|(other, _)| *other != index) {
            self.ask(other);
        }
        let _held = self.hold();
        if let Some(taken) = self.take_over(stream, index, want)? {
            return Ok(Some(taken));
        }
        // A captured stream cannot wait for work outside of its graph.
        if stream.is_captured() {
            return Ok(None);
        }
        if let Some(taken) = self.take_own_waiting(stream, index, want)? {
            return Ok(Some(taken));
        }
        self.take_behind(stream, index, want)
    }

    /// Asks the driver how far an arena's stream and the fences in it are. Answers whether blocks became free by that.
    pub(super) fn ask(&self, index: u32) -> bool {
        let Some(arena) = self.arenas.get(index) else { return false };
        let _held = self.hold();
        let mut fences: Vec<Fence> = Vec::new();
        let mut dropped = Vec::new();
        let stream;
        {
            let state = arena.lock();
            fences.extend(state.waiting.iter().flat_map(|waiting| waiting.until.iter().cloned()));
            let points = [state.in_flight.first().unwrap_or(0), state.seal.point, state.last_point];
            stream = stream_of(&state);
            if let Some(stream) = &stream {
                let of = |point| Fence::new(std::sync::Arc::clone(&stream.timeline), point);
                fences.extend(points.into_iter().filter(|point| *point > 0).map(of));
            }
            if let Owner::Ended(end) = &state.owner {
                fences.push(end.fence());
            }
        }
        ask_in_order(fences);
        let mut state = arena.lock();
        let before = state.waiting.len();
        state.rest_where(Fence::is_known_done, &mut dropped);
        let (_, reached) = over(&state, stream.as_ref());
        let rested = state.rest_reached(reached) || state.waiting.len() < before;
        drop(state);
        rested
    }

    /// Merges what streams left that are gone and whose work is over into this stream's blocks. Answers whether there was
    /// anything.
    pub(super) fn absorb_ended(&self, index: u32) -> bool {
        let mut any = false;
        for (other, arena) in self.arenas.iter().filter(|(other, _)| *other != index) {
            let Some(end) = end_of(arena) else { continue };
            if !end.is_over() {
                continue;
            }
            let _held = self.hold();
            let mut pieces = Vec::new();
            let empty = {
                let mut state = arena.lock();
                if !matches!(&state.owner, Owner::Ended(end) if end.is_known_over()) {
                    continue;
                }
                state.rest_reached(u64::MAX);
                state.blocks.flush();
                let free: Vec<u32> = state.blocks.free_ones().collect();
                for node in free {
                    let size = state.blocks.node(node).size;
                    pieces.push(Piece { order: Order::default(), ..state.blocks.extract(node, size) });
                }
                state.blocks.is_empty()
            };
            any |= !pieces.is_empty();
            if let Some(own) = self.arenas.get(index) {
                let mut state = own.lock();
                pieces.into_iter().for_each(|piece| state.blocks.insert_free(piece));
            }
            if empty {
                self.vacate(other, arena);
            }
        }
        any
    }

    fn vacate(&self, index: u32, arena: &Arena) {
        let mut directory = self.directory.lock();
        let mut state = arena.lock();
        // Who was recorded as a user looks here for the end of the stream; that it is over, it finds by the other life.
        let is_over = matches!(&state.owner, Owner::Ended(end) if end.is_known_over());
        if !is_over || state.is_kept || !state.blocks.is_empty() {
            return;
        }
        directory.vacate(index);
        let left = state.vacate(Owner::Vacant);
        drop((state, directory));
        drop(left);
    }

    /// A block of another stream whose work is over, or that this stream comes after already.
    pub(super) fn take_over(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Option<Taken>> {
        let Some(own) = self.arenas.get(index) else { return Ok(None) };
        let ordered = own.lock().ordered.clone();
        for (_, arena) in self.arenas.iter().filter(|(other, _)| *other != index) {
            // Dropped after the lock.
            let other;
            let piece = {
                let mut state = arena.lock();
                other = stream_of(&state);
                let (mut freed, mut point) = over(&state, other.as_ref());
                if !want.buffer
                    && let Some(known) = ordered.iter().find(|known| known.life == state.life)
                {
                    freed = freed.max(known.freed);
                    point = point.max(known.point);
                }
                take_out(&mut state, want, |order| order.freed <= freed && order.point <= point)
            };
            drop(other);
            if let Some(piece) = piece {
                let piece = Piece { order: Order::default(), ..piece };
                return self.place(stream, index, piece, Vec::new(), want, Source::OtherStreamOver).map(Some);
            }
        }
        Ok(None)
    }

    /// A block of this stream that other streams still use.
    fn take_own_waiting(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Option<Taken>> {
        let Some(arena) = self.arenas.get(index) else { return Ok(None) };
        let found = {
            let mut state = arena.lock();
            let fits = |waiting: &Waiting<Fence>| {
                let node = state.blocks.node(waiting.node);
                let can_wait =
                    waiting.until.iter().all(|fence| CudaStream::can_be_behind(fence, want.buffer));
                (node.size >= want.size && node.small == want.small && can_wait).then_some(node.size)
            };
            let best = state.waiting.iter().enumerate();
            let best = best.filter_map(|(at, waiting)| Some((fits(waiting)?, at))).min();
            best.map(|(size, at)| {
                let Waiting { node, until } = state.waiting.swap_remove(at);
                (state.blocks.extract(node, size), until)
            })
        };
        let Some((piece, until)) = found else { return Ok(None) };
        self.place(stream, index, piece, until, want, Source::OtherStreamBehindWait).map(Some)
    }

    /// A block of another stream behind that one's work: an event is recorded only if none covers the block yet.
    fn take_behind(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Option<Taken>> {
        for (_, arena) in self.arenas.iter().filter(|(other, _)| *other != index) {
            let other = stream_of(&arena.lock());
            if other.as_ref().is_some_and(CudaStream::is_captured) {
                continue;
            }
            let (piece, life) = {
                let mut state = arena.lock();
                // A stream that is just ending says so in a moment.
                if other.is_none() && !matches!(state.owner, Owner::Ended(_)) {
                    continue;
                }
                // What the other stream's next buffers are not to be stays so as long as it does not serve.
                let piece = take_out(&mut state, want, |_| true).or_else(|| {
                    let any = state.rest_first(want.size, want.small);
                    any.then(|| take_out(&mut state, want, |_| true)).flatten()
                });
                let Some(piece) = piece else { continue };
                (piece, state.life)
            };
            let (fence, ordered) = match &other {
                None => (end_of(arena), None),
                Some(other) => match self.point_behind(arena, other, piece.order) {
                    Ok((freed, point)) => {
                        let fence = Fence::new(std::sync::Arc::clone(&other.timeline), point);
                        (Some(fence), Some(Ordered { life, freed, point }))
                    }
                    Err(_) => {
                        // The block stays with its stream, whose error is told to who uses it.
                        arena.lock().blocks.insert_free(piece);
                        continue;
                    }
                },
            };
            let piece = Piece { order: Order::default(), ..piece };
            let behind = fence.into_iter().collect();
            let taken = self.place(stream, index, piece, behind, want, Source::OtherStreamBehindWait)?;
            if let (false, Some(ordered), Some(own)) = (want.buffer, ordered, self.arenas.get(index)) {
                own.lock().note_order(ordered);
            }
            return Ok(Some(taken));
        }
        Ok(None)
    }

    /// A point of another stream behind everything that a free block's order asks for, and how many frees it covers.
    fn point_behind(&self, arena: &Arena, other: &CudaStream, order: Order) -> Result<(u64, u64)> {
        let known = arena.lock().seal;
        if order.freed == 0 {
            return Ok((0, order.point));
        }
        let seal = if known.freed >= order.freed { known } else { self.seal(arena, other)? };
        if seal.freed < order.freed {
            return Err(Error::new(ErrorKind::Device, "a seal that covers less than it was made for"));
        }
        Ok((seal.freed, seal.point.max(order.point)))
    }

    /// Puts a piece into a stream's arena, its beginning as a live block behind the fences.
    #[allow(clippy::too_many_arguments, reason = "the end of each way in which a block is found")]
    pub(super) fn place(
        &self,
        stream: &CudaStream,
        index: u32,
        piece: Piece,
        behind: Vec<Fence>,
        want: Want,
        from: Source,
    ) -> Result<Taken> {
        let Some(arena) = self.arenas.get(index) else {
            return Err(Error::new(ErrorKind::Device, "an arena that is not there"));
        };
        let mut behind: Vec<Fence> = behind.into_iter().filter(|fence| !fence.is_known_done()).collect();
        // A buffer's users wait for the fences themselves, where their queues can.
        let waits = |fence: &Fence| !want.buffer || fence.timeline().as_any().is::<EndOfStream>();
        let mut waited = false;
        for fence in behind.iter().filter(|fence| waits(fence)) {
            if let Err(error) = stream.come_after(fence) {
                let mut state = arena.lock();
                let node = state.blocks.insert_waiting(piece);
                state.waiting.push(Waiting { node, until: behind });
                return Err(error);
            }
            waited = true;
        }
        let passed: Vec<Fence> = behind.extract_if(.., |fence| waits(fence)).collect();
        let node = {
            let mut state = arena.lock();
            resume(&mut state, &stream.own);
            let mut order = piece.order;
            if waited {
                // From here on it is as if this stream had freed it: whoever comes after that comes after the fences.
                state.freed += 1;
                order.freed = state.freed;
            }
            let front = Piece { size: want.size, order, ..piece };
            let node = state.blocks.insert_live(front, want);
            if piece.size > want.size {
                let rest = Piece {
                    address: piece.address + want.size,
                    size: piece.size - want.size,
                    order,
                    ..piece
                };
                if behind.is_empty() {
                    state.blocks.insert_free(rest);
                } else {
                    let node = state.blocks.insert_waiting(rest);
                    state.waiting.push(Waiting { node, until: behind.clone() });
                }
            }
            let reuses = &mut state.reuses;
            *match from {
                Source::OtherStreamOver => &mut reuses.other_stream_over,
                Source::OtherStreamBehindWait => &mut reuses.other_stream_behind_wait,
                Source::Gathered => &mut reuses.gathered,
                Source::NewSegment => &mut reuses.new_segment,
            } += 1;
            node
        };
        drop(passed);
        self.hand_out(stream, index, node, behind)
    }
}

/// The end of a stream that is gone.
pub(super) fn end_of(arena: &Arena) -> Option<Fence> {
    match &arena.lock().owner {
        Owner::Ended(end) => Some(end.fence()),
        _ => None,
    }
}

/// The best fit of an arena among blocks whose order will do.
fn take_out(state: &mut ArenaState, want: Want, will_do: impl Fn(Order) -> bool) -> Option<Piece> {
    let mut node = state.blocks.find(want, |node| will_do(node.order));
    if node.is_none() && state.blocks.flush() {
        node = state.blocks.find(want, |node| will_do(node.order));
    }
    node.map(|node| state.blocks.extract(node, want.size))
}
