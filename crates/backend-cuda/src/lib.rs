//! Transload's backend for CUDA devices: core's traits over `transload-memory` and `transload-streams`.
//!
//! # Threads
//! Every item may be used from any thread.
//!
//! On macOS this crate is empty.
//!
//! # Example
//! ```
//! # #[cfg(any(target_os = "linux", windows))] {
//! use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
//! use transload_core::{Backend, Buffer, DeviceId};
//!
//! async fn round_trip() -> transload_core::Result<()> {
//!     let backend = CudaBackend::initialize(CudaBackendConfig::default()).await?;
//!     let buffer = backend.create_buffer::<f32>(0, 1024)?;
//!     buffer.fill(1.5)?;
//!     let mut back = vec![0.0; 1024];
//!     buffer.copy_to_host(&mut back)?;
//!     assert_eq!(back, [1.5; 1024]);
//!     Ok(())
//! }
//! # let _ = round_trip;
//! # }
//! ```
#![cfg(any(target_os = "linux", windows))]

mod backend;
mod buffer;
mod buffer_cache;
mod config;
mod costs;
mod device;
mod event_streams;
mod held_buffers;
mod list_costs;
mod peers;
mod share;
mod unified;

pub use backend::CudaBackend;
pub use buffer::CudaBuffer;
pub use config::CudaBackendConfig;
pub use transload_cuda_sys::AsStream;
pub use transload_memory::{
    CudaDevice, CudaFeature, CudaMemoryManager, DeviceAccess, PinnedLimit, RegistrationCache,
    RegistrationStatistics, Role, UnifiedAllocation, UnifiedBuffer, UnifiedMode, UnifiedSupport,
};
pub use transload_streams::{
    AdvancedStreamPool, AllocationStrategy, CudaEvent, CudaStream, FenceEvent, StreamUse,
};

#[cfg(all(doctest, any(target_os = "linux", windows)))]
#[doc = include_str!("../README.md")]
struct Readme;
