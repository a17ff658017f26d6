//! Dependencies that are inspected before any of them is enqueued.

use std::collections::HashMap;

use petgraph::{Directed, algo::toposort, graphmap::GraphMap};
use transload_core::{Result, TimelineId};

use super::{DependencyCycle, MultiStreamCoordinator, plan::cycle_through};
use crate::CudaStream;

/// Dependencies among streams that are not enqueued yet: inspect them, then pass them to
/// [`MultiStreamCoordinator::add_dependencies`]. Unlike the dependencies of a coordinator, they may have cycles.
///
/// Keeps its streams alive.
#[derive(Clone, Debug, Default)]
pub struct DependencyPlan {
    /// An edge goes from the waiter to the stream that it waits for.
    graph: GraphMap<TimelineId, (), Directed>,
    streams: HashMap<TimelineId, CudaStream>,
}

impl DependencyPlan {
    /// Creates an empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds "`waiter` after `on`", if the plan does not have it.
    pub fn add(&mut self, waiter: &CudaStream, on: &CudaStream) -> &mut Self {
        for stream in [waiter, on] {
            self.streams.entry(stream.id()).or_insert_with(|| stream.clone());
        }
        self.graph.add_edge(waiter.id(), on.id(), ());
        self
    }

    /// Removes "`waiter` after `on`". Returns whether the plan had it.
    pub fn remove(&mut self, waiter: &CudaStream, on: &CudaStream) -> bool {
        self.graph.remove_edge(waiter.id(), on.id()).is_some()
    }

    /// Returns the dependencies, each as the waiter and the stream that it waits for.
    #[must_use]
    pub fn dependencies(&self) -> Vec<(TimelineId, TimelineId)> {
        self.graph.all_edges().map(|(waiter, on, ())| (waiter, on)).collect()
    }

    /// Returns whether the plan has a cycle.
    #[must_use]
    pub fn has_cycles(&self) -> bool {
        self.cycle().is_some()
    }

    /// Returns a shortest cycle, if there is one.
    #[must_use]
    pub fn cycle(&self) -> Option<DependencyCycle> {
        let edges = self.graph.all_edges();
        let cycles = edges.filter_map(|(waiter, on, ())| cycle_through(&self.graph, waiter, on));
        cycles.min_by_key(Vec::len).map(|streams| DependencyCycle { streams })
    }

    /// Iterates over the dependencies such that a stream's own come before those of the streams that wait for it. Of a
    /// plan with a cycle, in any order.
    fn in_order(&self) -> impl Iterator<Item = (&CudaStream, &CudaStream)> {
        let waiters_first =
            toposort(&self.graph, None).unwrap_or_else(|_cyclic| self.graph.nodes().collect());
        let edges = waiters_first.into_iter().rev().flat_map(|waiter| self.graph.edges(waiter));
        edges.filter_map(|(waiter, on, ())| Some((self.streams.get(&waiter)?, self.streams.get(&on)?)))
    }
}

impl MultiStreamCoordinator {
    /// Adds all dependencies of a plan, or none if they would close a cycle, among themselves or with earlier ones.
    ///
    /// The dependencies of a stream are enqueued before those on it. So with "a after b" and "b after c", the later
    /// work of `a` also comes after the work of `c`.
    ///
    /// # Errors
    /// As for [`add_dependency`](Self::add_dependency), before anything is enqueued. The driver's; the waits enqueued
    /// before stay then.
    pub fn add_dependencies(&self, plan: &DependencyPlan) -> Result<()> {
        let declared = plan.in_order().map(|(waiter, on)| Ok((self.declare(waiter, on)?, waiter, on)));
        for (edge, waiter, on) in declared.collect::<Result<Vec<_>>>()? {
            edge.enqueue_after_all(waiter, on)?;
        }
        Ok(())
    }
}
