//! Releases a stream that its owner is about to destroy.

use transload_core::{ErrorKind, Fence, Result, Timeline};

use super::{arena::Uses, arenas::Owner, shared::Shared};
use crate::{
    CudaStream,
    completion::{after_capture::AfterCapture, stream_end::StreamEnd},
};

impl Shared {
    pub(super) fn release(&self, stream: &CudaStream) -> Result<()> {
        /// Threads with fences in transit before have at most returned them.
        const ROUNDS: usize = 2;
        self.empty_caches();
        let outcome = loop {
            let used = self.find_arena(stream).map(|own| own.state.uses());
            let outcome = stream.synchronize();
            if let Err(error) = &outcome
                && (error.kind() == ErrorKind::Busy || stream.own.outstanding() > 0)
            {
                return outcome;
            }
            self.wait_for_captures(stream);
            if self.leave(stream, used) {
                break outcome;
            }
            // Used meanwhile: retry.
        };
        self.drop_completed_fences();
        for _ in 0..ROUNDS {
            self.wait_for_transit_and_handles();
            self.drop_completed_fences();
        }
        outcome
    }

    /// Waits for fences of the stream's captures, which are over.
    fn wait_for_captures(&self, stream: &CudaStream) {
        for (_, arena) in self.arenas.iter() {
            let is_its = |fence: &&Fence| {
                let after = fence.timeline().as_any().downcast_ref::<AfterCapture>();
                after.is_some_and(|after| after.is_of(stream.id()))
            };
            let fences: Vec<Fence> = {
                let state = arena.lock();
                let all = state.deferred.iter().flat_map(|waiting| &waiting.until);
                all.filter(is_its).cloned().collect()
            };
            for fence in fences {
                // An error is the stream's and is reported already.
                let _over = fence.wait();
            }
        }
    }

    /// Drops all completed fences.
    fn drop_completed_fences(&self) {
        for (_, arena) in self.arenas.iter() {
            let mut dropped: Vec<Fence> = Vec::new();
            let mut state = arena.lock();
            dropped.extend(state.dependencies.extract_if(.., |fence| fence.is_known_complete()));
            state.free_completed(Fence::is_known_complete, &mut dropped);
        }
    }

    /// Marks the stream's arena as ended, with all work of these uses complete. Returns `false` if there were more.
    fn leave(&self, stream: &CudaStream, used: Option<Uses>) -> bool {
        let end = StreamEnd::complete(stream.id(), stream.own.stream());
        let mut directory = self.arenas.directory.lock();
        let found = directory.find(stream.id());
        let Some((index, arena)) = found.and_then(|index| Some((index, self.arenas.get(index)?))) else {
            return true;
        };
        let mut state = arena.lock();
        if used != Some(state.uses()) || state.last_point > stream.own.reached() {
            return false;
        }
        directory.forget(stream.id());
        state.owner = Owner::Ended(end);
        let left = (std::mem::take(&mut state.dependencies), directory.vacate(index, &mut state));
        drop((state, directory));
        drop(left);
        true
    }
}
