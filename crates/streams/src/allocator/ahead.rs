//! Host memory for a buffer that the host is about to write: what nothing in flight uses, within bounds.
//!
//! A request that the stream's finished blocks serve does not come here. One that does asks the driver about the oldest
//! blocks only, and not at all where that would cost an event.

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::{
    gather::Reach,
    questions::first_of_each,
    shared::{Shared, Taken},
    size::Want,
};
use crate::CudaStream;

impl Shared {
    /// A block that nothing in flight uses; where the bound is reached, the one that is over first. `None` where the stream
    /// has none at all.
    #[cold]
    pub(super) fn take_ahead(&self, stream: &CudaStream, want: Want, ahead: u64) -> Result<Option<Taken>> {
        let rested = self.serving(stream)?.state.rest_reached(stream.own.reached());
        if rested && let Some(taken) = self.take_own(stream, want)? {
            return Ok(Some(taken));
        }
        if self.ask_the_oldest(stream, want)?
            && let Some(taken) = self.take_own(stream, want)?
        {
            return Ok(Some(taken));
        }
        // Also with nothing of its own in flight: what other streams have in flight would be given next.
        let busy = self.serving(stream)?.state.busy();
        let reaches_bound = busy.saturating_add(want.size) > ahead;
        let unused = if reaches_bound {
            self.gather(stream, want, Reach::Ended)
        } else {
            self.grow_without_waiting(stream, want)
        };
        match unused {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            Ok(None) => {}
            other => return other,
        }
        let mut own = self.serving(stream)?;
        let node = own.state.take_in_flight(want);
        node.map(|node| self.hand_out(stream, own, node, Vec::new())).transpose()
    }

    /// Asks the driver about the blocks that were likely used first. Answers whether any became free by that.
    fn ask_the_oldest(&self, stream: &CudaStream, want: Want) -> Result<bool> {
        /// Of so many streams that use blocks of this one.
        const ASKED: usize = 4;
        let _held = self.hold();
        let mut dropped = Vec::new();
        let (first, of_others) = {
            let state = self.serving(stream)?.state;
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
        let mut state = self.serving(stream)?.state;
        let before = state.waiting.len();
        state.rest_where(Fence::is_known_done, &mut dropped);
        let rested = state.rest_reached(stream.own.reached()) || state.waiting.len() < before;
        drop(state);
        Ok(rested)
    }
}
