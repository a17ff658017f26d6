//! Frees plain blocks, also by address, and records further users.

use transload_core::{ErrorKind, Fence, Result, events::report};

use super::{
    arena::{
        DeferredFree, Handle,
        blocks::{Holder, Order},
    },
    arenas::{Arena, ArenaState, Owner, ResolvedOwner, User, resolve_owner, serves},
    block::{BlockRef, FreeError, StreamBlock},
    shared::Shared,
};
use crate::{CudaStream, completion::after_capture::AfterCapture};

/// Returns the live block of an arena that `block` names.
#[inline]
fn find(state: &ArenaState, block: BlockRef) -> Result<u32, FreeError> {
    match block {
        BlockRef::Block(block) => state.live(block.handle, block.address),
        BlockRef::Address(address) => state.live_at(address),
    }
}

impl Shared {
    #[inline]
    pub(super) fn free_on(&self, block: BlockRef, stream: &CudaStream) -> Result<()> {
        let mut own = self.arena_for(stream)?;
        let is_usable_here = match block {
            BlockRef::Block(block) => block.arena == own.index && block.allocator == self.id,
            BlockRef::Address(_) => true,
        };
        if is_usable_here {
            let found = find(&own.state, block);
            if own.state.free_exclusive(found) {
                return Ok(());
            }
        }
        drop(own);
        self.free_slow(block, Some(stream))
    }

    /// Frees the stream's live plain blocks; returns how many.
    pub(super) fn free_all_of(&self, stream: &CudaStream) -> Result<usize> {
        let mut blocks = Vec::new();
        for (index, arena) in self.arenas.iter() {
            let state = arena.lock();
            // After a release, its earlier blocks are in an arena of their own.
            let is_released = matches!(&state.owner, Owner::Ended(end) if end.of == stream.id());
            if is_released || serves(&state, stream) {
                let live = state.blocks.iter().filter(|(_, node)| node.is_plain_and_live());
                blocks.extend(live.map(|(node, found)| StreamBlock {
                    address: found.address,
                    bytes: found.requested,
                    allocator: self.id,
                    handle: Handle { node, serial: found.serial },
                    arena: index,
                }));
            }
        }
        let (mut freed, mut outcome) = (0, Ok(()));
        for block in blocks {
            match self.free_on(block.into(), stream) {
                Ok(()) => freed += 1,
                // Another thread freed it meanwhile.
                Err(error) if error.cause().is_some_and(|cause| cause.is::<FreeError>()) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| freed)
    }

    /// Returns the arena in which the block is live.
    fn look_for(&self, block: BlockRef) -> Result<&Arena, FreeError> {
        match block {
            BlockRef::Block(block) if block.allocator != self.id => Err(FreeError::NeverAllocated),
            BlockRef::Block(named) => {
                let arena = self.arenas.get(named.arena).ok_or(FreeError::NeverAllocated)?;
                find(&arena.lock(), block)?;
                Ok(arena)
            }
            BlockRef::Address(address) => {
                let mut refusal = FreeError::NeverAllocated;
                for (_, arena) in self.arenas.iter() {
                    match arena.lock().live_at(address) {
                        Ok(_) => return Ok(arena),
                        Err(FreeError::NeverAllocated) => {}
                        Err(known) => refusal = known,
                    }
                }
                // A merged block is no longer found by its start.
                let is_in_free_block =
                    || self.arenas.iter().any(|(_, arena)| arena.lock().blocks.is_in_free_block(address));
                if refusal == FreeError::NeverAllocated && is_in_free_block() {
                    refusal = FreeError::AlreadyFreed;
                }
                Err(refusal)
            }
        }
    }

    #[cold]
    pub(super) fn free_slow(&self, block: BlockRef, stream: Option<&CudaStream>) -> Result<()> {
        let refuse = |error: FreeError| error.at(block.address());
        let arena = self.look_for(block).map_err(refuse)?;
        let _held = self.track_transit();
        let (node, users, again) = {
            let mut state = arena.lock();
            let node = find(&state, block).map_err(refuse)?;
            let is_its_own = stream.is_none_or(|stream| serves(&state, stream));
            let recorded = state.users.get(&node).map_or(&[][..], Vec::as_slice);
            let may_free = |stream: &CudaStream| {
                let was_its_own = matches!(&state.owner, Owner::Ended(end) if end.of == stream.id());
                was_its_own || recorded.iter().any(|user| user.id == stream.id())
            };
            if !is_its_own && !stream.is_some_and(may_free) {
                return Err(refuse(FreeError::WrongStream));
            }
            // The block's stream, or a user's, may have been released and be used again.
            let again = stream.filter(|_| !is_its_own);
            let users = state.users.remove(&node).unwrap_or_default();
            if users.is_empty() && again.is_none() {
                state.free(node);
                return Ok(());
            }
            state.freed += 1;
            let order = Order { freed: state.freed, point: 0 };
            // Neither live nor free until its fences are known.
            state.blocks.free_deferred(node, order);
            (node, users, again)
        };
        let known = users.iter().filter(|user| again.is_none_or(|again| again.id() != user.id));
        let ends = self.ends_of(known).and_then(|mut until| {
            // By the stream itself: a thread that releases it may have given its arena away.
            until.extend(again.map(|again| end_of(again.clone())).transpose()?.flatten());
            until.retain(|fence| !fence.is_known_complete());
            Ok(until)
        });
        match ends {
            Ok(until) => {
                let mut state = arena.lock();
                if until.is_empty() {
                    state.blocks.merge(node);
                } else {
                    state.deferred.push(DeferredFree { node, until });
                }
                Ok(())
            }
            Err(error) => {
                let mut state = arena.lock();
                state.blocks.undo_free(node);
                state.users.insert(node, users);
                Err(error)
            }
        }
    }

    /// Returns fences for everything the users enqueued so far.
    fn ends_of<'a>(&self, users: impl Iterator<Item = &'a User>) -> Result<Vec<Fence>> {
        let mut until = Vec::new();
        for user in users {
            let Some(arena) = self.arenas.get(user.arena) else { continue };
            match resolve_owner(arena) {
                // Its arena serves another stream by now, so its work is complete.
                (generation, _) if generation != user.generation => {}
                (_, ResolvedOwner::Vacant) => {}
                (_, ResolvedOwner::Ended(end)) => until.push(end),
                (_, ResolvedOwner::Stream(stream)) => until.extend(end_of(stream)?),
            }
        }
        Ok(until)
    }

    pub(super) fn record_use(&self, block: BlockRef, stream: &CudaStream) -> Result<()> {
        let refuse = |error: FreeError| error.at(block.address());
        let arena = self.look_for(block).map_err(refuse)?;
        {
            let mut state = arena.lock();
            if serves(&state, stream) {
                state.recorded += 1;
                return Ok(());
            }
        }
        loop {
            let user = {
                let own = self.arena_for(stream)?;
                User { id: stream.id(), arena: own.index, generation: own.state.generation }
            };
            {
                let mut state = arena.lock();
                let node = find(&state, block).map_err(refuse)?;
                state.blocks.node_mut(node).holder = Holder::CallerAndUsers;
                let users = state.users.entry(node).or_default();
                // An older entry may precede a release, when its work was complete.
                users.retain(|known| known.id != user.id);
                users.push(user);
            }
            // A thread that releases the stream waits for it again if it sees this; else the use comes after the release.
            if let Some(mut own) = self.arenas.get(user.arena).map(Arena::lock)
                && own.generation == user.generation
                && serves(&own, stream)
            {
                own.recorded += 1;
                return Ok(());
            }
        }
    }
}

/// Returns a fence for everything that was enqueued on a stream so far; `None` if it is complete.
fn end_of(stream: CudaStream) -> Result<Option<Fence>> {
    match stream.fence() {
        Ok(fence) => Ok(Some(fence)),
        // A lost device does no work any more.
        Err(error) if error.kind() == ErrorKind::DeviceLost => Ok(None),
        // Being captured: the block stays pending until the capture is over.
        Err(error) if error.kind() == ErrorKind::Busy => Ok(Some(AfterCapture::of(stream))),
        Err(error) => {
            report::call_failed("waiting for a stream instead of a fence", stream.device(), &error);
            stream.synchronize_under_guard().map_err(|_| error)?;
            Ok(None)
        }
    }
}
