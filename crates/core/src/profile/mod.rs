//! What a profiler needs of queues: instants on a device's clock, and a sink for the operations of a device.
//!
//! Nothing is recorded until a sink is [attached](SinkSlot::attach), by [`Backend::attach_sink`](crate::Backend::attach_sink) for
//! example. Without one an operation costs one relaxed load more.

pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod operation;
pub(crate) mod scope;
pub(crate) mod sink;
pub(crate) mod tally;
