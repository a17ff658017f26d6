//! Moves tensors between any two memories of a machine by the method predicted to be fastest, and says how it did it.
//!
//! [`Runtime::discover`] finds the devices of the machine and gives a [`CrossBackendTransferManager`] over all of them.
//! It works on a machine without a GPU too, and tells why a device is absent.
//!
//! ```
//! use transload::{DeviceId, MemoryKind, Runtime};
//!
//! let runtime = Runtime::discover()?;
//! for device in runtime.devices() {
//!     println!("{}: {}", device.id, device.name);
//! }
//! for (family, reason) in runtime.absent() {
//!     println!("no {family}: {reason}");
//! }
//!
//! // To the first GPU where there is one, else within the host's memory.
//! let gpu = runtime.devices().into_iter().find(|device| !device.id.is_cpu());
//! let (device, kind) = gpu.map_or((DeviceId::Cpu, MemoryKind::Pageable), |gpu| (gpu.id, MemoryKind::Device));
//! let src = runtime.allocate(DeviceId::Cpu, MemoryKind::Pageable, 1 << 20)?;
//! let dst = runtime.allocate(device, kind, 1 << 20)?;
//! src.write()?.fill(7);
//! let report = runtime.manager().copy(&src, &dst).wait()?; // or `.await` it
//! println!("{report}");
//!
//! drop((src, dst));
//! runtime.drain()?;
//! # Ok::<(), transload::Error>(())
//! ```
//!
//! Tasks of an async runtime call `transfer_async` instead: where `transfer` would block, it awaits. The example `tokio` shows
//! a thousand transfers at once.
//!
//! # What is where
//! At the root is what programs use every day. [`cpu`] has the host's backend, `cuda` (feature `cuda`, on Linux and Windows)
//! that of CUDA with streams, launches, graphs and memory resources, `load` (feature `safetensors`) puts model files onto
//! devices, `dlpack` (feature `dlpack`) shares memory with other tensor libraries. [`backend`] has the traits and types for
//! authors of backends. The features are off by default, and do nothing where a platform lacks them.

mod array;
mod builder;
mod download;
mod families;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod gpu;
mod host_buffer;
#[cfg(feature = "safetensors")]
pub mod load;
mod runtime;

pub use array::Array;
pub use builder::RuntimeBuilder;
pub use download::Download;
pub use host_buffer::HostBuffer;
pub use runtime::Runtime;
pub use transload_core::{
    Buffer, DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryKind, Observer, Place, Pod, RawBuffer,
    ReadGuard, RejectReason, Rejected, Result, StreamPriority, Timing, Transfer, TransferMethod,
    TransferPath, TransferReport, WorkloadType, WriteGuard,
};
pub use transload_transfer::{CrossBackendTransferManager, Plan, Sampling, TransferOptions, TransferStats};

/// What authors of backends need: all of `transload-core`, `transload-transfer` and `transload-executor`.
pub mod backend {
    pub use transload_core::*;
    pub use transload_executor as executor;
    pub use transload_transfer::*;
}

/// Host memory and the threads that copy within it.
pub mod cpu {
    pub use transload_backend_cpu::*;
}

/// Buffers as other libraries' tensors and theirs as buffers, without a copy. Needs the feature `dlpack`.
#[cfg(feature = "dlpack")]
pub mod dlpack {
    pub use transload_dlpack::*;
}

/// CUDA devices: the backend, and what it stands on. Needs the feature `cuda`, on Linux or Windows.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
pub mod cuda {
    pub use crate::gpu::CudaGpu;
    pub use transload_backend_cuda::*;
    pub use transload_memory as memory;
    pub use transload_streams as streams;
}
