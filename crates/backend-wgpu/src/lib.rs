//! [`transload_core`]'s traits over the Vulkan devices that [`wgpu`] finds.
//!
//! # Beneath wgpu
//! Devices are opened by wgpu, but copies are raw Vulkan submissions on the same queue. wgpu's own copies are of multiples of four
//! bytes, never within one buffer, and each of its submissions costs tens of microseconds on some drivers. Beneath it, bytes next to a copy are
//! not touched, whatever its offset and length.
//!
//! Each device has one Vulkan queue under one lock, since wgpu opens no more, and many adapters have no other. So all leased queues of a
//! device are one line, whose timeline is a Vulkan timeline semaphore; a priority has no effect. wgpu's queue is the same one: it is not
//! handed out, but [`WgpuBackend::submit`] submits to it. A framework that needs it makes the device by [`create_shared_device`], and gives
//! both to [`WgpuBackendConfig::with_device`].
//!
//! # Host memory
//! [`MemoryKind::Pinned`](transload_core::MemoryKind::Pinned) memory of the backend is mapped for good, and copied by the device
//! while the caller goes on. Any other host memory, pinned memory of other backends included, is copied through staging buffers while the operation is
//! submitted, as CUDA's driver does with pageable memory: HostStaged of `transload-transfer` is the faster way for large copies.
//!
//! # Mapped memory
//! Where a device's memory is the host's own and cached by it, as on integrated GPUs and software adapters, there is
//! [`MemoryKind::Mapped`](transload_core::MemoryKind::Mapped) memory: host views and shaders use one allocation. Device memory is mapped
//! too, so that the cpu backend's queues copy it [in place](transload_core::Operation::CopyInPlace), but has no host views. Other devices
//! refuse mapped memory, also those of which the host sees a part.
//!
//! # Errors
//! Without a loader or an adapter, [`WgpuBackend::open`] says what to install. A lost device is `DeviceLost` from then on; open another
//! backend to use it again.
//!
//! Where wgpu would panic: errors that no scope captures become events (`transload_core::events`) instead; wgpu is not polled by
//! this crate, which a lost device answers with a panic; a panic of its submission is caught, and counts as the loss of the device. A program that calls
//! `poll` on the handed out device has to mind that itself.
//!
//! # Threads
//! Every item may be used from any thread. One thread for each device waits for its work, and only while a task awaits it.
//!
//! On macOS this crate is empty.
#![cfg(any(target_os = "linux", windows))]

mod backend;
mod clock;
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
pub use vulkan::create_shared_device;
#[doc(no_inline)]
pub use wgpu;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
