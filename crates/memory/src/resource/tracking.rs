//! An adaptor that knows every live segment: its size, and who asked for it.
//!
//! Every method may be called from any thread. One lock guards the list; it is held for the entering and leaving of a segment,
//! never across a call of the wrapped resource. A segment is listed until it is given back to that resource, which may keep it
//! for as long as work of streams is in flight on it.

use std::{
    backtrace::Backtrace,
    collections::BTreeMap,
    fmt,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use transload_core::{RawBuffer, Result};

use super::{MemoryResource, tracking_report::TrackingReport, wrapped::Wrapper};

/// What is kept of who asked for a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrackedOrigin {
    /// Nothing.
    #[default]
    Nothing,
    /// The line that called the resource. Through another adaptor that is a line of the adaptor, and through a trait object, as
    /// allocators have it, one of this resource: take the [backtrace](Self::Backtrace) there.
    Caller,
    /// The whole chain of calls. Takes some microseconds for each segment, and names of functions only where the program has
    /// them.
    Backtrace,
}

/// Lists what passes through, and changes nothing.
pub struct TrackingResource<R> {
    upstream: R,
    origin: TrackedOrigin,
    list: Arc<List>,
    wrapper: Wrapper,
}

/// One live segment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TrackedSegment {
    /// The how manieth segment that this resource gave, from 1.
    pub number: u64,
    /// Where it begins: for the device, or for the host where the device has no address of its own.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// The line that asked for it, where that is kept.
    pub caller: Option<&'static Location<'static>>,
    /// The calls that led there, where they are kept.
    pub backtrace: Option<Arc<Backtrace>>,
}

#[derive(Default)]
struct List {
    segments: Mutex<BTreeMap<u64, TrackedSegment>>,
    last: AtomicU64,
}

/// Takes a segment out of the list when dropped.
struct Listed {
    list: Arc<List>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        // Dropped with the list unlocked: a backtrace is much to free.
        let _gone = self.list.segments.lock().remove(&self.number);
    }
}

impl<R: MemoryResource> TrackingResource<R> {
    /// Lists what `upstream` gives from now on, with what was asked to be kept.
    #[must_use]
    pub fn new(upstream: R, origin: TrackedOrigin) -> Self {
        Self { upstream, origin, list: Arc::default(), wrapper: Wrapper::default() }
    }

    /// What is alive, the largest first.
    #[must_use]
    pub fn report(&self) -> TrackingReport {
        let segments = self.list.segments.lock().values().cloned().collect();
        TrackingReport::new(self.upstream.place(), segments)
    }
}

// SAFETY: a segment of the wrapped resource is kept by the buffer that is given out, and used by nothing else.
unsafe impl<R: MemoryResource> MemoryResource for TrackingResource<R> {
    as_upstream!(upstream: place device info);

    #[track_caller]
    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        let here = Location::caller();
        self.wrapper.sweep();
        let segment = self.upstream.allocate_segment(bytes)?;
        let number = self.list.last.fetch_add(1, Ordering::Relaxed) + 1;
        let hosts = || segment.host_address().map(|address| address.addr().get() as u64);
        let tracked = TrackedSegment {
            number,
            address: segment.device_address().or_else(hosts).unwrap_or(0),
            bytes: segment.len() as u64,
            caller: (self.origin == TrackedOrigin::Caller).then_some(here),
            backtrace: (self.origin == TrackedOrigin::Backtrace)
                .then(|| Arc::new(Backtrace::force_capture())),
        };
        self.list.segments.lock().insert(number, tracked);
        Ok(self.wrapper.wrap(segment, (), Listed { list: Arc::clone(&self.list), number }))
    }

    fn trim(&self) -> Result<()> {
        self.wrapper.drain().and(self.upstream.trim())
    }
}

impl<R> fmt::Debug for TrackingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alive = self.list.segments.lock().len();
        f.debug_struct("TrackingResource")
            .field("origin", &self.origin)
            .field("alive", &alive)
            .finish_non_exhaustive()
    }
}
