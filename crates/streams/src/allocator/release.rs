//! Letting go of a stream that is about to be destroyed by someone else.

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::{
    after_capture::AfterCapture,
    arena::Seal,
    arenas::{Arena, Owner},
    ending::EndOfStream,
    shared::Shared,
};
use crate::CudaStream;

impl Shared {
    pub(super) fn release(&self, stream: &CudaStream) -> Result<()> {
        /// Whoever began to look after the streams before has at most put a fence back that it had in hand.
        const ROUNDS: usize = 2;
        let arena = self.known_arena_of(stream);
        self.empty_caches();
        let outcome = loop {
            let freed = arena.map_or(0, |arena| arena.lock().freed);
            let outcome = stream.synchronize();
            if let Err(error) = &outcome
                && (error.kind() == ErrorKind::Busy || stream.own.outstanding() > 0)
            {
                return outcome;
            }
            self.wait_for_its_captures(stream);
            if arena.is_none_or(|arena| leave(arena, freed, stream)) {
                break outcome;
            }
            // Used meanwhile.
        };
        self.let_go();
        for _ in 0..ROUNDS {
            self.wait_for_hands();
            self.let_go();
        }
        outcome
    }

    /// Waits for what is behind captures of the stream, which are over.
    fn wait_for_its_captures(&self, stream: &CudaStream) {
        for (_, arena) in self.arenas.iter() {
            let is_its = |fence: &&Fence| {
                let after = fence.timeline().as_any().downcast_ref::<AfterCapture>();
                after.is_some_and(|after| after.is_of(stream.id()))
            };
            let fences: Vec<Fence> = {
                let state = arena.lock();
                let all = state.waiting.iter().flat_map(|waiting| &waiting.until);
                all.filter(is_its).cloned().collect()
            };
            for fence in fences {
                // An error is the stream's, which is told already.
                let _over = fence.wait();
            }
        }
    }

    /// Lets go of all fences that are over.
    fn let_go(&self) {
        for (_, arena) in self.arenas.iter() {
            let mut dropped: Vec<Fence> = Vec::new();
            arena.lock().forget_where(Fence::is_known_done, &mut dropped);
        }
    }
}

/// Has the arena no longer name the stream, whose work is over up to so many frees. Answers `false` where there was more.
fn leave(arena: &Arena, freed: u64, stream: &CudaStream) -> bool {
    let mut state = arena.lock();
    if state.is_kept {
        return true;
    }
    if state.freed != freed || state.last_point > stream.own.reached() {
        return false;
    }
    state.seal = Seal { freed, point: 0 };
    state.owner = Owner::Ended(EndOfStream::over(stream.device()));
    state.is_kept = true;
    true
}
