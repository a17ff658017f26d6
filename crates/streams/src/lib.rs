//! CUDA streams as core queues: priorities, fences by events, completion without host functions.
//!
//! [`CudaStream`] implements core's `Queue`: its work is ordered by the buffers' fences, also against other streams,
//! without the host. Completion is detected by querying events (1.3 µs on an H200), not by a host function (16 µs).
//! Dropping a stream neither waits for its work nor aborts it.
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
mod built_in;
mod completion;
mod coordinator;
mod graph;
mod launch;
mod pool;
mod stream;
mod submit;
mod sync;
mod thread_number;

pub use allocator::{
    AllocatorBuilder, AllocatorStatistics, BlockRef, CallbackId, FreeError, ReuseCounts, SizeClassStatistics,
    StreamBlock, StreamOrderedAllocator,
};
pub use completion::external::{ExternalSemaphore, ExternalTimeline, SemaphoreCalls};
pub use coordinator::{
    Barrier, Dependency, DependencyCycle, DependencyPlan, ExecutedCallbacks, MultiStreamCoordinator,
    TaskError, TaskStage,
};
pub use graph::{CudaGraph, CudaGraphUpdate};
pub use launch::{CudaKernel, CudaModule, KernelArg, Launch, LaunchConfig, LaunchExecutor};
pub use pool::{
    AdvancedStreamPool, AllocationStrategy, Optimization, PoolBuilder, StreamLease, WorkloadSplit,
    WorkloadSummary,
};
pub use stream::{CudaEvent, CudaStream, FenceEvent, MetricsSampling, StreamMetrics, StreamUse};

#[cfg(all(doctest, any(target_os = "linux", windows)))]
#[doc = include_str!("../README.md")]
struct Readme;
