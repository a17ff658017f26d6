//! [`transload_core`]'s traits over the Vulkan devices that [`wgpu`] finds.
#![cfg(any(target_os = "linux", windows))]

mod backend;
mod config;
mod copy;
mod costs;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod interop;
mod queue;
mod staging;
mod storage;
mod vulkan;
mod wakers;

pub use backend::WgpuBackend;
pub use config::WgpuBackendConfig;
#[cfg(feature = "cuda")]
pub use cuda::{CudaInterop, SharedMemory};
pub use wgpu;
