//! A point that all streams pass together: later work of each comes after all earlier work of every one.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use smallvec::SmallVec;
use transload_core::{Fence, Result};

use super::{MultiStreamCoordinator, is_idle, no_streams};
use crate::CudaStream;

impl MultiStreamCoordinator {
    /// Makes the later work of each registered stream come after all earlier work of every one, also over several devices.
    /// The devices see to it; the host does not wait. A barrier is no edge of the plan and cannot close a cycle.
    ///
    /// One of the streams waits for all others, and they wait for it: at most 2(n − 1) waits for n streams, fewer where some
    /// are idle. A stream of the coordinator's own in between would cost two more, and would tie barriers of different
    /// streams together.
    ///
    /// Should a device be lost before the barrier is passed, nothing on it runs any more, and streams of other devices are
    /// let go too early: [`Barrier::wait`] answers the error.
    ///
    /// # Errors
    /// `InvalidArgument` without a stream; the error of a stream that is known to be unusable (unregister it), before anything is
    /// enqueued; the driver's, after which some streams may wait for others, and nothing else has happened.
    pub fn create_barrier(&self) -> Result<Barrier> {
        join(&self.streams())
    }
}

fn join(streams: &[CudaStream]) -> Result<Barrier> {
    let Some((first, others)) = streams.split_first() else { return Err(no_streams()) };
    for stream in streams {
        stream.own.check_usable()?;
    }
    let mut parts = SmallVec::new();
    for other in others {
        if !is_idle(other)? {
            let part = other.fence()?;
            first.own.wait_for(&other.own, part.point())?;
            parts.push(part);
        }
    }
    let is_passed = parts.is_empty() && is_idle(first)?;
    let joined = first.fence()?;
    if !is_passed {
        for other in others {
            other.own.wait_for(&first.own, joined.point())?;
        }
    }
    Ok(Barrier { joined, parts })
}

/// A barrier that is enqueued. Wait for it, await it (under any executor), ask it, or drop it: the streams keep to it.
///
/// Awaited after its end it answers the same again. Usable from any thread; keeps its streams alive.
#[derive(Clone, Debug)]
#[must_use = "whether the work before the barrier failed is only known to who waits for it"]
pub struct Barrier {
    /// Behind the work of all.
    joined: Fence,
    /// Behind the work of each stream but the one that joined: where a device is lost they end one by one.
    parts: SmallVec<[Fence; 4]>,
}

impl Barrier {
    /// The point behind all earlier work, for a queue to wait for or a callback. Where the device that joined the streams
    /// is lost it counts as reached; [`wait`](Self::wait) then still waits for the others.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.joined
    }

    fn fences(&self) -> impl Iterator<Item = &Fence> {
        std::iter::once(&self.joined).chain(&self.parts)
    }

    /// Whether all earlier work is over, for better or worse. Never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fences().all(Fence::is_complete)
    }

    /// Blocks the calling thread until all earlier work of all streams is over.
    ///
    /// # Errors
    /// The first error of that work, once all of it is over.
    pub fn wait(&self) -> Result<()> {
        let mut outcome = Ok(());
        for fence in self.fences() {
            outcome = outcome.and(fence.wait());
        }
        outcome
    }
}

impl Future for Barrier {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = Ok(());
        for fence in self.fences() {
            outcome = outcome.and(match fence.timeline().poll(fence.point()) {
                Ok(true) => Ok(()),
                Ok(false) if !fence.timeline().wake_at(fence.point(), context.waker()) => {
                    return Poll::Pending;
                }
                // It ended in between.
                Ok(false) => fence.wait(),
                Err(error) => Err(error),
            });
        }
        Poll::Ready(outcome)
    }
}
