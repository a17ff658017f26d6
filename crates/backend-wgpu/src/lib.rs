//! [`transload_core`]'s traits over the Vulkan devices that [`wgpu`] finds.

mod backend;
mod copy;
mod costs;
mod device;
mod queue;
mod staging;
mod storage;
mod vulkan;
mod wakers;

pub use backend::WgpuBackend;
