//! CUDA streams as queues of work: real priorities, fences by events, completion without host functions.
//!
//! [`CudaStream`] implements core's `Queue`: what is enqueued through it is ordered by the buffers' fences, also against
//! other streams, without the host. Completion is found by asking events (1.3 µs on an H200), not by a host function
//! (16 µs). Dropping a stream neither waits for its work nor cuts it short.
//!
//! # Threads
//! Every item may be used from any thread.
//!
//! On macOS this crate is empty.
//!
//! # Example
//! ```
#![doc = include_str!("../examples/stream.rs")]
//! ```
#![cfg(any(target_os = "linux", windows))]

mod allocator;
mod callbacks;
mod calls;
mod captured;
mod coordinator;
mod copies;
mod copy_parts;
mod ends;
mod enqueue;
mod event;
mod fills;
mod graph;
mod kernels;
mod launch;
mod line;
mod loaded;
mod loss;
mod marks;
mod metrics;
mod points;
mod pool;
mod raw_copies;
mod reactor;
mod slot;
mod stream;
mod sync;
mod thread_number;
mod timeline;
mod wakers;
mod watch;

pub use allocator::{
    AllocatorBuilder, AllocatorStatistics, BlockRef, CallbackId, FreeError, Served, SizeClassStatistics,
    StreamBlock, StreamOrderedAllocator,
};
pub use coordinator::{
    Barrier, Dependency, DependencyCycle, ExecutedCallbacks, MultiStreamCoordinator, TaskError, TaskStage,
};
pub use event::CudaEvent;
pub use graph::{CudaGraph, CudaGraphUpdate};
pub use launch::{CudaKernel, CudaModule, KernelArg, Launch, LaunchConfig, LaunchExecutor};
pub use metrics::{MetricsSampling, StreamMetrics};
pub use pool::{
    AdvancedStreamPool, AllocationStrategy, Optimization, PoolBuilder, Split, StreamLease, WorkloadSummary,
};
pub use stream::CudaStream;
