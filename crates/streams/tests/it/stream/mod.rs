//! Streams: handles, events, completion, callbacks and capture.

mod adopt;
mod batches;
mod buffer_use;
mod callbacks;
pub(crate) mod capture;
mod completion;
mod contexts;
mod event_clock;
mod external;
mod foreign;
mod handles;
mod metrics;
mod profiling;
mod reactor;
mod wait_fences;
