//! Which method a transfer takes: the candidates of each path, their costs, and the choice among them.

pub(crate) mod candidate;
pub(crate) mod copied;
pub(crate) mod costs;
pub(crate) mod engine_queue;
pub(crate) mod list_costs;
pub(crate) mod observations;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod registry;
pub(crate) mod request;
