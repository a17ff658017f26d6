//! Notifies a stream's allocators before the stream is destroyed, while an event can still be recorded.

use std::sync::Arc;

use parking_lot::Mutex;
use transload_core::TimelineId;

use super::arenas::Arenas;
use crate::stream::handle::StreamHandle;

/// The allocators that serve a stream. Strong references: with weak ones, a stream and an allocator dropped
/// concurrently could each miss the other.
#[derive(Default)]
pub(crate) struct DestroyHooks {
    allocators: Mutex<Vec<Arc<Arenas>>>,
}

impl DestroyHooks {
    /// Adds an allocator that has registered stream `id`.
    pub(crate) fn add(&self, id: TimelineId, arenas: Arc<Arenas>) {
        // Dropped without the lock.
        let mut closed = Vec::new();
        let mut allocators = self.allocators.lock();
        // Also removes duplicates and allocators that have released the stream.
        let is_out = |known: &mut Arc<Arenas>| Arc::ptr_eq(known, &arenas) || known.find(id).is_none();
        closed.extend(allocators.extract_if(.., is_out));
        allocators.push(arenas);
        drop(allocators);
    }

    /// Notifies the allocators. `stream` has no other user and is destroyed with its last reference.
    pub(crate) fn run(&self, id: TimelineId, stream: &Arc<StreamHandle>) {
        let allocators = std::mem::take(&mut *self.allocators.lock());
        // Dropped after all were notified: these may be last handles.
        let left: Vec<_> = allocators.iter().map(|arenas| arenas.end_stream(id, stream)).collect();
        drop((left, allocators));
    }
}
