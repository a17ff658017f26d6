//! Streams as threads lease them: a seat is a stream for one share of the threads, and a lease is a handle of a seat.
//!
//! Leasing and giving back change the count of the thread's own seats only. Other threads read it.

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{
    DeviceId, Fence, Operation, Place, Queue, QueueLease, Result, StreamPriority, Timeline, Timing,
};

use crate::{CudaStream, thread_number::thread_number};

/// Streams of a lane at most: one bit each in a word.
pub(crate) const MOST: usize = 64;
/// How many shares the threads are divided into.
const SHARES: usize = 16;

/// Which share of the threads a thread is in.
#[derive(Clone, Copy)]
pub(crate) struct Share(usize);

impl Share {
    /// The calling thread's.
    pub(crate) fn here() -> Self {
        Self(thread_number() % SHARES)
    }
}

/// A stream as one share of the threads leases it. Its handles are leases, but for the lane's.
// On lines of its own, fetched in pairs, as is the count of its handles before it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Seat {
    stream: CudaStream,
    shared: Arc<Shared>,
}

/// What all seats of a stream share: it seldom changes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shared {
    /// Which seats were leased, ever.
    used: AtomicU64,
    /// What the latest lease was for.
    note: AtomicU64,
}

impl Seat {
    /// Says what the lease is for.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        if self.note() != note {
            self.shared.note.store(note, Ordering::Relaxed);
        }
    }

    /// What the latest lease of the stream is for.
    #[inline]
    pub(crate) fn note(&self) -> u64 {
        self.shared.note.load(Ordering::Relaxed)
    }
}

impl Deref for Seat {
    type Target = CudaStream;

    #[inline]
    fn deref(&self) -> &CudaStream {
        &self.stream
    }
}

// SAFETY: everything is the stream's own.
unsafe impl Queue for Seat {
    fn device(&self) -> DeviceId {
        Queue::device(&self.stream)
    }

    fn priority(&self) -> StreamPriority {
        self.stream.priority()
    }

    #[inline]
    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.stream.timeline()
    }

    #[inline]
    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.stream.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.stream.can_wait_for(fence)
    }

    #[inline]
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }

    fn raw_handle(&self) -> Option<usize> {
        self.stream.raw_handle()
    }

    fn with_raw_handle(&self, call: &mut dyn FnMut(usize)) -> Result<()> {
        self.stream.with_raw_handle(call)
    }
}

/// A stream of a pool, until dropped; work may still be in flight then. May outlive the pool. Usable from any thread.
///
/// The stream can be cloned out of it; a clone keeps the stream alive and is no lease.
#[derive(Debug)]
pub struct StreamLease {
    seat: Arc<Seat>,
}

impl StreamLease {
    #[inline]
    pub(crate) fn new(seat: Arc<Seat>) -> Self {
        Self { seat }
    }

    /// The same lease as core's type.
    #[must_use]
    pub fn into_queue(self) -> QueueLease {
        QueueLease::new(self.seat as Arc<dyn Queue>)
    }
}

impl Deref for StreamLease {
    type Target = CudaStream;

    #[inline]
    fn deref(&self) -> &CudaStream {
        &self.seat
    }
}

/// The seats of a stream as threads find them. Does not keep the stream.
pub(crate) struct Seats {
    seats: [Weak<Seat>; SHARES],
    shared: Arc<Shared>,
}

impl Seats {
    fn of(seats: &[Arc<Seat>], shared: Arc<Shared>) -> Arc<Self> {
        let seat = |share| seats.get(share).map(Arc::downgrade).unwrap_or_default();
        Arc::new(Self { seats: std::array::from_fn(seat), shared })
    }

    /// Leases the share's seat, and says how many other leases of the stream there are. Of two threads that lease at
    /// once at least one is told of the other. `None` where the stream was retired.
    #[inline]
    pub(crate) fn hold(&self, Share(share): Share) -> Option<(Arc<Seat>, usize)> {
        let used = &self.shared.used;
        if used.load(Ordering::Relaxed) & (1 << share) == 0 {
            used.fetch_or(1 << share, Ordering::Relaxed);
        }
        let seat = self.seats[share % SHARES].upgrade()?;
        // Of two such exchanges one comes first, and its thread is seen by the other. On x86 the exchange itself sees to that.
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(Ordering::SeqCst);
        // The lane's handle, and this one.
        let own = Arc::strong_count(&seat).saturating_sub(2);
        Some((seat, own + self.leases_in(!(1 << share))))
    }

    /// As [`hold`](Self::hold), without a look at other threads' seats: leases the seat unless it is leased.
    #[inline]
    pub(crate) fn hold_own(&self, Share(share): Share) -> Option<Arc<Seat>> {
        let seat = self.seats[share % SHARES].upgrade()?;
        (Arc::strong_count(&seat) == 2).then_some(seat)
    }

    /// How many leases there are.
    #[inline]
    pub(crate) fn leases(&self) -> usize {
        self.leases_in(u64::MAX)
    }

    #[inline]
    fn leases_in(&self, shares: u64) -> usize {
        let mut rest = self.shared.used.load(Ordering::Relaxed) & shares;
        let mut leases = 0;
        while rest != 0 {
            let seat = &self.seats[rest.trailing_zeros() as usize % SHARES];
            leases += seat.strong_count().saturating_sub(1);
            rest &= rest - 1;
        }
        leases
    }
}

/// A stream of a lane, and its seats, which go with this unless they are leased.
pub(crate) struct Pooled {
    pub(crate) stream: CudaStream,
    seats: Vec<Arc<Seat>>,
    pub(crate) found: Arc<Seats>,
}

impl Pooled {
    pub(crate) fn new(stream: CudaStream) -> Self {
        let shared = Arc::<Shared>::default();
        let seat = || Arc::new(Seat { stream: stream.clone(), shared: Arc::clone(&shared) });
        let seats: Vec<_> = (0..SHARES).map(|_| seat()).collect();
        let found = Seats::of(&seats, shared);
        Self { stream, seats, found }
    }

    /// Gives up the seats, from when on nobody can lease them; `Err` with the stream as it was, with new seats for those given
    /// up, where one is leased.
    pub(crate) fn retire(mut self) -> Result<CudaStream, Self> {
        let mut leased = false;
        let given_up = |seat| {
            let own = if leased { Err(seat) } else { Arc::try_unwrap(seat) };
            leased |= own.is_err();
            own.map_or_else(|seat| seat, Arc::new)
        };
        self.seats = std::mem::take(&mut self.seats).into_iter().map(given_up).collect();
        if !leased || transload_core::mutant!("streams/leased-streams-stay") {
            return Ok(self.stream);
        }
        self.found = Seats::of(&self.seats, Arc::clone(&self.found.shared));
        Err(self)
    }
}
