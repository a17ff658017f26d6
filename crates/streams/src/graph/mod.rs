//! CUDA graphs: operations recorded once and launched as one, any number of times.

mod plan;
mod record;

use std::{any::Any, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    Access, DeviceId, Error, ErrorKind, Fence, Operation, RawBuffer, Recording, Result, StreamPriority,
    Timing, events::report, merge_uses, merged_uses, submit,
};
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, DriverError, Event, EventTiming, Graph, GraphExec, GraphUpdate,
    RawStream, Stream, StreamOptions,
};
use transload_memory::{CudaDevice, FixedList, lift, lift_in};

use crate::{CudaStream, stream::priority_number, submit::kernels::Kernels};

/// A recorded graph of work on one device. It keeps its buffers alive, also until a launch in flight is complete if it
/// is dropped before. Usable from any thread.
///
/// A launch is ordered like any operation: after earlier and before later conflicting uses of its buffers, on any
/// stream. The driver runs launches of one graph one after the other, even if they do not conflict.
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
    /// Whether all nodes are operations of this library. Others may be host functions or work of another device.
    stays_on_device: bool,
    /// Whether copies of rows are among them.
    keeps_bytes: bool,
    /// Locked during a launch: an executable graph may be used by one thread at a time.
    exec: Mutex<GraphExec>,
    kernels: Option<InUse>,
    /// Lists that the kernels read.
    lists: Vec<FixedList>,
}

/// The kernels that nodes launch, and the end of the last launch.
#[derive(Debug)]
struct InUse {
    kernels: Arc<Kernels>,
    last: Event,
}

/// How a graph was updated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaGraphUpdate {
    /// The executable graph was changed in place.
    InPlace,
    /// The driver refused that change, so a new executable graph was created, which takes longer.
    Rebuilt {
        /// The driver's reason.
        because: String,
    },
}

impl CudaGraph {
    /// Records operations. Conflicting ones run in the given order, others concurrently, four at a time. Enqueues nothing
    /// and touches no data. Captures of other threads stay valid.
    ///
    /// # Errors
    /// `Unsupported` for an operation that a graph cannot contain (pageable memory, prefetches, other devices), with its
    /// index and the reason; `InvalidArgument` without operations; those of [`Operation::validate`]; `MissingFunction`
    /// before CUDA 11.4; the driver's.
    pub fn record(
        device: &CudaDevice,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Self> {
        let captured = record::capture(device, priority, operations)?;
        let uses = merged_uses(operations);
        let graph = Self::of(device, priority, &captured.graph, captured.kernels, uses)?;
        let lists = if transload_core::mutant!("streams/recording-keeps-lists") {
            // A thread of its own frees their memory.
            drop(captured.lists);
            (0..1000).for_each(|_| std::thread::yield_now());
            Vec::new()
        } else {
            captured.lists
        };
        Ok(Self { stays_on_device: true, keeps_bytes: keep_bytes(operations), lists, ..graph })
    }

    /// Records what a closure enqueues on a new stream: for frameworks.
    ///
    /// The calling thread has a thread-local capture meanwhile: calls that the driver forbids then (allocating, waiting,
    /// querying) fail and invalidate the capture. Nothing runs before a launch.
    ///
    /// # Errors
    /// The closure's; the driver's, such as 901 after a forbidden call and 904 if another stream was not joined;
    /// `InvalidArgument` for a use that writes read-only memory.
    ///
    /// # Safety
    /// * `uses` contains every range that the work touches, with [`Access::Write`] if it writes. The graph keeps these
    ///   buffers alive and orders launches by them; everything else that the work needs (modules, foreign memory) outlives
    ///   the graph and its launches.
    /// * The closure neither ends the capture nor keeps the stream.
    pub unsafe fn capture_raw(
        device: &CudaDevice,
        priority: StreamPriority,
        uses: &[(&RawBuffer, Access)],
        enqueue: impl FnOnce(RawStream) -> Result<()>,
    ) -> Result<Self> {
        if uses.iter().any(|(buffer, access)| *access == Access::Write && !buffer.is_writable()) {
            let text = "the work writes a buffer of read-only memory";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let context = device.context()?;
        let options = StreamOptions { priority: priority_number(context, priority)?, blocking: false };
        let lift = |error| lift_in(context, error);
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
        let context = device.context()?;
        let lift = |error| lift_in(context, error);
        let nodes = graph.node_count().map_err(lift)?;
        let kernels = kernels.map(|kernels| InUse::new(device, kernels)).transpose()?;
        let exec = Mutex::new(graph.instantiate().map_err(lift)?);
        let (device, lists) = (device.clone(), Vec::new());
        let (stays_on_device, keeps_bytes) = (false, false);
        Ok(Self { device, priority, uses, nodes, stays_on_device, keeps_bytes, exec, kernels, lists })
    }

    /// Enqueues the whole graph, after the stream's earlier work and conflicting uses of its buffers. Does not wait for
    /// it.
    ///
    /// # Errors
    /// `Unsupported` for a stream of another device; `Busy` if a host view is open on a range; the driver's. Unless the error
    /// [is partial](transload_core::Error::is_partial), nothing was enqueued then; else the graph has run, or a part of it, and that is over.
    pub fn launch(&self, stream: &CudaStream) -> Result<Fence> {
        submit(stream, &Operation::Replay { recorded: self }, Timing::Off)
    }

    /// Replaces the recorded operations, for example by the same ones on other buffers, which the driver can change in
    /// place. Launches in flight are not affected.
    ///
    /// # Errors
    /// As for [`record`](Self::record); the graph is unchanged then.
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
        self.keeps_bytes = keep_bytes(operations);
        self.uses = merged_uses(operations);
        self.kernels = kernels;
        self.lists = captured.lists;
        Ok(update)
    }

    /// Returns the number of nodes: one for each driver call of its operations.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// # Safety
    /// * The graph's [`uses`](Recording::uses) are claimed until the launch is complete.
    pub(crate) unsafe fn enqueue(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut exec = self.exec.lock();
        // SAFETY: the uses cover what the nodes touch, and the caller claimed them; the kernels are leaked if the last
        // launch is in flight when they are dropped.
        unsafe { exec.launch(stream) }?;
        if let Some(in_use) = &self.kernels
            && let Err(error) = in_use.last.record(stream)
        {
            let device = DeviceId::Cuda(stream.context().device().ordinal());
            report::call_failed("a graph's kernels stay loaded", device, &error);
            // The end of this launch cannot be known.
            in_use.kernels.leak();
        }
        Ok(())
    }
}

/// Returns whether the operations may leave bytes of what they claim for writing unchanged.
fn keep_bytes(operations: &[Operation<'_>]) -> bool {
    operations.iter().any(|operation| matches!(operation, Operation::CopyPitched { .. }))
}

impl InUse {
    fn new(device: &CudaDevice, kernels: Arc<Kernels>) -> Result<Self> {
        let context = device.context()?;
        let last = Event::new(context, EventTiming::Disabled).map_err(|error| lift_in(context, error))?;
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

// SAFETY: `record` takes the uses from the operations, and `capture_raw` from its caller, who promises them; they change
// only through an exclusive borrow.
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

    fn keeps_bytes(&self) -> bool {
        self.keeps_bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
