//! Stream capture, graphs, and the calls that a capture forbids.
//!
//! Source: the CUDA driver API on `cuStreamBeginCapture`, `cuThreadExchangeStreamCaptureMode` and the codes 900 to 910,
//! and the behaviour of driver 580.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    code::{self, CuResult},
    op::{Point, Work},
    state::{State, StreamKind},
};

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// Calls that may wait for a device or depend on all of its work: forbidden during a capture unless in relaxed mode.
const UNSAFE: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemAllocManaged",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    // Loads the kernel if no launch has ("Lazy Loading" in the CUDA Programming Guide).
    "cuFuncGetAttribute",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpy",
    "cuMemcpy2D_v2",
    "cuMemsetD8_v2",
    "cuMemsetD16_v2",
    "cuMemsetD32_v2",
];

/// Calls on a capturing stream that only query it or control the capture.
const ALLOWED: &[&str] = &[
    "cuStreamGetPriority",
    "cuStreamGetFlags",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamWaitEvent",
];

/// Calls that become graph nodes.
const CAPTURABLE: &[&str] = &[
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyAsync",
    "cuMemcpyPeerAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemsetD2D8Async",
    "cuLaunchKernel",
    "cuLaunchHostFunc",
];

/// Calls that drivers refuse on a capturing stream without invalidating the capture, as seen on CUDA 13.
const NOT_CAPTURABLE: &[&str] = &["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"];

/// Calls that become graph nodes on a real driver but are not simulated.
const NOT_SIMULATED: &[&str] = &[
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuGraphLaunch",
    "cuLaunchKernelEx",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
];

/// A node of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Indices of the nodes that this node depends on.
    pub(crate) after: BTreeSet<usize>,
    pub(crate) context: u64,
    pub(crate) device: u32,
}

/// A graph from a completed capture.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) nodes: Vec<Node>,
}

/// An executable graph. Each node runs on an internal stream of its own, so that only the graph's edges order nodes.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) nodes: Vec<Node>,
    pub(crate) streams: Vec<u64>,
    /// End of the last launch.
    pub(crate) end: Option<Point>,
    pub(crate) clock: Option<crate::clock::Clock>,
}

#[derive(Debug)]
struct Capture {
    origin: u64,
    thread: u64,
    mode: u32,
    valid: bool,
    nodes: Vec<Node>,
}

/// A position in a capture: the nodes that the next node depends on.
#[derive(Clone, Debug)]
struct CapturePoint {
    capture: u64,
    nodes: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Graphs {
    captures: BTreeMap<u64, Capture>,
    last_capture: u64,
    /// The streams that are part of a capture.
    streams: BTreeMap<u64, CapturePoint>,
    /// The events whose last record was captured.
    events: BTreeMap<u64, CapturePoint>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) execs: BTreeMap<u64, Exec>,
}

impl Graphs {
    /// Refuses a call that may wait for a device if a capture forbids it on this thread, whose capture mode is `mode`.
    /// Invalidates that capture.
    pub(crate) fn check_unsafe_call(&mut self, name: &str, thread: u64, mode: u32) -> CuResult {
        if self.captures.is_empty() || mode == RELAXED || !UNSAFE.contains(&name) {
            return Ok(());
        }
        let mut result = Ok(());
        for capture in self.captures.values_mut() {
            let own = capture.thread == thread && capture.mode != RELAXED;
            let others = mode == GLOBAL && capture.thread != thread && capture.mode == GLOBAL;
            if own || others {
                capture.valid = false;
                result = Err(code::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        result
    }

    fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.valid = false;
        }
    }

    fn is_valid(&self, capture: u64) -> bool {
        self.captures.get(&capture).is_some_and(|capture| capture.valid)
    }

    pub(crate) fn is_capturing(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Returns the status as `cuStreamIsCapturing` does: 0 none, 1 active, 2 invalidated.
    pub(crate) fn status(&self, stream: u64) -> u32 {
        match self.streams.get(&stream) {
            None => 0,
            Some(point) if self.is_valid(point.capture) => 1,
            Some(_) => 2,
        }
    }

    /// Invalidates the capture of a stream and returns the error code for the offending call.
    pub(crate) fn invalidate_capture_of(&mut self, stream: u64) -> u32 {
        if let Some(point) = self.streams.get(&stream) {
            let capture = point.capture;
            self.invalidate(capture);
        }
        code::STREAM_CAPTURE_UNSUPPORTED
    }

    /// Adds a node that depends on the stream's last captured work.
    pub(crate) fn append(&mut self, stream: u64, mut node: Node) {
        let Some(point) = self.streams.get_mut(&stream) else { return };
        let Some(capture) = self.captures.get_mut(&point.capture) else { return };
        node.after = std::mem::replace(&mut point.nodes, BTreeSet::from([capture.nodes.len()]));
        capture.nodes.push(node);
    }

    pub(crate) fn begin(&mut self, stream: u64, thread: u64, mode: u32) -> CuResult {
        if self.is_capturing(stream) {
            return Err(code::ILLEGAL_STATE);
        }
        self.last_capture += 1;
        let capture = Capture { origin: stream, thread, mode, valid: true, nodes: Vec::new() };
        self.captures.insert(self.last_capture, capture);
        self.streams.insert(stream, CapturePoint { capture: self.last_capture, nodes: BTreeSet::new() });
        Ok(())
    }

    /// Ends the capture that began on `stream`.
    pub(crate) fn end(&mut self, stream: u64, thread: u64) -> CuResult<Vec<Node>> {
        let point = self.streams.get(&stream).cloned().ok_or(code::ILLEGAL_STATE)?;
        let capture = self.captures.get(&point.capture).ok_or(code::ILLEGAL_STATE)?;
        if capture.origin != stream {
            self.invalidate(point.capture);
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != thread {
            // Driver 580 ends the capture nevertheless.
            self.streams.retain(|_, other| other.capture != point.capture);
            self.captures.remove(&point.capture);
            return Err(code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let before = ancestors(&capture.nodes, &point.nodes);
        let of_it = |(_, other): &(&u64, &CapturePoint)| other.capture == point.capture;
        let joined = self.streams.iter().filter(of_it).all(|(_, other)| other.nodes.is_subset(&before));
        self.streams.retain(|_, other| other.capture != point.capture);
        let capture = self.captures.remove(&point.capture).ok_or(code::ILLEGAL_STATE)?;
        match (capture.valid, joined) {
            (false, _) => Err(code::STREAM_CAPTURE_INVALIDATED),
            (true, false) => Err(code::STREAM_CAPTURE_UNJOINED),
            (true, true) => Ok(capture.nodes),
        }
    }

    /// Records an event. Returns whether the record is captured because the stream is capturing.
    pub(crate) fn record(&mut self, event: u64, stream: u64) -> CuResult<bool> {
        match self.streams.get(&stream) {
            None => {
                self.events.remove(&event);
                Ok(false)
            }
            Some(point) if self.is_valid(point.capture) => {
                self.events.insert(event, point.clone());
                Ok(true)
            }
            Some(_) => Err(code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Makes a stream wait for an event. Returns whether the wait is part of a capture. `recorded` tells whether the
    /// event was ever recorded.
    pub(crate) fn wait(&mut self, stream: u64, event: u64, recorded: bool) -> CuResult<bool> {
        let ours = self.streams.get(&stream).map(|point| point.capture);
        let theirs = self.events.get(&event).cloned();
        if ours.is_some_and(|capture| !self.is_valid(capture)) {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        match (ours, theirs) {
            (None, None) => Ok(false),
            (Some(_), None) if !recorded => Ok(true),
            (Some(capture), None) => {
                self.invalidate(capture);
                Err(code::STREAM_CAPTURE_ISOLATION)
            }
            (ours, Some(point)) if !self.captures.contains_key(&point.capture) => {
                ours.into_iter().for_each(|capture| self.invalidate(capture));
                Err(code::CAPTURED_EVENT)
            }
            (_, Some(point)) if !self.is_valid(point.capture) => Err(code::STREAM_CAPTURE_INVALIDATED),
            (Some(capture), Some(point)) if capture != point.capture => {
                self.invalidate(capture);
                self.invalidate(point.capture);
                Err(code::STREAM_CAPTURE_MERGE)
            }
            // A stream that waits for a captured event joins the capture.
            (_, Some(point)) => {
                let entry = self
                    .streams
                    .entry(stream)
                    .or_insert_with(|| CapturePoint { capture: point.capture, nodes: BTreeSet::new() });
                entry.nodes.extend(point.nodes);
                Ok(true)
            }
        }
    }

    /// Refuses a query of an event whose last record was captured: it would never complete. Invalidates the capture.
    pub(crate) fn check_event_query(&mut self, event: u64) -> CuResult {
        let Some(point) = self.events.get(&event) else { return Ok(()) };
        let capture = point.capture;
        self.invalidate(capture);
        Err(code::CAPTURED_EVENT)
    }

    pub(crate) fn forget_event(&mut self, event: u64) {
        self.events.remove(&event);
    }

    /// Removes the graphs of a destroyed context.
    pub(crate) fn forget_context(&mut self, context: u64) {
        self.graphs.retain(|_, graph| graph.context != context);
        self.execs.retain(|_, exec| exec.context != context);
    }

    pub(crate) fn count(&self, device: u32) -> (usize, usize) {
        let graphs = self.graphs.values().filter(|graph| graph.device == device).count();
        (graphs, self.execs.values().filter(|exec| exec.device == device).count())
    }
}

/// Returns the nodes in `of` and all their ancestors.
fn ancestors(nodes: &[Node], of: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = of.iter().copied().collect();
    while let Some(index) = open.pop() {
        if found.insert(index)
            && let Some(node) = nodes.get(index)
        {
            open.extend(&node.after);
        }
    }
    found
}

/// Checks a call against the capture of its stream and against captures that the legacy default stream would implicitly
/// wait for.
pub(crate) fn check_stream_call(state: &mut State, name: &str, stream: u64) -> CuResult {
    let graphs = &mut state.graphs;
    if graphs.captures.is_empty() || ALLOWED.contains(&name) {
        return Ok(());
    }
    if let Some(point) = graphs.streams.get(&stream) {
        let capture = point.capture;
        if !graphs.is_valid(capture) {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        if CAPTURABLE.contains(&name) {
            return Ok(());
        }
        if NOT_CAPTURABLE.contains(&name) {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        graphs.invalidate(capture);
        let known = NOT_SIMULATED.contains(&name);
        return Err(if known { code::NOT_SUPPORTED } else { code::STREAM_CAPTURE_UNSUPPORTED });
    }
    let joined = implicit_captures(state, stream);
    if joined.is_empty() {
        return Ok(());
    }
    joined.into_iter().for_each(|capture| state.graphs.invalidate(capture));
    Err(code::STREAM_CAPTURE_IMPLICIT)
}

/// Returns the captures that work on `stream` would implicitly wait for if it is a legacy default stream.
pub(crate) fn implicit_captures(state: &State, stream: u64) -> BTreeSet<u64> {
    let State { graphs, streams, .. } = state;
    let own = streams.get(&stream).filter(|own| own.kind == StreamKind::Legacy);
    let Some(own) = own else { return BTreeSet::new() };
    let waits =
        |other: &crate::state::Stream| other.context == own.context && other.kind == StreamKind::Blocking;
    let captured = graphs.streams.iter().filter(|(id, _)| streams.get(*id).is_some_and(waits));
    captured.map(|(_, point)| point.capture).collect()
}

/// Refuses to wait for a context while any of its streams is captured, in any mode and by any thread: captured work
/// never runs by itself.
pub(crate) fn check_context_wait(state: &mut State, context: u64) -> CuResult {
    let State { graphs, streams, .. } = state;
    let of_it = |id: &u64| streams.get(id).is_some_and(|stream| stream.context == context);
    let captured: BTreeSet<u64> =
        graphs.streams.iter().filter(|(id, _)| of_it(id)).map(|(_, point)| point.capture).collect();
    if captured.is_empty() {
        return Ok(());
    }
    captured.into_iter().for_each(|capture| graphs.invalidate(capture));
    Err(code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Returns the `CUgraphExecUpdateResult` for updating an executable graph; 0 if only addresses, sizes and values
/// differ.
pub(crate) fn difference(state: &State, old: &[Node], new: &[Node]) -> u32 {
    const TOPOLOGY_CHANGED: u32 = 2;
    const NODE_TYPE_CHANGED: u32 = 3;
    const PARAMETERS_CHANGED: u32 = 5;
    if old.len() != new.len() || old.iter().zip(new).any(|(old, new)| old.after != new.after) {
        return TOPOLOGY_CHANGED;
    }
    let discriminant = |node: &Node| std::mem::discriminant(&node.work);
    if old.iter().zip(new).any(|(old, new)| discriminant(old) != discriminant(new)) {
        return NODE_TYPE_CHANGED;
    }
    // Neither the device of an operand nor the context of a node may change.
    let devices = |node: &Node| -> Vec<Option<u32>> {
        let accesses = node.work.accesses(&state.memory);
        let device =
            |address| state.memory.find(address).filter(|found| found.is_device()).map(|found| found.device);
        accesses.into_iter().map(|(address, ..)| device(address)).collect()
    };
    let moved = |(old, new): (&Node, &Node)| old.context != new.context || devices(old) != devices(new);
    if old.iter().zip(new).any(moved) { PARAMETERS_CHANGED } else { 0 }
}
