//! Host memory of a test in pages of its own, which counts when it is freed.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{HostBytes, MemoryKind, RawBuffer};

/// The largest page size of any machine.
const PAGE: usize = 65_536;

pub(crate) struct Heap {
    start: NonNull<u8>,
    layout: Layout,
    panics: bool,
    freed: Arc<AtomicU64>,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Heap {}
// SAFETY: nothing but the address is reachable.
unsafe impl Sync for Heap {}

/// A zeroed buffer, and a counter of its frees.
pub(crate) fn heap(bytes: usize, writable: bool) -> (RawBuffer, Arc<AtomicU64>) {
    heap_that(false, bytes, writable)
}

/// A buffer whose destructor panics.
pub(crate) fn panicking_heap(bytes: usize) -> RawBuffer {
    heap_that(true, bytes, true).0
}

fn heap_that(panics: bool, bytes: usize, writable: bool) -> (RawBuffer, Arc<AtomicU64>) {
    let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE).max(PAGE), PAGE).unwrap();
    // SAFETY: the layout's size is not 0.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    let freed = Arc::new(AtomicU64::new(0));
    let owner = Heap { start, layout, panics, freed: Arc::clone(&freed) };
    // SAFETY: the owner has this many zeroed bytes there, and frees them when dropped.
    let storage = unsafe { HostBytes::new(owner, start, bytes, MemoryKind::Pageable, writable) };
    (RawBuffer::new(Box::new(storage), &Arc::default()), freed)
}

/// A buffer over memory that has none.
///
/// # Safety
/// * As for [`HostBytes::new`], until the buffer is dropped and unused.
pub(crate) unsafe fn over(address: NonNull<u8>, bytes: usize, writable: bool) -> RawBuffer {
    // SAFETY: the caller's promise.
    let storage = unsafe { HostBytes::new((), address, bytes, MemoryKind::Pageable, writable) };
    RawBuffer::new(Box::new(storage), &Arc::default())
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        // SAFETY: allocated in `heap` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
        assert!(!self.panics, "a destructor that panics");
    }
}

/// Fails instead of hanging.
pub(crate) fn watched(work: impl FnOnce() + Send + 'static) {
    let (done, outcome) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        // No receiver is left after a timeout.
        let _late = done.send(());
    });
    let waited = outcome.recv_timeout(std::time::Duration::from_secs(120));
    assert!(waited != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}
