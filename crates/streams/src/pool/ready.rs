//! Finds or waits for a stream without work in flight.

use std::{
    cell::OnceCell,
    sync::Arc,
    task::{Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use transload_core::{Error, ErrorKind, Fence, Queue, Result, StreamPriority, WorkloadType};

use super::{AdvancedStreamPool, PRIORITIES, StreamLease};
use crate::{CudaStream, completion::after_capture::AfterCapture};

/// State of a stream.
enum State {
    Idle,
    /// Until the fence is complete.
    Busy(Fence),
    /// Until the fence of its capture's end.
    Captured(Fence),
    Broken(Error),
}

enum Found {
    Lease(StreamLease),
    /// Another stream of this priority may be created.
    Room(StreamPriority),
    /// All are busy; the fences complete first.
    Busy(Vec<Fence>),
}

impl AdvancedStreamPool {
    /// Returns whether a stream without work in flight exists or could be created, in a priority in use (any, before
    /// the first lease). Queries the driver, so work enqueued through raw handles counts.
    ///
    /// # Errors
    /// The streams' error, if all have failed; the driver's.
    pub fn has_ready_streams(&self) -> Result<bool> {
        self.find(true).map(|found| !matches!(found, Found::Busy(_)))
    }

    /// Leases a stream without work in flight, of any priority. Blocks until there is one, and returns `None` if the
    /// timeout expires before; without a timeout it waits as long as needed. See
    /// [`has_ready_streams`](Self::has_ready_streams).
    ///
    /// # Errors
    /// As for `has_ready_streams`; `Busy` if all streams are being captured into graphs.
    pub fn wait_for_any_ready(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<StreamLease>> {
        // A timeout too long to be represented has no end.
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        let waker = this_thread();
        loop {
            let mut found = self.find(true)?;
            if let Found::Room(priority) = found {
                let lease = self.lease(priority, WorkloadType::Mixed)?;
                let is_idle = matches!(state(&lease)?, State::Idle);
                if is_idle || transload_core::mutant!("streams/ready-is-idle") {
                    return Ok(Some(lease));
                }
                // A shared one, since no stream could be created or another thread took the last place.
                drop(lease);
                found = self.find(false)?;
            }
            let fences = match found {
                Found::Lease(lease) => return Ok(Some(lease)),
                // All were retired meanwhile.
                Found::Room(_) => continue,
                Found::Busy(fences) => fences,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if register_all(&fences, &waker)? {
                match left {
                    Some(left) => thread::park_timeout(left),
                    None => thread::park(),
                }
            }
        }
    }

    /// Unleased idle streams first, then a new one if one `may_be_created`, then leased idle ones.
    fn find(&self, may_be_created: bool) -> Result<Found> {
        let (mut fences, mut captures) = (Vec::new(), Vec::new());
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
                        // Another stream may be in the slot meanwhile.
                        Ok(State::Idle) => {
                            let held = group.places.lease(index).filter(|held| held.id() == stream.id());
                            found = held.map(|held| Ok(StreamLease::new(held)));
                        }
                        Ok(State::Busy(fence)) => fences.push(fence),
                        Ok(State::Captured(end)) => captures.push(end),
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
            // A failed device creates no streams.
            if let Some(room) = room.filter(|_| broken.is_none() && may_be_created) {
                return Ok(room);
            }
        }
        match broken {
            Some(error) if fences.is_empty() => Err(error),
            None if streams == 0 => Ok(Found::Room(StreamPriority::Normal)),
            // Captures alone are an error: see `register_all`.
            _ if fences.is_empty() => Ok(Found::Busy(fences)),
            _ => {
                fences.append(&mut captures);
                Ok(Found::Busy(fences))
            }
        }
    }
}

/// Queries the driver, except during a capture, which a query would invalidate.
fn state(stream: &CudaStream) -> Result<State> {
    if let Err(error) = stream.own.check() {
        return Ok(State::Broken(error));
    }
    let outstanding = stream.outstanding();
    if outstanding > 0 {
        let point = stream.own.last_point();
        match stream.timeline().poll(point) {
            Ok(false) => return Ok(State::Busy(Fence::new(Arc::clone(stream.timeline()), point))),
            Ok(true) => {}
            Err(error) => return Ok(State::Broken(error)),
        }
    }
    if stream.own.is_captured() {
        return Ok(State::Captured(AfterCapture::of(stream.clone())));
    }
    match stream.is_ready() {
        Ok(true) => Ok(State::Idle),
        // Work from the raw handle: record a fence for it.
        Ok(false) => stream.fence().map(State::Busy),
        Err(error) => Ok(State::Broken(error)),
    }
}

/// Registers the waker with the fences; `false` if one is already complete.
fn register_all(fences: &[Fence], waker: &Waker) -> Result<bool> {
    if fences.is_empty() {
        let text = "every stream is being captured into a graph, and none becomes ready before that ends";
        return Err(Error::new(ErrorKind::Busy, text));
    }
    // The others need not be registered if one is already complete.
    Ok(fences.iter().all(|fence| !fence.wake_at(waker)))
}

/// One waker per thread, so that repeated waits register once.
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
    let create = || Waker::from(Arc::new(Unpark(thread::current())));
    WAKER.try_with(|waker| waker.get_or_init(create).clone()).unwrap_or_else(|_| create())
}
