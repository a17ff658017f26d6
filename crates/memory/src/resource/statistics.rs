//! An adaptor that counts: bytes and segments alive, at most at a time, and in all.
//!
//! Every method may be called from any thread; counting takes no lock and calls no driver. A segment counts until it is given
//! back to the wrapped resource, which may keep it for as long as work of streams is in flight on it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{RawBuffer, Result};

use super::{MemoryResource, wrapped::Wrapper};

/// Counts what passes through, and changes nothing.
pub struct StatisticsResource<R> {
    upstream: R,
    counts: Arc<Counts>,
    wrapper: Wrapper,
}

/// Numbers of a [`StatisticsResource`]. Each is exact; they are read one after the other, so while other threads allocate they
/// may be of slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceStatistics {
    /// Bytes alive.
    pub current_bytes: u64,
    /// The most bytes alive at a time, since the beginning or the last [`reset_peak`](StatisticsResource::reset_peak).
    pub peak_bytes: u64,
    /// Bytes of all segments so far.
    pub total_bytes: u64,
    /// Segments alive.
    pub current_segments: u64,
    /// The most segments alive at a time, as for bytes.
    pub peak_segments: u64,
    /// Segments given so far.
    pub total_segments: u64,
    /// Requests that the wrapped resource answered with an error.
    pub failures: u64,
    /// How often it was trimmed.
    pub trims: u64,
}

#[derive(Default)]
struct Counts {
    bytes: Count,
    segments: Count,
    failures: AtomicU64,
    trims: AtomicU64,
}

#[derive(Default)]
struct Count {
    current: AtomicU64,
    peak: AtomicU64,
    total: AtomicU64,
}

impl Count {
    fn add(&self, by: u64) {
        let now = self.current.fetch_add(by, Ordering::Relaxed).saturating_add(by);
        self.peak.fetch_max(now, Ordering::Release);
        self.total.fetch_add(by, Ordering::Relaxed);
    }
}

/// One live segment in the counts; leaves them when dropped.
struct Counted {
    counts: Arc<Counts>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.bytes.current.fetch_sub(self.bytes, Ordering::Relaxed);
        self.counts.segments.current.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<R: MemoryResource> StatisticsResource<R> {
    /// Counts what `upstream` gives from now on.
    #[must_use]
    pub fn new(upstream: R) -> Self {
        Self { upstream, counts: Arc::default(), wrapper: Wrapper::default() }
    }

    /// The numbers of this moment.
    #[must_use]
    pub fn statistics(&self) -> ResourceStatistics {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let Counts { bytes, segments, failures, trims } = &*self.counts;
        ResourceStatistics {
            current_bytes: of(&bytes.current),
            peak_bytes: of(&bytes.peak),
            total_bytes: of(&bytes.total),
            current_segments: of(&segments.current),
            peak_segments: of(&segments.peak),
            total_segments: of(&segments.total),
            failures: of(failures),
            trims: of(trims),
        }
    }

    /// Peaks count from what is alive now.
    pub fn reset_peak(&self) {
        for count in [&self.counts.bytes, &self.counts.segments] {
            // What was added meanwhile is in one of the two: in the count, or in the peak after this.
            count.peak.swap(count.current.load(Ordering::Relaxed), Ordering::AcqRel);
            count.peak.fetch_max(count.current.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

// SAFETY: a segment of the wrapped resource is kept by the buffer that is given out, and used by nothing else.
unsafe impl<R: MemoryResource> MemoryResource for StatisticsResource<R> {
    as_upstream!(upstream: place device info);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.wrapper.sweep();
        let segment = self.upstream.allocate_segment(bytes).inspect_err(|_| {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
        })?;
        let bytes = segment.len() as u64;
        self.counts.bytes.add(bytes);
        self.counts.segments.add(1);
        Ok(self.wrapper.wrap(segment, (), Counted { counts: Arc::clone(&self.counts), bytes }))
    }

    fn trim(&self) -> Result<()> {
        self.counts.trims.fetch_add(1, Ordering::Relaxed);
        self.wrapper.drain().and(self.upstream.trim())
    }
}

impl<R> fmt::Debug for StatisticsResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { bytes, segments, .. } = &*self.counts;
        f.debug_struct("StatisticsResource")
            .field("bytes", &bytes.current)
            .field("segments", &segments.current)
            .finish_non_exhaustive()
    }
}
