//! CUDA graphs: operations recorded once, and launched as a whole as often as wanted.

mod plan;
mod record;

use std::{any::Any, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    Access, DeviceId, Error, ErrorKind, Fence, Operation, RawBuffer, Recording, Result, StreamPriority,
    Timing, merge_uses, merged_uses, submit,
};
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, DriverError, Event, EventTiming, Graph, GraphExec, GraphUpdate,
    RawStream, Stream, StreamOptions,
};
use transload_memory::{CudaDevice, lift};

use crate::{CudaStream, stream::priority_number, submit::kernels::Kernels};

/// A recorded graph of work on one device. It keeps its buffers alive; dropped while a launch is in flight it leaves them and
/// the launch be until that is over. Usable from any thread.
///
/// A launch is ordered like any operation: after earlier uses of its buffers in conflict, before later ones, whatever streams
/// those are on. Launches of one graph run one after the other (the driver sees to it), also where they have nothing in
/// conflict.
///
/// ```
#[doc = include_str!("../../examples/graph.rs")]
/// ```
#[derive(Debug)]
pub struct CudaGraph {
    device: CudaDevice,
    priority: StreamPriority,
    uses: Vec<(RawBuffer, Access)>,
    nodes: usize,
    /// Whether its nodes are operations of ours. Others may be functions of the host's, or another device's work.
    stays_on_device: bool,
    /// Locked during a launch: the driver lets only one thread at a time use an executable.
    exec: Mutex<GraphExec>,
    kernels: Option<InUse>,
}

/// The kernels that nodes launch, and when the last launch is over.
#[derive(Debug)]
struct InUse {
    kernels: Arc<Kernels>,
    last: Event,
}

/// How an update came about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaGraphUpdate {
    /// The executable took the new buffers.
    InPlace,
    /// The driver does not change an executable that far, so a new one was made, which takes longer.
    Rebuilt {
        /// What the driver refused.
        because: String,
    },
}

impl CudaGraph {
    /// Records operations. Those in conflict will run in the order given, others side by side, four at a time. Nothing is
    /// enqueued and no data is touched; someone else's capture stays valid.
    ///
    /// # Errors
    /// `Unsupported` for an operation that no graph takes (pageable memory, prefetches, other devices), saying which and why;
    /// `InvalidArgument` for none at all; those of [`Operation::validate`]; `MissingFunction` before CUDA 11.4; the driver's.
    pub fn record(
        device: &CudaDevice,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Self> {
        let captured = record::capture(device, priority, operations)?;
        let uses = merged_uses(operations);
        let graph = Self::of(device, priority, &captured.graph, captured.kernels, uses)?;
        Ok(Self { stays_on_device: true, ..graph })
    }

    /// Records whatever a closure enqueues on a stream that is made for it, for frameworks.
    ///
    /// The calling thread is in a thread-local capture meanwhile: what the driver then forbids it (allocating, waiting, asking)
    /// answers an error, and the capture is invalid. Nothing that is enqueued runs before a launch.
    ///
    /// # Errors
    /// The closure's; the driver's, such as 901 after a forbidden call and 904 where another stream was not joined;
    /// `InvalidArgument` for a use that writes what may not be written.
    ///
    /// # Safety
    /// * `uses` has every range that the work touches, with [`Access::Write`] where it writes. The graph keeps those buffers
    ///   alive and orders launches by them; what else the work needs (modules, foreign memory) outlives the graph and its
    ///   launches.
    /// * The closure neither ends the capture nor keeps the stream.
    pub unsafe fn capture_raw(
        device: &CudaDevice,
        priority: StreamPriority,
        uses: &[(&RawBuffer, Access)],
        enqueue: impl FnOnce(RawStream) -> Result<()>,
    ) -> Result<Self> {
        if uses.iter().any(|(buffer, access)| *access == Access::Write && !buffer.is_writable()) {
            let text = "the work writes a buffer that wraps memory that may not be written";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let context = device.context()?;
        let options = StreamOptions { priority: priority_number(context, priority)?, blocking: false };
        let stream = Stream::new(context, options).map_err(lift)?;
        let _bound = context.enter().map_err(lift)?;
        // SAFETY: the stream is private: only the closure enqueues on it, to be captured.
        let capture = unsafe { Capture::begin(&stream, CaptureMode::ThreadLocal) }.map_err(lift)?;
        enqueue(stream.as_raw())?;
        let graph = capture.end().map_err(lift)?;
        Self::of(device, priority, &graph, None, merge_uses(uses))
    }

    fn of(
        device: &CudaDevice,
        priority: StreamPriority,
        graph: &Graph,
        kernels: Option<Arc<Kernels>>,
        uses: Vec<(RawBuffer, Access)>,
    ) -> Result<Self> {
        let nodes = graph.node_count().map_err(lift)?;
        let kernels = kernels.map(|kernels| InUse::new(device, kernels)).transpose()?;
        let exec = Mutex::new(graph.instantiate().map_err(lift)?);
        Ok(Self { device: device.clone(), priority, uses, nodes, stays_on_device: false, exec, kernels })
    }

    /// Enqueues the whole graph, behind what is on the stream and what conflicts with its buffers. Does not wait for it.
    ///
    /// # Errors
    /// `Unsupported` for a stream of another device; `Busy` where a host view is open on a range; the driver's. On an error
    /// nothing was enqueued.
    pub fn launch(&self, stream: &CudaStream) -> Result<Fence> {
        submit(stream, &Operation::Replay { recorded: self }, Timing::Off)
    }

    /// Records other operations in the place of those it has: the same ones over other buffers, say, which the driver can
    /// change in place. Launches in flight run on as they were.
    ///
    /// # Errors
    /// As for [`record`](Self::record); the graph is as it was then.
    pub fn update(&mut self, operations: &[Operation<'_>]) -> Result<CudaGraphUpdate> {
        let captured = record::capture(&self.device, self.priority, operations)?;
        let nodes = captured.graph.node_count().map_err(lift)?;
        let kernels = captured.kernels.map(|kernels| InUse::new(&self.device, kernels)).transpose()?;
        let exec = self.exec.get_mut();
        let update = match exec.update(&captured.graph).map_err(lift)? {
            GraphUpdate::Done => CudaGraphUpdate::InPlace,
            refused @ GraphUpdate::Refused(_) => {
                *exec = captured.graph.instantiate().map_err(lift)?;
                CudaGraphUpdate::Rebuilt { because: refused.to_string() }
            }
        };
        self.nodes = nodes;
        self.stays_on_device = true;
        self.uses = merged_uses(operations);
        self.kernels = kernels;
        Ok(update)
    }

    /// How many nodes it has: one for each call that its operations make to the driver.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// # Safety
    /// * The graph's [`uses`](Recording::uses) are claimed until the launch is over.
    pub(crate) unsafe fn enqueue(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut exec = self.exec.lock();
        // SAFETY: the uses cover what the nodes touch, and the caller claimed them; the kernels are left running where the
        // last launch is not over when they go.
        unsafe { exec.launch(stream) }?;
        if let Some(in_use) = &self.kernels
            && in_use.last.record(stream).is_err()
        {
            // Nobody will know when it is over.
            in_use.kernels.leak();
        }
        Ok(())
    }
}

impl InUse {
    fn new(device: &CudaDevice, kernels: Arc<Kernels>) -> Result<Self> {
        let last = Event::new(device.context()?, EventTiming::Disabled).map_err(lift)?;
        Ok(Self { kernels, last })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if !matches!(self.last.is_done(), Ok(true)) {
            self.kernels.leak();
        }
    }
}

// SAFETY: `record` takes the uses from the operations themselves, and `capture_raw` from its caller, who promises them;
// they change only through an exclusive borrow.
unsafe impl Recording for CudaGraph {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn uses(&self) -> &[(RawBuffer, Access)] {
        &self.uses
    }

    fn stays_on_device(&self) -> bool {
        self.stays_on_device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
