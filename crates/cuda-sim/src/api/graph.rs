//! Stream capture and graph execution.

use super::{
    CAPTURE_MODE, Handle, Pointer, count_call, current_scope, lock_driver, on_stream, thread_number,
};
use crate::{
    clock::Clock,
    code::{self, CuResult},
    graph::{self, Exec, Graph, Node},
    op::{Point, Work},
    scheduler,
    state::{Guard, State, StreamKind},
};

/// Starts a call on a graph; needs no current context.
fn on_graph(name: &str, graph: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let graph = graph.addr() as u64;
    let device = state.graphs.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.device;
    count_call(&mut state, name, device)?;
    Ok((state, graph))
}

/// Starts a call on an executable graph.
fn on_exec(name: &str, exec: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let exec = exec.addr() as u64;
    let device = state.graphs.execs.get(&exec).ok_or(code::INVALID_VALUE)?.device;
    count_call(&mut state, name, device)?;
    Ok((state, exec))
}

/// Enqueues the nodes after their dependencies. All run after the stream's earlier work and the graph's last launch,
/// and before the stream's later work.
fn launch(
    state: &mut Guard,
    stream: u64,
    nodes: &[Node],
    streams: &[u64],
    before: Option<Point>,
    known: Option<Clock>,
) -> (Point, Option<Clock>) {
    let name = "cuGraphLaunch";
    let start = scheduler::enqueue_after(
        state,
        stream,
        name,
        Work::Wait,
        before.into_iter().collect(),
        known.as_ref(),
    );
    let started = scheduler::stream_clock(state, stream);
    let mut ends: Vec<(Point, Option<Clock>)> = Vec::with_capacity(nodes.len());
    for (node, lane) in nodes.iter().zip(streams) {
        let mut after = vec![start];
        let mut clock = started.clone().unwrap_or_default();
        for (point, known) in node.after.iter().filter_map(|index| ends.get(*index)) {
            after.push(*point);
            clock.join(known.as_ref().unwrap_or(&Clock::new()));
        }
        let point = scheduler::append(state, *lane, node.name, node.work.clone(), after, Some(&clock));
        ends.push((point, scheduler::stream_clock(state, *lane)));
    }
    let mut clock = Clock::new();
    for (_, known) in &ends {
        clock.join(known.as_ref().unwrap_or(&Clock::new()));
    }
    let after = ends.iter().map(|(point, _)| *point).collect();
    let end = scheduler::append(state, stream, name, Work::Wait, after, Some(&clock));
    (end, scheduler::stream_clock(state, stream))
}

/// Replaces the nodes of an executable graph by those of `graph`, if they are compatible, and passes the update result
/// to `tell`.
fn update(state: &mut State, exec: u64, graph: Handle, tell: impl FnOnce(u32) -> CuResult) -> CuResult {
    let graph = state.graphs.graphs.get(&(graph.addr() as u64)).ok_or(code::INVALID_VALUE)?;
    let nodes = graph.nodes.clone();
    let old = &state.graphs.execs.get(&exec).ok_or(code::INVALID_VALUE)?.nodes;
    let difference = graph::difference(state, old, &nodes);
    tell(difference)?;
    if difference != 0 {
        return Err(code::GRAPH_EXEC_UPDATE_FAILURE);
    }
    state.graphs.execs.get_mut(&exec).ok_or(code::INVALID_VALUE)?.nodes = nodes;
    Ok(())
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UpdateResult {
    result: u32,
    node: usize,
    from_node: usize,
}

driver! {
    fn cuThreadExchangeStreamCaptureMode(mode: Pointer<u32>) {
        let _state = lock_driver()?;
        let wanted = mode.get()?;
        // Modes: global, thread-local, relaxed.
        if wanted > graph::RELAXED {
            return Err(code::INVALID_VALUE);
        }
        mode.set(CAPTURE_MODE.replace(wanted))
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        if mode > graph::RELAXED {
            return Err(code::INVALID_VALUE);
        }
        if state.streams.get(&stream).is_some_and(|own| own.kind == StreamKind::Legacy) {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        state.graphs.begin(stream, thread_number(), mode)
    }

    fn cuStreamEndCapture(stream: Handle, out: Pointer<usize>) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        if !out.is_null() {
            out.set(0)?;
        }
        let own = state.stream(stream)?;
        let (context, device) = (own.context, own.device);
        let nodes = state.graphs.end(stream, thread_number())?;
        if out.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let handle = state.new_handle();
        state.graphs.graphs.insert(handle, Graph { context, device, nodes });
        out.set(handle as usize)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Pointer<u32>) {
        let (state, stream) = on_stream(NAME, stream)?;
        // The query itself invalidates no capture.
        if !graph::implicit_captures(&state, stream).is_empty() {
            return Err(code::STREAM_CAPTURE_IMPLICIT);
        }
        status.set(state.graphs.status(stream))
    }

    fn cuGraphDestroy(graph: Handle) {
        let (mut state, graph) = on_graph(NAME, graph)?;
        state.graphs.graphs.remove(&graph);
        Ok(())
    }

    /// Returns only the number of nodes; node handles are not simulated.
    fn cuGraphGetNodes(graph: Handle, nodes: Pointer<usize>, count: Pointer<usize>) {
        let (state, graph) = on_graph(NAME, graph)?;
        if !nodes.is_null() {
            return Err(code::NOT_SUPPORTED);
        }
        count.set(state.graphs.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.nodes.len())
    }

    fn cuGraphInstantiateWithFlags(out: Pointer<usize>, graph: Handle, flags: u64) {
        let (mut state, graph) = on_graph(NAME, graph)?;
        current_scope(&state)?;
        // Flag 1 frees memory allocated by graphs, which is not simulated.
        if out.is_null() || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let found = state.graphs.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
        let (context, device, nodes) = (found.context, found.device, found.nodes.clone());
        let streams = nodes
            .iter()
            .map(|node| state.add_stream(node.context, node.device, StreamKind::NonBlocking, 0, false))
            .collect();
        let exec = Exec { context, device, nodes, streams, end: None, clock: None };
        let handle = state.new_handle();
        state.graphs.execs.insert(handle, exec);
        out.set(handle as usize)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        let (mut state, exec) = on_exec(NAME, exec)?;
        let gone = state.graphs.execs.remove(&exec).ok_or(code::INVALID_VALUE)?;
        gone.streams.into_iter().for_each(|stream| state.destroy_stream(stream));
        Ok(())
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        let exec = exec.addr() as u64;
        let found = state.graphs.execs.get(&exec).ok_or(code::INVALID_VALUE)?;
        let (nodes, streams) = (found.nodes.clone(), found.streams.clone());
        let (before, known) = (found.end, found.clock.clone());
        let (end, clock) = launch(&mut state, stream, &nodes, &streams, before, known);
        if let Some(found) = state.graphs.execs.get_mut(&exec) {
            found.end = Some(end);
            found.clock = clock;
        }
        Ok(())
    }

    fn cuGraphExecUpdate(exec: Handle, graph: Handle, node: Pointer<usize>, result: Pointer<u32>) {
        let (mut state, exec) = on_exec(NAME, exec)?;
        node.set(0)?;
        update(&mut state, exec, graph, |difference| result.set(difference))
    }

    fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Pointer<UpdateResult>) {
        let (mut state, exec) = on_exec(NAME, exec)?;
        let tell = |result| info.set(UpdateResult { result, node: 0, from_node: 0 });
        update(&mut state, exec, graph, tell)
    }
}
