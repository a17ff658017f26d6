//! [`transload_core`]'s traits over host memory and the threads of an [`Executor`](transload_executor::Executor).
//!
//! [`CpuBackend`] allocates pageable memory, wraps foreign memory, and leases queues. A copy of at most 2 MiB on an
//! idle queue runs inline on the submitting thread, which costs less than waking a worker: submitting then takes as
//! long as the copy. Larger copies run on a worker, and from [`CpuBackendBuilder::parallel_from`] bytes on several
//! workers share one. No worker blocks on another operation: an operation becomes ready when its fences, of any
//! backend, are reached.
//!
//! Every item may be used from any thread.
//!
//! ```
//! use transload_backend_cpu::{CpuBackend, CpuBuffer};
//! use transload_core::{
//!     Backend, Buffer, DeviceId, Operation, StreamPriority, Timing, WorkloadType, submit,
//! };
//!
//! let backend = CpuBackend::new()?;
//! let src = CpuBuffer::from_slice(&backend, &[1.0_f32, 2.0, 3.0])?;
//! let dst = CpuBuffer::<f32>::new(&backend, 3)?;
//! let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory)?;
//!
//! let fence = submit(&*queue, &Operation::Copy { src: src.raw(), dst: dst.raw() }, Timing::Off)?;
//! fence.wait()?;
//! assert_eq!(*dst.read()?, [1.0, 2.0, 3.0]);
//!
//! drop((src, dst, queue, fence));
//! backend.drain()?;
//! assert!(backend.resource_counts().is_empty());
//! # Ok::<(), transload_core::Error>(())
//! ```

mod backend;
mod buffer;
mod builder;
mod copy;
mod costs;
mod device;
mod failures;
mod op_queue;
mod pages;
mod parallel_op;
mod queue;
mod queue_pool;
mod queued_op;
mod storage;

pub use backend::CpuBackend;
pub use buffer::CpuBuffer;
pub use builder::CpuBackendBuilder;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
