//! The order of streams: a graph with one edge per pair of streams, each with the latest point waited for.

use petgraph::{
    Directed,
    algo::{astar, is_cyclic_directed},
    graphmap::GraphMap,
};
use transload_core::{DeviceId, Fence, TimelineId};

/// The waits of one stream for another.
#[derive(Clone, Default)]
struct Edge {
    /// The latest point waited for; `None` while the first wait is being enqueued.
    fence: Option<Fence>,
    /// Later points of the waiter come after the fence.
    since: u64,
    /// Number of calls that are enqueueing a wait.
    pending: usize,
    /// Differs from that of every other edge, also of an earlier one between the same streams.
    number: u64,
}

/// A waiter and the fence that it waits for.
pub(super) type Wait = (TimelineId, Fence);

/// Nodes are streams; an edge goes from the waiter to the stream that it waits for.
///
/// Makes no driver calls. All fences are of streams in the registry, which keeps them alive, so dropping a fence here
/// destroys no stream.
#[derive(Default)]
pub(super) struct Plan {
    graph: GraphMap<TimelineId, Edge, Directed>,
    edges: u64,
}

/// Returns the shortest cycle that an edge from `waiter` to `on` closes or would close.
pub(super) fn cycle_through<E>(
    graph: &GraphMap<TimelineId, E, Directed>,
    waiter: TimelineId,
    on: TimelineId,
) -> Option<Vec<TimelineId>> {
    if waiter == on {
        return Some(vec![waiter]);
    }
    // The usual case: nothing to search.
    graph.neighbors(on).next()?;
    let (_, path) = astar(graph, on, |stream| stream == waiter, |_| 1_usize, |_| 0)?;
    let back = path.len().saturating_sub(1);
    Some(std::iter::once(waiter).chain(path.into_iter().take(back)).collect())
}

impl Plan {
    pub(super) fn add_stream(&mut self, stream: TimelineId) -> bool {
        let is_new = !self.graph.contains_node(stream);
        self.graph.add_node(stream);
        is_new
    }

    pub(super) fn remove_stream(&mut self, stream: TimelineId) {
        self.graph.remove_node(stream);
    }

    pub(super) fn has_stream(&self, stream: TimelineId) -> bool {
        self.graph.contains_node(stream)
    }

    /// Returns the shortest cycle that an edge from `waiter` to `on` would close.
    pub(super) fn cycle_through(&self, waiter: TimelineId, on: TimelineId) -> Option<Vec<TimelineId>> {
        cycle_through(&self.graph, waiter, on)
    }

    /// Returns the enqueued waits along a cycle, without the edge that would close it.
    pub(super) fn waits_along(&self, cycle: &[TimelineId]) -> Vec<Wait> {
        let nexts = cycle.iter().skip(1).zip(cycle.iter().skip(2).chain(cycle.first()));
        nexts.filter_map(|(waiter, on)| Some((*waiter, self.settled(*waiter, *on)?.clone()))).collect()
    }

    /// Returns the fence of an edge, unless a wait is being enqueued.
    fn settled(&self, waiter: TimelineId, on: TimelineId) -> Option<&Fence> {
        let edge = self.graph.edge_weight(waiter, on)?;
        if edge.pending == 0 { edge.fence.as_ref() } else { None }
    }

    /// Returns all enqueued waits.
    pub(super) fn waits(&self) -> Vec<Wait> {
        self.graph
            .all_edges()
            .filter_map(|(waiter, on, _)| Some((waiter, self.settled(waiter, on)?.clone())))
            .collect()
    }

    /// Returns the edges: each waiter with the stream that it waits for.
    pub(super) fn edges(&self) -> Vec<(TimelineId, TimelineId)> {
        self.graph.all_edges().map(|(waiter, on, _)| (waiter, on)).collect()
    }

    pub(super) fn has_cycles(&self) -> bool {
        is_cyclic_directed(&self.graph)
    }

    /// Adds an edge before its wait is enqueued, so that no other thread closes a cycle with it meanwhile. Returns its number. Both streams are in
    /// the plan.
    pub(super) fn begin(&mut self, waiter: TimelineId, on: TimelineId) -> u64 {
        if let Some(edge) = self.graph.edge_weight_mut(waiter, on) {
            edge.pending += 1;
            return edge.number;
        }
        self.edges += 1;
        self.graph.add_edge(waiter, on, Edge { pending: 1, number: self.edges, ..Edge::default() });
        self.edges
    }

    /// Returns the edge that [`begin`](Self::begin) gave this number, unless a stream of it was unregistered meanwhile.
    fn begun(&mut self, waiter: TimelineId, on: TimelineId, number: u64) -> Option<&mut Edge> {
        self.graph.edge_weight_mut(waiter, on).filter(|edge| edge.number == number)
    }

    /// Records an enqueued wait: points of the waiter above `since` come after `fence`. Call it before
    /// [`end`](Self::end).
    pub(super) fn enter(&mut self, (waiter, number): (TimelineId, u64), fence: &Fence, since: u64) {
        let Some(edge) = self.begun(waiter, fence.timeline().id(), number) else { return };
        if edge.fence.as_ref().is_none_or(|known| known.point() < fence.point()) {
            edge.fence = Some(fence.clone());
            edge.since = since;
        }
    }

    /// Ends [`begin`](Self::begin). Removes an edge without a wait.
    pub(super) fn end(&mut self, (waiter, number): (TimelineId, u64), on: TimelineId) {
        let Some(edge) = self.begun(waiter, on, number) else { return };
        edge.pending = edge.pending.saturating_sub(1);
        if edge.pending == 0 && edge.fence.is_none() {
            self.graph.remove_edge(waiter, on);
        }
    }

    /// Removes the edges of complete waits, unless they wait for a later point by now.
    pub(super) fn expire(&mut self, over: &[Wait]) {
        for (waiter, fence) in over {
            let on = fence.timeline().id();
            if self.settled(*waiter, on).is_some_and(|known| known.point() <= fence.point()) {
                self.graph.remove_edge(*waiter, on);
            }
        }
    }

    /// Removes the waiter's edges that are known to be complete.
    pub(super) fn expire_known(&mut self, waiter: TimelineId) {
        let known: Vec<TimelineId> = self
            .graph
            .neighbors(waiter)
            .filter(|on| self.settled(waiter, *on).is_some_and(Fence::is_known_complete))
            .collect();
        for on in known {
            self.graph.remove_edge(waiter, on);
        }
    }

    /// Returns whether the waiter's later work comes after `fence` anyway: by its own wait for it or a later point, or
    /// since it waits for a point of a stream that waited for it before that point.
    ///
    /// Points of a lost device count as reached, although what they waited for on other devices may still run. So only
    /// streams of the two devices concerned count: if these are lost, nothing is left to order.
    pub(super) fn implies(&self, waiter: TimelineId, device: DeviceId, fence: &Fence) -> bool {
        let (target, ends) = (fence.timeline().id(), [device, fence.timeline().device()]);
        let mut open = vec![(waiter, u64::MAX)];
        let mut seen: Vec<(TimelineId, u64)> = Vec::new();
        while let Some((stream, upto)) = open.pop() {
            if seen.iter().any(|(known, point)| *known == stream && *point >= upto) {
                continue;
            }
            seen.push((stream, upto));
            for (_, on, edge) in self.graph.edges(stream) {
                let Some(waited) = edge.fence.as_ref().filter(|_| edge.since < upto) else { continue };
                if on == target {
                    if waited.point() >= fence.point() {
                        return true;
                    }
                } else if ends.contains(&waited.timeline().device()) {
                    open.push((on, waited.point()));
                }
            }
        }
        false
    }
}
