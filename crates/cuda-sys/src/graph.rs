//! CUDA graphs: stream capture, the captured graph, and its executable.

use std::{fmt, marker::PhantomData, ptr};

use cust::sys::{CUgraph, CUgraphExec};

use crate::{AsStream, Context, DriverError, RelaxedCapture, Result, check, ffi, record_drop_error};

/// Which threads' potentially unsafe calls (allocating, waiting, querying) a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// All threads', except those in another mode (see [`RelaxedCapture`]).
    Global,
    /// The capturing thread's.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl CaptureMode {
    fn code(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

/// A stream capture in progress: enqueued work becomes nodes of a graph and does not run. Other streams join it by
/// waiting for an event recorded in it, and must be joined back before it ends.
///
/// Dropping it ends the capture and discards the graph.
#[must_use = "a capture that is dropped gives no graph"]
#[derive(Debug)]
pub struct Capture<'a, S: AsStream> {
    stream: &'a S,
    open: bool,
    /// A capture must end on the thread that began it, unless relaxed.
    not_send: PhantomData<*const ()>,
}

impl<'a, S: AsStream> Capture<'a, S> {
    /// Begins a capture.
    ///
    /// # Errors
    /// The driver's code: for the legacy default stream, and if the stream is already being captured.
    ///
    /// # Safety
    /// * Until the capture ends, no one enqueues on the stream work that is expected to run, queries the stream or
    ///   waits for it: captured work does not run, though its submitter may take it to be complete and reuse its
    ///   memory.
    /// * The same holds for every stream that joins the capture by waiting for one of its events.
    pub unsafe fn begin(stream: &'a S, mode: CaptureMode) -> Result<Self> {
        let _bound = stream.context().enter()?;
        // SAFETY: the stream is valid while `self` borrows it.
        check("cuStreamBeginCapture_v2", unsafe {
            ffi::cuStreamBeginCapture_v2(stream.as_raw(), mode.code())
        })?;
        Ok(Self { stream, open: true, not_send: PhantomData })
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The driver's code: 901 if an operation was not permitted during the capture, 904 if a stream was not joined. The
    /// streams run work again in either case.
    pub fn end(mut self) -> Result<Graph> {
        self.close()
    }

    fn close(&mut self) -> Result<Graph> {
        let context = self.stream.context();
        let _bound = context.enter()?;
        let mut raw: CUgraph = ptr::null_mut();
        // SAFETY: the stream is valid while `self` borrows it, the out pointer for the call.
        let code = unsafe { ffi::cuStreamEndCapture(self.stream.as_raw(), &mut raw) };
        // An error also ends the capture, unless the driver could not check it.
        self.open = code != 0 && self.is_capturing();
        check("cuStreamEndCapture", code)?;
        Ok(Graph { context: context.clone(), raw })
    }

    fn is_capturing(&self) -> bool {
        let mut status = 0;
        // SAFETY: as in `close`.
        let code = unsafe { ffi::cuStreamIsCapturing(self.stream.as_raw(), &mut status) };
        code != 0 || status != 0
    }
}

impl<S: AsStream> Drop for Capture<'_, S> {
    fn drop(&mut self) {
        if self.open {
            // Its error was already reported.
            let _discarded = self.close();
        }
    }
}

/// A graph of work nodes and their dependencies. Instantiate a [`GraphExec`] to run it.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    raw: CUgraph,
}

// SAFETY: a graph is not tied to a thread; no method changes a shared one.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Returns the number of nodes.
    ///
    /// # Errors
    /// The driver's code.
    pub fn node_count(&self) -> Result<usize> {
        let _capture = RelaxedCapture::enter()?;
        let mut count = 0;
        // SAFETY: the graph is valid by this type's invariant; without an array only the number is returned.
        check("cuGraphGetNodes", unsafe { ffi::cuGraphGetNodes(self.raw, ptr::null_mut(), &mut count) })?;
        Ok(count)
    }

    /// Instantiates an executable, which does not need the graph any more.
    ///
    /// # Errors
    /// The driver's code; [`DriverError::MissingFunction`] before CUDA 11.4.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let mut raw: CUgraphExec = ptr::null_mut();
        // SAFETY: the graph is valid by this type's invariant, the out pointer for the call.
        self.context.call("cuGraphInstantiateWithFlags", || unsafe {
            ffi::cuGraphInstantiateWithFlags(&mut raw, self.raw, 0)
        })?;
        Ok(GraphExec { context: self.context.clone(), raw })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is owned and not used after this; executables made of it have their own nodes.
        record_drop_error(self.context.call("cuGraphDestroy", || unsafe { ffi::cuGraphDestroy(self.raw) }));
    }
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphUpdate {
    /// Later launches run the new graph.
    Done,
    /// The driver cannot apply the change; the executable is unchanged. The number is a `CUgraphExecUpdateResult`.
    Refused(u32),
}

impl fmt::Display for GraphUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "updated",
            Self::Refused(2) => "the graphs' nodes or edges differ",
            Self::Refused(3) => "a node's type differs",
            Self::Refused(4 | 7) => "a kernel node's function differs",
            Self::Refused(5) => "a node's operands are in another context",
            Self::Refused(6) => "a node cannot be updated",
            Self::Refused(8) => "a kernel node's attributes differ",
            Self::Refused(_) => "the driver refused the update",
        })
    }
}

/// An executable graph. Its launches run one after another, on any streams.
///
/// It may be dropped while a launch is in flight: the driver frees it on completion.
///
/// Source: `cuGraphLaunch` ("only one instance may be executing at a time") and `cuGraphExecDestroy` ("if the executable graph
/// is in-flight, it will not be terminated, but rather freed asynchronously on completion") in the CUDA driver API.
#[derive(Debug)]
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
}

// SAFETY: an executable is not tied to a thread. Concurrent use is forbidden: launching or updating takes it
// exclusively.
unsafe impl Send for GraphExec {}
// SAFETY: as above; a shared one has no methods.
unsafe impl Sync for GraphExec {}

impl GraphExec {
    /// Enqueues the graph on a stream, after the stream's work and the executable's earlier launches. Takes about as
    /// long as one kernel launch, independent of the number of nodes.
    ///
    /// # Errors
    /// The driver's code; nothing is enqueued then.
    ///
    /// # Safety
    /// * Everything that the nodes use (memory, modules) stays valid until the launch completes, without conflicting
    ///   use of the memory meanwhile.
    pub unsafe fn launch(&mut self, stream: &impl AsStream) -> Result<()> {
        let _bound = self.context.enter()?;
        // SAFETY: both handles are valid by their types' invariants; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { ffi::cuGraphLaunch(self.raw, stream.as_raw()) })
    }

    /// Updates addresses, sizes and values from a graph of the same topology; launches in flight are not affected.
    ///
    /// # Errors
    /// The driver's code, except for a graph that differs too much.
    pub fn update(&mut self, graph: &Graph) -> Result<GraphUpdate> {
        /// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`.
        const REFUSED: u32 = 910;
        let _bound = self.context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut info = ffi::GraphExecUpdateResultInfo {
            result: 0,
            error_node: ptr::null_mut(),
            error_from_node: ptr::null_mut(),
        };
        // SAFETY: both handles are valid by their types' invariants, the out pointer for the call.
        let code = unsafe { ffi::cuGraphExecUpdate_v2(self.raw, graph.raw, &mut info) };
        let mut outcome = check("cuGraphExecUpdate_v2", code);
        if matches!(outcome, Err(DriverError::MissingFunction { .. })) {
            // Before CUDA 12.
            let mut node = ptr::null_mut();
            // SAFETY: as above.
            let code = unsafe { ffi::cuGraphExecUpdate(self.raw, graph.raw, &mut node, &mut info.result) };
            outcome = check("cuGraphExecUpdate", code);
        }
        match outcome {
            Err(error) if error.code() == Some(REFUSED) => Ok(GraphUpdate::Refused(info.result)),
            outcome => outcome.map(|()| GraphUpdate::Done),
        }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: the executable is owned and not used after this.
        record_drop_error(
            self.context.call("cuGraphExecDestroy", || unsafe { ffi::cuGraphExecDestroy(self.raw) }),
        );
    }
}
