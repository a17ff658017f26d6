//! Order among streams, also of several devices: dependencies, barriers, parallel tasks and callbacks.

mod barrier;
mod callbacks;
mod dependency;
mod dependency_plan;
mod parallel;
mod plan;

use std::fmt;

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Result, TimelineId};

use self::{callbacks::Callbacks, plan::Plan};
use crate::CudaStream;

pub use self::{
    barrier::Barrier,
    callbacks::ExecutedCallbacks,
    dependency::{Dependency, DependencyCycle},
    dependency_plan::DependencyPlan,
    parallel::{TaskError, TaskStage},
};

/// Orders streams of one or several devices against each other without blocking the host.
///
/// For work that the order of buffers does not cover: raw copies, kernels of a framework, foreign streams.
/// [Register](Self::register) each stream first. Clones are the same stream; a raw handle wrapped twice is two streams.
/// The coordinator keeps a stream alive until it is [unregistered](Self::unregister), so a barrier also covers streams
/// that their owner dropped.
///
/// # Cycles
/// A dependency is a wait for a past point of another stream. Such waits never deadlock: CUDA runs "B after A's work so
/// far, then A after B's work so far". The coordinator keeps the order of streams acyclic: "A after B" while "B after A"
/// is not reached yet is nearly always a mistake, or serialises two streams that should be one.
/// [`add_dependency`](Self::add_dependency) refuses it, names the cycle, and enqueues nothing. A [`DependencyPlan`] may
/// have cycles, and can be inspected before it is enqueued.
///
/// An edge expires when the point that it waits for is reached. So whether a cycle is refused may depend on the devices'
/// progress; dependencies without cycles are never refused. To let two streams take turns, use
/// [`create_barrier`](Self::create_barrier), which adds no edges, or [`CudaStream::wait_event`].
///
/// # Threads
/// Every method may be called from any thread. "So far" covers calls that returned before, and "later" those that begin
/// after; what another thread enqueues meanwhile falls on either side. No lock is held across a driver call or a
/// closure.
///
/// # Example
/// ```
#[doc = include_str!("../../examples/coordinator.rs")]
/// ```
#[derive(Default)]
pub struct MultiStreamCoordinator {
    registry: Mutex<Registry>,
    callbacks: Callbacks,
}

/// The registered streams in order, and the edges among them.
#[derive(Default)]
struct Registry {
    streams: Vec<CudaStream>,
    plan: Plan,
}

impl MultiStreamCoordinator {
    /// Creates a coordinator without streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a stream and keeps it alive. Returns whether it was new. Do not capture a registered stream into a
    /// graph: the coordinator queries whether it is idle, which invalidates the capture.
    pub fn register(&self, stream: &CudaStream) -> bool {
        let mut registry = self.registry.lock();
        let is_new = registry.plan.add_stream(stream.id());
        if is_new {
            registry.streams.push(stream.clone());
        }
        is_new
    }

    /// Removes a stream and its edges. Returns whether it was registered. Waits already enqueued stay.
    pub fn unregister(&self, stream: &CudaStream) -> bool {
        let mut registry = self.registry.lock();
        registry.plan.remove_stream(stream.id());
        let index = registry.streams.iter().position(|known| known.id() == stream.id());
        // The caller has a handle too, so nothing is destroyed under the lock.
        index.map(|index| registry.streams.remove(index)).is_some()
    }

    /// Returns the registered streams, in the order of registration.
    #[must_use]
    pub fn streams(&self) -> Vec<CudaStream> {
        self.registry.lock().streams.clone()
    }

    fn is_registered(&self, stream: TimelineId) -> bool {
        self.registry.lock().plan.has_stream(stream)
    }
}

/// Returns whether nothing is in flight on a stream. Calls the driver only if nothing is known to be outstanding.
fn is_idle(stream: &CudaStream) -> Result<bool> {
    if stream.own.outstanding() > 0 {
        return Ok(false);
    }
    stream.is_ready()
}

fn unknown(stream: TimelineId, device: DeviceId) -> Error {
    let text = format!("{stream:?} of {device} is not registered; register it with the coordinator first");
    Error::new(ErrorKind::InvalidArgument, text)
}

fn no_streams() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the coordinator has no streams; register at least one")
}

impl fmt::Debug for MultiStreamCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registry = self.registry.lock();
        f.debug_struct("MultiStreamCoordinator")
            .field("streams", &registry.streams)
            .field("edges", &registry.plan.edges().len())
            .finish_non_exhaustive()
    }
}
