//! Dependencies among streams: a wait on the device, and an edge in the plan unless that would close a cycle.

use std::fmt;

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId};

use super::{MultiStreamCoordinator, is_idle, plan::Wait, unknown};
use crate::{CudaStream, completion::timeline::StreamTimeline};

/// Result of adding a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The wait was enqueued, and the plan has an edge for it.
    Enqueued,
    /// An earlier wait implies it; nothing was enqueued.
    Implied,
    /// The work to wait for is complete; nothing was enqueued.
    Met,
}

/// The cycle that a dependency would close, which is why it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DependencyCycle {
    /// Each stream waits for the next one, the last for the first. The first is the refused waiter. A stream that would
    /// wait for itself is the only one.
    pub streams: Vec<TimelineId>,
}

impl fmt::Display for DependencyCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the dependency would close a cycle: ")?;
        for stream in self.streams.iter() {
            write!(f, "{stream:?} after ")?;
        }
        if let Some(first) = self.streams.first() {
            write!(f, "{first:?}")?;
        }
        f.write_str("; valid when one of these waits is complete, or as a barrier")
    }
}

impl std::error::Error for DependencyCycle {}

impl MultiStreamCoordinator {
    /// Makes later work on `waiter` run after all work enqueued on `on` so far. The wait is on the device; the streams
    /// may be of two devices.
    ///
    /// # Errors
    /// `InvalidArgument`, with a [`DependencyCycle`] as its [cause](Error::cause), if unexpired edges lead from `on` to
    /// `waiter`, or both are the same stream; `InvalidArgument` for a stream that is not registered; the driver's. On an
    /// error no wait was added.
    pub fn add_dependency(&self, waiter: &CudaStream, on: &CudaStream) -> Result<Dependency> {
        self.declare(waiter, on)?.enqueue_after_all(waiter, on)
    }

    /// Like [`add_dependency`](Self::add_dependency), but waits for a fence of a registered stream: of a submitted
    /// operation, or of [`CudaStream::fence`]. A redundant wait is not enqueued: for known complete work, or if waits of
    /// this coordinator imply it.
    ///
    /// # Errors
    /// As for [`add_dependency`](Self::add_dependency). The stream of another backend's fence is not registered.
    pub fn add_dependency_on(&self, waiter: &CudaStream, fence: &Fence) -> Result<Dependency> {
        self.require(waiter)?;
        let timeline = fence.timeline();
        let own = timeline.as_any().downcast_ref::<StreamTimeline>();
        let Some(on) = own.filter(|on| self.is_registered(on.id())) else {
            return Err(unknown(timeline.id(), timeline.device()));
        };
        waiter.own.check_usable()?;
        if waiter.id() != timeline.id() {
            if fence.is_known_complete() {
                // The stream of failed work reports its error.
                return Ok(Dependency::Met);
            }
            if self.registry.lock().plan.implies(waiter.id(), waiter.device(), fence) {
                return Ok(Dependency::Implied);
            }
        }
        self.begin((waiter.id(), waiter.device()), (timeline.id(), timeline.device()))?
            .enqueue(waiter, on, fence)
    }

    /// Returns the unexpired edges, each as the waiter and the stream that it waits for. Calls the driver.
    #[must_use]
    pub fn dependencies(&self) -> Vec<(TimelineId, TimelineId)> {
        let waits = self.registry.lock().plan.waits();
        let over = over(waits);
        let mut registry = self.registry.lock();
        registry.plan.expire(&over);
        registry.plan.edges()
    }

    /// Returns whether the unexpired edges have a cycle, which [`add_dependency`](Self::add_dependency) prevents. To
    /// inspect dependencies before they are enqueued, see [`DependencyPlan`](crate::DependencyPlan).
    #[must_use]
    pub fn has_cycles(&self) -> bool {
        self.registry.lock().plan.has_cycles()
    }

    fn require(&self, stream: &CudaStream) -> Result<()> {
        if self.is_registered(stream.id()) { Ok(()) } else { Err(unknown(stream.id(), stream.device())) }
    }

    /// Adds the edge of a dependency, and checks that its wait can be enqueued.
    pub(super) fn declare(&self, waiter: &CudaStream, on: &CudaStream) -> Result<Declared<'_>> {
        self.require(waiter)?;
        self.require(on)?;
        let edge = self.begin((waiter.id(), waiter.device()), (on.id(), on.device()))?;
        if !transload_core::mutant!("streams/waiter-is-this-threads") {
            waiter.own.check_usable()?;
        }
        Ok(edge)
    }

    /// Adds the edge before its wait is enqueued: of two threads that would close a cycle together, one is refused.
    fn begin(&self, first: (TimelineId, DeviceId), second: (TimelineId, DeviceId)) -> Result<Declared<'_>> {
        let (waiter, on) = (first.0, second.0);
        loop {
            let mut registry = self.registry.lock();
            // One may have been unregistered since it was looked for.
            let missing = [first, second].into_iter().find(|(stream, _)| !registry.plan.has_stream(*stream));
            if let Some((stream, device)) = missing {
                return Err(unknown(stream, device));
            }
            registry.plan.expire_known(waiter);
            let Some(cycle) = registry.plan.cycle_through(waiter, on) else {
                let number = registry.plan.begin(waiter, on);
                return Ok(Declared { coordinator: self, waiter, on, number });
            };
            let waits = registry.plan.waits_along(&cycle);
            drop(registry);
            // Each round removes an edge, or refuses.
            let over = over(waits);
            if over.is_empty() {
                return Err(Error::caused_by(
                    ErrorKind::InvalidArgument,
                    "dependency refused",
                    DependencyCycle { streams: cycle },
                ));
            }
            self.registry.lock().plan.expire(&over);
        }
    }
}

/// Returns the complete waits. Calls the driver, so not under a lock.
fn over(mut waits: Vec<Wait>) -> Vec<Wait> {
    waits.retain(|(_, fence)| fence.is_complete());
    waits
}

/// An edge whose wait is being enqueued. Without a wait, it is removed when this is dropped.
pub(super) struct Declared<'a> {
    coordinator: &'a MultiStreamCoordinator,
    waiter: TimelineId,
    on: TimelineId,
    number: u64,
}

impl Declared<'_> {
    /// Enqueues a wait for all work on `on` so far, unless that is complete.
    pub(super) fn enqueue_after_all(self, waiter: &CudaStream, on: &CudaStream) -> Result<Dependency> {
        if is_idle(on)? {
            return Ok(Dependency::Met);
        }
        self.enqueue(waiter, on.own.as_ref(), &on.fence()?)
    }

    fn enqueue(self, waiter: &CudaStream, on: &StreamTimeline, fence: &Fence) -> Result<Dependency> {
        waiter.own.wait_for(on, fence.point())?;
        let since = waiter.own.last_point();
        self.coordinator.registry.lock().plan.enter((self.waiter, self.number), fence, since);
        Ok(Dependency::Enqueued)
    }
}

impl Drop for Declared<'_> {
    fn drop(&mut self) {
        self.coordinator.registry.lock().plan.end((self.waiter, self.number), self.on);
    }
}
