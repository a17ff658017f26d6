//! Streams with nothing before one's work: are there any, and waiting for one without spinning.

use std::{
    cell::OnceCell,
    sync::Arc,
    task::{Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use transload_core::{Error, ErrorKind, Fence, Queue, Result, StreamPriority, WorkloadType};

use super::{AdvancedStreamPool, PRIORITIES, StreamLease};
use crate::CudaStream;

/// What a stream is found to be.
enum State {
    Idle,
    /// Until the fence is over; `None` while somebody captures the stream.
    Busy(Option<Fence>),
    Broken(Error),
}

enum Found {
    Lease(StreamLease),
    /// One more may be made of this priority.
    Room(StreamPriority),
    /// All are busy until one of these is over.
    Busy(Vec<Fence>),
}

impl AdvancedStreamPool {
    /// Whether a stream that has no work in flight is there, or could be made, in a priority that is in use (in any, before
    /// the first lease). Asks the driver, so that also work enqueued through raw handles counts.
    ///
    /// # Errors
    /// The error that broke the streams, where all are broken; the driver's.
    pub fn has_ready_streams(&self) -> Result<bool> {
        self.find().map(|found| !matches!(found, Found::Busy(_)))
    }

    /// Leases a stream that has no work in flight, of whatever priority; waits for one until the timeout. `None` after it. See
    /// [`has_ready_streams`](Self::has_ready_streams) for what is ready. The calling thread sleeps meanwhile.
    ///
    /// # Errors
    /// As for `has_ready_streams`; `Busy` where all streams are being captured into graphs.
    pub fn wait_for_any_ready(&self, timeout: Duration) -> Result<Option<StreamLease>> {
        // A timeout too long to be represented has no end.
        let deadline = Instant::now().checked_add(timeout);
        let waker = this_thread();
        loop {
            let fences = match self.find()? {
                Found::Lease(lease) => return Ok(Some(lease)),
                Found::Room(priority) => return self.lease(priority, WorkloadType::Mixed).map(Some),
                Found::Busy(fences) => fences,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if arranged(&fences, &waker)? {
                match left {
                    Some(left) => thread::park_timeout(left),
                    None => thread::park(),
                }
            }
        }
    }

    /// Streams that nobody leased come first, then one that may be made, then leased ones that do nothing.
    fn find(&self) -> Result<Found> {
        let mut fences = Vec::new();
        let (mut broken, mut streams) = (None, 0_usize);
        for free in [true, false] {
            let mut room = None;
            for (group, priority) in self.groups.iter().zip(PRIORITIES) {
                let mut found = None;
                group.look(|index, stream, leases| {
                    if found.is_some() || (leases == 0) != free {
                        return;
                    }
                    streams += 1;
                    match state(stream) {
                        // Another may have taken its place meanwhile.
                        Ok(State::Idle) => {
                            let held = group.places.lease(index).filter(|held| held.id() == stream.id());
                            found = held.map(|held| Ok(StreamLease::new(held)));
                        }
                        Ok(State::Busy(fence)) => fences.extend(fence),
                        Ok(State::Broken(error)) => broken = Some(error),
                        Err(error) => found = Some(Err(error)),
                    }
                });
                if let Some(lease) = found {
                    return lease.map(Found::Lease);
                }
                if group.streams() > 0 && group.room(WorkloadType::Mixed) {
                    room = room.or(Some(Found::Room(priority)));
                }
            }
            // A device that broke streams makes no others.
            if let Some(room) = room.filter(|_| broken.is_none()) {
                return Ok(room);
            }
        }
        match broken {
            Some(error) if fences.is_empty() => Err(error),
            None if streams == 0 => Ok(Found::Room(StreamPriority::Normal)),
            _ => Ok(Found::Busy(fences)),
        }
    }
}

/// The driver is asked, but for a stream that is being captured, where asking would end the capture.
fn state(stream: &CudaStream) -> Result<State> {
    if let Err(error) = stream.own.check() {
        return Ok(State::Broken(error));
    }
    let outstanding = stream.outstanding();
    if outstanding > 0 {
        let point = stream.timeline().reached().saturating_add(outstanding);
        match stream.timeline().poll(point) {
            Ok(false) => return Ok(State::Busy(Some(Fence::new(Arc::clone(stream.timeline()), point)))),
            Ok(true) => {}
            Err(error) => return Ok(State::Broken(error)),
        }
    }
    if stream.own.is_captured() {
        return Ok(State::Busy(None));
    }
    match stream.is_ready() {
        Ok(true) => Ok(State::Idle),
        // Work that was enqueued through the raw handle: a fence behind it says when it is over.
        Ok(false) => stream.fence().map(|fence| State::Busy(Some(fence))),
        Err(error) => Ok(State::Broken(error)),
    }
}

/// Has the waker woken when any of the fences is over; `false` where one is already.
fn arranged(fences: &[Fence], waker: &Waker) -> Result<bool> {
    if fences.is_empty() {
        let text = "every stream is being captured into a graph, and none becomes ready before that ends";
        return Err(Error::new(ErrorKind::Busy, text));
    }
    // The others need not be registered where one is over already.
    Ok(fences.iter().all(|fence| !fence.timeline().wake_at(fence.point(), waker)))
}

/// One waker for each thread, so that waiting again and again for the same work registers it once.
fn this_thread() -> Waker {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }
    thread_local! {
        static WAKER: OnceCell<Waker> = const { OnceCell::new() };
    }
    let made = || Waker::from(Arc::new(Unpark(thread::current())));
    WAKER.try_with(|waker| waker.get_or_init(made).clone()).unwrap_or_else(|_| made())
}
