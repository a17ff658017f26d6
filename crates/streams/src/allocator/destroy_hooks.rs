//! Tells the allocators that serve a stream of its end, before it is destroyed.

use std::sync::Arc;

use parking_lot::Mutex;
use transload_core::TimelineId;
use transload_cuda_sys::Stream;

use super::arenas::Arenas;

/// The allocators that are told of a stream's end. Kept alive by this: of an allocator that goes at the same moment, each side
/// would else find the other gone already, and nobody would know of the stream's work.
#[derive(Default)]
pub(crate) struct Endings {
    told: Mutex<Vec<Arc<Arenas>>>,
}

impl Endings {
    /// Adds an allocator, which knows the stream already, to those that are told of the end of stream `id`, which this is of.
    pub(crate) fn add(&self, id: TimelineId, arenas: Arc<Arenas>) {
        // Dropped after the lock.
        let mut closed = Vec::new();
        let mut told = self.told.lock();
        // Once is enough for one that was there before the stream was released.
        let is_out = |known: &mut Arc<Arenas>| Arc::ptr_eq(known, &arenas) || known.find(id).is_none();
        closed.extend(told.extract_if(.., is_out));
        told.push(arenas);
        drop(told);
    }

    /// `stream` is destroyed with its last reference; nobody else can use it.
    pub(crate) fn tell(&self, id: TimelineId, stream: &Arc<Stream>) {
        let told = std::mem::take(&mut *self.told.lock());
        // Dropped when all were told: it may be the last handle of anything.
        let left: Vec<_> = told.iter().map(|arenas| arenas.stream_ends(id, stream)).collect();
        drop((left, told));
    }
}
