//! From an operation to the driver calls that enqueue it.

pub(crate) mod addresses;
pub(crate) mod batches;
mod casts;
pub(crate) mod driver_calls;
mod enqueue;
pub(crate) mod fills;
mod halves;
pub(crate) mod kernels;
mod lists;
pub(crate) mod loaded_module;
mod measured;
mod split_copy;
