//! Barriers: later work of each stream comes after all earlier work of every stream.

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
    /// Makes later work of each registered stream come after all earlier work of every one, also across devices. The
    /// host does not wait. A barrier adds no edges and cannot close a cycle.
    ///
    /// The first stream waits for all others, and they wait for it: at most 2(n − 1) waits for n streams, fewer if some
    /// are idle. A separate stream in between would cost two more, and would order independent barriers.
    ///
    /// If a device is lost before its streams pass the barrier, streams of other devices pass it too early;
    /// [`Barrier::wait`] returns the error.
    ///
    /// # Errors
    /// `InvalidArgument` without a stream; the error of an unusable stream (unregister it), before anything is enqueued;
    /// the driver's: some streams may then wait for others.
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

/// An enqueued barrier. Wait for it, await it in any executor, or drop it: the streams wait in any case.
///
/// It can be awaited again after its end. Usable from any thread; keeps its streams alive.
#[derive(Clone, Debug)]
#[must_use = "only a wait returns the errors of the work before the barrier"]
pub struct Barrier {
    /// After the work of all streams.
    joined: Fence,
    /// After the work of each stream but the first: if a device is lost, they end one by one.
    parts: SmallVec<[Fence; 4]>,
}

impl Barrier {
    /// Returns the point after all earlier work, for a queue's wait or a callback. If the first stream's device is lost,
    /// it counts as reached; [`wait`](Self::wait) still waits for the others.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.joined
    }

    fn fences(&self) -> impl Iterator<Item = &Fence> {
        std::iter::once(&self.joined).chain(&self.parts)
    }

    /// Returns whether all earlier work is complete or failed. Never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fences().all(Fence::is_complete)
    }

    /// Blocks the calling thread until all earlier work of all streams is complete.
    ///
    /// # Errors
    /// The first error of that work, when all of it is complete.
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
            outcome = outcome.and(match fence.poll() {
                Ok(true) => Ok(()),
                Ok(false) if !fence.wake_at(context.waker()) => {
                    return Poll::Pending;
                }
                // It completed in between.
                Ok(false) => fence.wait(),
                Err(error) => Err(error),
            });
        }
        Poll::Ready(outcome)
    }
}
