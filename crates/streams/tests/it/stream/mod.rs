//! Streams: handles, events, completion, callbacks and capture.

mod adopt;
mod batches;
mod buffer_use;
mod callbacks;
pub(crate) mod capture;
mod completion;
mod contexts;
mod foreign;
mod handles;
mod metrics;
mod reactor;
mod wait_fences;
