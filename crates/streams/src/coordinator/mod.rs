//! Order among streams, also of several devices: dependencies, barriers, parallel tasks and callbacks.

mod barrier;
mod callbacks;
mod dependency;
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
    parallel::{TaskError, TaskStage},
};

/// Orders streams of one or several devices against each other without blocking the host.
///
/// For work that the buffers' own order does not cover: raw copies, kernels of a framework, foreign streams. A stream is
/// [registered](Self::register) first. Clones are the same stream; a raw handle that was taken in twice makes two streams.
/// A registered stream lives until it is [unregistered](Self::unregister) or the coordinator is dropped, so its owner may
/// drop it early without a barrier forgetting its work.
///
/// # What a cycle means
/// A dependency is a wait for a point in the past of another stream. Such waits never deadlock: CUDA runs "B after A's work
/// so far, then A after B's work so far" without complaint. What the coordinator keeps acyclic is the *plan*: which stream
/// comes after which. "A after B" while "B after A" has not been reached yet is nearly always a mistake, or serialises two
/// streams that should be one. [`add_dependency`](Self::add_dependency) refuses it, names the cycle, and enqueues nothing.
///
/// An edge of the plan expires once the point that it waits for is reached. Whether a cycle is refused may thus depend on
/// how far the devices are; a plan without cycles is never refused. Who wants two streams to take turns uses
/// [`create_barrier`](Self::create_barrier), which belongs to no plan, or [`CudaStream::wait_event`].
///
/// # Threads
/// Every method may be called from any thread. "So far" and "from now on" count calls that returned before, and that begin
/// after; what another thread enqueues meanwhile falls on either side. No lock is held across a driver call or a closure.
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
    /// A coordinator without streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the stream take part, and keeps it alive; answers whether it was new. While a stream takes part nobody may be
    /// capturing it into a graph: it is asked whether it is idle, which ends a capture.
    pub fn register(&self, stream: &CudaStream) -> bool {
        let mut registry = self.registry.lock();
        let is_new = registry.plan.add_stream(stream.id());
        if is_new {
            registry.streams.push(stream.clone());
        }
        is_new
    }

    /// Forgets the stream and its edges; answers whether it was registered. Waits that are enqueued already stay.
    pub fn unregister(&self, stream: &CudaStream) -> bool {
        let mut registry = self.registry.lock();
        registry.plan.remove_stream(stream.id());
        let index = registry.streams.iter().position(|known| known.id() == stream.id());
        // The caller has a handle too, so nothing is destroyed under the lock.
        index.map(|index| registry.streams.remove(index)).is_some()
    }

    /// The registered streams, in the order of registration.
    #[must_use]
    pub fn streams(&self) -> Vec<CudaStream> {
        self.registry.lock().streams.clone()
    }

    fn is_registered(&self, stream: TimelineId) -> bool {
        self.registry.lock().plan.has_stream(stream)
    }
}

/// Whether nothing is in flight on a stream. Asks the driver only where nothing is known to be outstanding.
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
    Error::new(ErrorKind::InvalidArgument, "there is no stream; register at least one")
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
