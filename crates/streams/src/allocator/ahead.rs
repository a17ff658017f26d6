//! Host memory for a buffer that the host is about to write: what nothing in flight uses, within bounds.
//!
//! A request that the stream's finished blocks serve does not come here. One that does asks the driver about the oldest
//! blocks only, and not at all where that would cost an event.

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::{
    arenas::resume,
    questions::first_of_each,
    shared::{Shared, Taken},
    size::Want,
};
use crate::CudaStream;

impl Shared {
    /// A block that nothing in flight uses; where the bound is reached, the one that is over first. `None` where the stream
    /// has none at all.
    #[cold]
    pub(super) fn take_ahead(
        &self,
        stream: &CudaStream,
        index: u32,
        want: Want,
        ahead: u64,
    ) -> Result<Option<Taken>> {
        let Some(arena) = self.arenas.get(index) else { return Ok(None) };
        let rested = {
            let mut state = arena.lock();
            resume(&mut state, &stream.own);
            state.rest_reached(stream.own.reached())
        };
        if (rested || self.ask_the_oldest(stream, index, want))
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(Some(taken));
        }
        // What is found above may all have been too small.
        if rested
            && self.ask_the_oldest(stream, index, want)
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(Some(taken));
        }
        if self.absorb_ended(index)
            && let Some(taken) = self.take_own(stream, index, want)?
        {
            return Ok(Some(taken));
        }
        // Also with nothing of its own in flight: what other streams have in flight would be given next.
        let busy = arena.lock().busy();
        if busy.saturating_add(want.size) <= ahead {
            match self.take_unused(stream, index, want) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                other => return other.map(Some),
            }
        }
        let node = arena.lock().take_in_flight(want);
        node.map(|node| self.hand_out(stream, index, node, Vec::new())).transpose()
    }

    /// Asks the driver about the blocks that were likely used first. Answers whether any became free by that.
    fn ask_the_oldest(&self, stream: &CudaStream, index: u32, want: Want) -> bool {
        /// Of so many streams that use blocks of this one.
        const ASKED: usize = 4;
        let Some(arena) = self.arenas.get(index) else { return false };
        let _held = self.hold();
        let mut dropped = Vec::new();
        let (first, of_others) = {
            let state = arena.lock();
            let fits = |node: u32| {
                let node = state.blocks.node(node);
                node.size >= want.size && node.small == want.small
            };
            let blocks = state.waiting.iter().filter(|waiting| fits(waiting.node));
            let fences = blocks.flat_map(|waiting| &waiting.until);
            (state.in_flight.first(), first_of_each(fences, ASKED))
        };
        // A run of small copies stays without an event as long as there is other memory.
        if let Some(first) = first.filter(|first| stream.own.ends.points.is_marked(*first)) {
            // An error counts as over: it is told to who awaits the work.
            let _over = stream.own.poll(first);
        }
        for fence in &of_others {
            let _over = fence.is_over();
        }
        let mut state = arena.lock();
        let before = state.waiting.len();
        state.rest_where(Fence::is_known_done, &mut dropped);
        let rested = state.rest_reached(stream.own.reached()) || state.waiting.len() < before;
        drop(state);
        rested
    }

    /// Memory that nothing uses, of other streams or new.
    ///
    /// # Errors
    /// `OutOfMemory` where there is none without waiting.
    fn take_unused(&self, stream: &CudaStream, index: u32, want: Want) -> Result<Taken> {
        for (other, _) in self.arenas.iter().filter(|(other, _)| *other != index) {
            self.ask(other);
        }
        let from_others = {
            let _held = self.hold();
            self.take_over(stream, index, want)?
        };
        match from_others {
            Some(taken) => Ok(taken),
            None => self.grow_without_waiting(stream, index, want),
        }
    }
}
