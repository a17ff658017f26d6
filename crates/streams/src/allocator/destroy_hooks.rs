//! Tells the allocators that serve a stream of its end, before it is destroyed.

use std::sync::Arc;

use parking_lot::Mutex;
use transload_core::TimelineId;
use transload_cuda_sys::Stream;

use super::arenas::Arenas;

/// The allocators that are allocators of a stream's end. Kept alive by this: of an allocator that goes at the same moment, each side
/// would else find the other gone already, and nobody would know of the stream's work.
#[derive(Default)]
pub(crate) struct DestroyHooks {
    allocators: Mutex<Vec<Arc<Arenas>>>,
}

impl DestroyHooks {
    /// Adds an allocator, which knows the stream already, to those that are allocators of the end of stream `id`, which this is of.
    pub(crate) fn add(&self, id: TimelineId, arenas: Arc<Arenas>) {
        // Dropped after the lock.
        let mut closed = Vec::new();
        let mut allocators = self.allocators.lock();
        // Once is enough for one that was there before the stream was released.
        let is_out = |known: &mut Arc<Arenas>| Arc::ptr_eq(known, &arenas) || known.find(id).is_none();
        closed.extend(allocators.extract_if(.., is_out));
        allocators.push(arenas);
        drop(allocators);
    }

    /// `stream` is destroyed with its last reference; nobody else can use it.
    pub(crate) fn run(&self, id: TimelineId, stream: &Arc<Stream>) {
        let allocators = std::mem::take(&mut *self.allocators.lock());
        // Dropped when all were allocators: it may be the last handle of anything.
        let left: Vec<_> = allocators.iter().map(|arenas| arenas.end_stream(id, stream)).collect();
        drop((left, allocators));
    }
}
