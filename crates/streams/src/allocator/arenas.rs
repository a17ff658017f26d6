//! All arenas of one allocator: found by index without a lock, and by stream through a per-thread cache.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use transload_core::{Fence, Timeline, TimelineId};

use super::arena;
use crate::{
    CudaStream,
    completion::{stream_end::StreamEnd, timeline::StreamTimeline},
    stream::handle::StreamHandle,
};

pub(crate) type Arena = arena::Arena<Owner, Fence, User>;
pub(crate) type ArenaState = arena::ArenaState<Owner, Fence, User>;

/// The arena's owner. It does not keep the stream alive: an event is recorded before the stream is destroyed.
pub(crate) enum Owner {
    /// None; free for another stream.
    Vacant,
    Stream(Weak<StreamTimeline>),
    Ended(Arc<StreamEnd>),
}

/// Returns whether the arena serves the stream; not after the stream was released.
#[inline]
pub(crate) fn serves(state: &ArenaState, stream: &CudaStream) -> bool {
    matches!(&state.owner, Owner::Stream(own) if std::ptr::eq(own.as_ptr(), Arc::as_ptr(&stream.own)))
}

impl ArenaState {
    /// Adds a dependency and removes those that are complete or implied.
    pub(crate) fn add_dependency(&mut self, fence: Fence, dropped: &mut Vec<Fence>) {
        let implies = |one: &Fence, other: &Fence| {
            one.timeline().id() == other.timeline().id() && one.point() >= other.point()
        };
        dropped.extend(self.dependencies.extract_if(.., |known| known.is_known_complete()));
        if fence.is_known_complete() {
            dropped.push(fence);
        } else {
            self.depend(fence, implies, dropped);
        }
    }
}

/// A recorded user of a block.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) id: TimelineId,
    /// The user's own arena, which has the stream or its end.
    pub(crate) arena: u32,
    pub(crate) generation: u64,
}

/// Upgrades the stream. Drop the result without an arena lock: it may be the last handle.
pub(crate) fn alive(stream: &Weak<StreamTimeline>) -> Option<CudaStream> {
    let own = stream.upgrade()?;
    let timeline = Arc::clone(&own) as Arc<dyn Timeline>;
    Some(CudaStream { own, timeline })
}

/// An arena's owner, with an end instead of a stream that is being dropped.
pub(crate) enum ResolvedOwner {
    Vacant,
    Stream(CudaStream),
    Ended(Fence),
}

/// Returns generation and owner. If another thread is dropping the last stream handle, spins until it has recorded
/// the end here. The caller holds no lock.
pub(crate) fn resolve_owner(arena: &Arena) -> (u64, ResolvedOwner) {
    loop {
        {
            let state = arena.lock();
            let resolve_owner = match &state.owner {
                Owner::Vacant => Some(ResolvedOwner::Vacant),
                Owner::Ended(end) => Some(ResolvedOwner::Ended(end.fence())),
                Owner::Stream(weak) => alive(weak).map(ResolvedOwner::Stream),
            };
            if let Some(resolve_owner) = resolve_owner {
                return (state.generation, resolve_owner);
            }
        }
        std::thread::yield_now();
    }
}

/// Arenas in the first chunk; each further chunk has twice as many.
const FIRST: u32 = 8;
const CHUNKS: usize = 24;

/// Arenas by index. Only grows; arenas of destroyed streams are reused.
pub(crate) struct Arenas {
    chunks: [OnceLock<Box<[Arena]>>; CHUNKS],
    len: AtomicU32,
    /// Which arena serves which stream. Locked before any arena.
    pub(crate) directory: Mutex<Directory>,
}

fn position(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, (index - FIRST * ((1 << chunk) - 1)) as usize)
}

impl Arenas {
    pub(crate) fn new() -> Self {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Self { chunks, len: AtomicU32::new(0), directory: Mutex::default() }
    }

    /// Returns the arena of a stream, if it has one.
    pub(crate) fn find(&self, stream: TimelineId) -> Option<(u32, &Arena)> {
        let index = self.directory.lock().find(stream)?;
        Some((index, self.get(index)?))
    }

    /// Records the end of a stream, which has no other user. Drop the result after the stream is destroyed.
    pub(crate) fn end_stream(
        &self,
        id: TimelineId,
        stream: &Arc<StreamHandle>,
    ) -> Option<(Owner, Vec<Fence>)> {
        let (index, arena) = self.find(id)?;
        let needed = {
            let state = arena.lock();
            !state.blocks.is_empty() || state.recorded > 0
        };
        // Call the driver without a lock.
        let end = if needed { StreamEnd::of(id, stream) } else { StreamEnd::complete(id, stream) };
        let mut directory = self.directory.lock();
        directory.forget(id);
        let mut state = arena.lock();
        state.owner = Owner::Ended(end);
        directory.vacate(index, &mut state)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Arena> {
        let (chunk, offset) = position(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// Iterates over all arenas ever used with their indices, in lock order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arena)> {
        (0..self.len.load(Ordering::Acquire)).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// Adds an arena. The caller holds the directory.
    fn add(&self) -> Option<u32> {
        let index = self.len.load(Ordering::Relaxed);
        let (chunk, _) = position(index);
        let size = FIRST << chunk;
        self.chunks.get(chunk)?.get_or_init(|| (0..size).map(|_| Arena::new(Owner::Vacant)).collect());
        self.len.store(index + 1, Ordering::Release);
        Some(index)
    }
}

/// Maps streams to arenas.
#[derive(Default)]
pub(crate) struct Directory {
    of: HashMap<TimelineId, u32>,
    vacant: Vec<u32>,
    generations: u64,
}

impl Directory {
    pub(crate) fn find(&self, stream: TimelineId) -> Option<u32> {
        self.of.get(&stream).copied()
    }

    /// Returns the arena of a stream, assigning one if needed. `None` if there are too many streams.
    pub(crate) fn enter(&mut self, arenas: &Arenas, stream: &CudaStream, is_hosts: bool) -> Option<u32> {
        if let Some(index) = self.find(stream.id()) {
            return Some(index);
        }
        let index = self.vacant.pop().or_else(|| arenas.add())?;
        self.generations += 1;
        let owner = Owner::Stream(Arc::downgrade(&stream.own));
        arenas.get(index)?.lock().enter(self.generations, owner, is_hosts);
        self.of.insert(stream.id(), index);
        Some(index)
    }

    pub(crate) fn forget(&mut self, stream: TimelineId) {
        self.of.remove(&stream);
    }

    /// Frees an arena for reuse if its stream ended, its work is complete, and it has no blocks. Drop the result
    /// without locks.
    #[must_use]
    pub(crate) fn vacate(&mut self, index: u32, state: &mut ArenaState) -> Option<(Owner, Vec<Fence>)> {
        let is_complete = matches!(&state.owner, Owner::Ended(end) if end.is_known_complete());
        (is_complete && state.blocks.is_empty()).then(|| {
            self.vacant.push(index);
            state.vacate(Owner::Vacant)
        })
    }

    /// The allocator was dropped: ends of streams need no record.
    pub(crate) fn close(&mut self) {
        self.of.clear();
    }
}

/// A recently used arena of a thread.
#[derive(Clone, Copy)]
struct Recent {
    allocator: u64,
    stream: Option<TimelineId>,
    arena: u32,
}

/// Cached streams per thread; a power of two.
const RECENT: usize = 16;

thread_local! {
    static RECENT_ARENAS: [Cell<Recent>; RECENT] =
        const { [const { Cell::new(Recent { allocator: 0, stream: None, arena: 0 }) }; RECENT] };
}

/// Index in the thread's cache: any spread over streams will do.
#[inline]
fn slot(allocator: u64, stream: &CudaStream) -> usize {
    let address = Arc::as_ptr(&stream.own).addr();
    ((address >> 6) ^ (address >> 10) ^ allocator as usize) % RECENT
}

/// Returns the cached arena of a stream. Stream identities are never reused, so stale entries do not match.
#[inline]
pub(crate) fn recent(allocator: u64, stream: &CudaStream) -> Option<u32> {
    let found = RECENT_ARENAS.try_with(|lately| {
        let recent = lately[slot(allocator, stream)].get();
        (recent.allocator == allocator && recent.stream == Some(stream.own.id())).then_some(recent.arena)
    });
    found.ok().flatten()
}

pub(crate) fn remember(allocator: u64, stream: &CudaStream, arena: u32) {
    // An ending thread uses the directory.
    let _ending = RECENT_ARENAS.try_with(|lately| {
        let recent = Recent { allocator, stream: Some(stream.own.id()), arena };
        lately[slot(allocator, stream)].set(recent);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..1000 {
            assert_eq!(position(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}
