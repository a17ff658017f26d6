//! "This stream after that one": a wait on the device, entered into the plan unless it would close a cycle.

use std::fmt;

use transload_core::{Error, ErrorKind, Fence, Result, Timeline, TimelineId};

use super::{MultiStreamCoordinator, is_idle, plan::Wait, unknown};
use crate::{CudaStream, completion::timeline::StreamTimeline};

/// What a declared dependency took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The wait is enqueued, and the plan has an edge for it.
    Enqueued,
    /// An earlier wait implies it; nothing was enqueued.
    Implied,
    /// What was to be waited for is over; nothing was enqueued.
    Met,
}

/// The cycle that a dependency would close, for which it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DependencyCycle {
    /// Each stream waits for the next one, the last for the first. The first is the one that was to wait. A stream that was
    /// to wait for itself is alone in it.
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
        f.write_str("; valid once one of these waits is over, or as a barrier")
    }
}

impl std::error::Error for DependencyCycle {}

impl MultiStreamCoordinator {
    /// Makes what is enqueued on `waiter` from now on run after what is enqueued on `on` so far, by whomever. The devices
    /// see to it, which may be two; the host does not wait.
    ///
    /// # Errors
    /// `InvalidArgument`, with a [`DependencyCycle`] as its [cause](Error::cause), where edges that have not expired lead from `on` to `waiter`, or both are one stream;
    /// `InvalidArgument` for a stream that is not registered; the driver's. On any error nothing waits that did not before.
    pub fn add_dependency(&self, waiter: &CudaStream, on: &CudaStream) -> Result<Dependency> {
        self.require(waiter)?;
        self.require(on)?;
        let edge = self.begin(waiter.id(), on.id())?;
        if !transload_core::mutant!("streams/waiter-is-this-threads") {
            waiter.own.check_usable()?;
        }
        if is_idle(on)? {
            return Ok(Dependency::Met);
        }
        edge.enqueue(waiter, on.own.as_ref(), &on.fence()?)
    }

    /// Makes what is enqueued on `waiter` from now on run after `fence`, a point of a registered stream: of an operation
    /// that was submitted, or of [`CudaStream::fence`]. Otherwise as [`add_dependency`](Self::add_dependency). A wait that is
    /// redundant is not enqueued: what is known to be over, and what waits through this coordinator imply.
    ///
    /// # Errors
    /// As for [`add_dependency`](Self::add_dependency). A fence of another backend is of a stream that is not registered.
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
                // The error of work that failed is its own stream's, and is told there.
                return Ok(Dependency::Met);
            }
            if self.registry.lock().plan.implies(waiter.id(), waiter.device(), fence) {
                return Ok(Dependency::Implied);
            }
        }
        self.begin(waiter.id(), timeline.id())?.enqueue(waiter, on, fence)
    }

    /// The edges that have not expired, each as the waiter and the stream that it waits for. Asks the driver.
    #[must_use]
    pub fn dependencies(&self) -> Vec<(TimelineId, TimelineId)> {
        let waits = self.registry.lock().plan.waits();
        let over = over(waits);
        let mut registry = self.registry.lock();
        registry.plan.expire(&over);
        registry.plan.edges()
    }

    /// Whether the plan has a cycle. It has none as long as [`add_dependency`](Self::add_dependency) keeps its promise: this
    /// looks at the whole graph to say so.
    #[must_use]
    pub fn has_cycles(&self) -> bool {
        self.registry.lock().plan.has_cycles()
    }

    fn require(&self, stream: &CudaStream) -> Result<()> {
        if self.is_registered(stream.id()) { Ok(()) } else { Err(unknown(stream.id(), stream.device())) }
    }

    /// Enters the edge before its wait is enqueued: of two threads that would close a cycle together one is refused.
    fn begin(&self, waiter: TimelineId, on: TimelineId) -> Result<Declared<'_>> {
        loop {
            let mut registry = self.registry.lock();
            registry.plan.expire_known(waiter);
            let Some(cycle) = registry.plan.cycle_through(waiter, on) else {
                registry.plan.begin(waiter, on);
                return Ok(Declared { coordinator: self, waiter, on });
            };
            let waits = registry.plan.waits_along(&cycle);
            drop(registry);
            // Each round takes out an edge, or refuses.
            let over = over(waits);
            if over.is_empty() {
                return Err(Error::caused_by(
                    ErrorKind::InvalidArgument,
                    "the coordinator refused",
                    DependencyCycle { streams: cycle },
                ));
            }
            self.registry.lock().plan.expire(&over);
        }
    }
}

/// Those of the waits whose point is reached. Asks the driver, so not under a lock.
fn over(mut waits: Vec<Wait>) -> Vec<Wait> {
    waits.retain(|(_, fence)| fence.is_complete());
    waits
}

/// An edge whose wait is being enqueued. Dropped, it goes again unless it has a wait.
struct Declared<'a> {
    coordinator: &'a MultiStreamCoordinator,
    waiter: TimelineId,
    on: TimelineId,
}

impl Declared<'_> {
    fn enqueue(self, waiter: &CudaStream, on: &StreamTimeline, fence: &Fence) -> Result<Dependency> {
        waiter.own.wait_for(on, fence.point())?;
        let since = waiter.own.last_point();
        self.coordinator.registry.lock().plan.enter(self.waiter, fence, since);
        Ok(Dependency::Enqueued)
    }
}

impl Drop for Declared<'_> {
    fn drop(&mut self) {
        self.coordinator.registry.lock().plan.end(self.waiter, self.on);
    }
}
