//! [`transload_core`]'s traits over the devices that [`wgpu`] finds: of Vulkan, and where that has none of DX12 or OpenGL; on macOS of Metal.
//!
//! # Vulkan, beneath wgpu
//! Devices are opened by wgpu, but copies are raw Vulkan submissions on the same queue. wgpu's own copies are of multiples of four
//! bytes, never within one buffer, and each of its submissions costs tens of microseconds on some drivers. Beneath it, bytes next to a copy are
//! not touched, whatever its offset and length.
//!
//! All leased queues of a device are one Vulkan queue, whose timeline is a Vulkan timeline semaphore. wgpu's
//! queue is the same one: it is not handed out, but [`WgpuBackend::submit`] submits to it. A framework that needs it makes the device by
//! [`create_shared_device`], and gives both to [`WgpuBackendConfig::with_device`]. Reserved queues, by which large transfers are staged, are
//! two others on devices made so and on those that the backend opens, where the adapter has a family that only copies: they go on beside shaders.
//! Copies of high priority are leased one of these, too, while the first queue has work, of a framework's device always. While a framework's buffer is adopted, all leases are of
//! the first queue. Other priorities have no effect.
//!
//! Lists of short pieces of whole words are copied by a shader, other pieces by copy commands. Short uploads to an idle queue are stored by
//! the submitting thread, where the host sees all memory of the device (resizable BAR), if this backend opened it.
//!
//! # Other APIs, by wgpu
//! Devices of OpenGL, DX12 and Metal are used by wgpu's own interface alone. wgpu copies whole words of 4 bytes between two buffers; a shader
//! does what that cannot: fills, copies within a buffer, and the bytes of a word that belong to a range. It reads the others and writes them
//! back, which nothing else does meanwhile, since such a device has one queue, and no memory that the host addresses. Only
//! [`MemoryKind::Device`](transload_core::MemoryKind::Device) is allocated, in multiples of 4 bytes. A copy from or to the host blocks the
//! submitting thread, as below. Work is not timed, so that a profiler is refused.
//!
//! # Host memory
//! On Vulkan, [`MemoryKind::Pinned`](transload_core::MemoryKind::Pinned) memory of the backend is mapped for good, and copied by the device
//! while the caller goes on. Any other host memory, pinned memory of other backends included, is copied through staging buffers while the operation is
//! submitted, as CUDA's driver does with pageable memory: HostStaged of `transload-transfer` is the faster way for large copies.
//!
//! # Mapped memory
//! Where a device's memory is the host's own and cached by it, as on integrated GPUs and software adapters, there is
//! [`MemoryKind::Mapped`](transload_core::MemoryKind::Mapped) memory: host views and shaders use one allocation. Its handle comes from the
//! unsafe [`WgpuBackend::mapped_buffer`]: commands that do not name it as used could write what a view shows. Device memory is mapped
//! too, so that the cpu backend's queues copy it [in place](transload_core::Operation::CopyInPlace), but has no host views. Other devices
//! refuse mapped memory, also those of which the host sees a part.
//!
//! # Errors
//! Without an adapter, [`WgpuBackend::open`] says what to install. A lost device is `DeviceLost` from then on; open another
//! backend to use it again.
//!
//! Where wgpu would panic:
//! * Errors that no scope captures: they become events (`transload_core::events`) instead.
//! * A lost device that is polled, as those of other APIs than Vulkan are, or submitted to: the panic is caught, and counts as the loss of
//!   the device. A program that calls `poll` on the handed out device has to mind that itself.
//! * A wait with a timeout while another thread polls: only devices of OpenGL are waited for so, by one thread at a time. If a program polls
//!   such a device itself meanwhile, the panic is caught, and the device lost.
//! * Error scopes, which belong to a thread, and end in the reverse order: this crate's begin and end within a call, also if that panics. A
//!   callback of wgpu that is called meanwhile has to end those that it begins.
//!
//! # Threads
//! Every item may be used from any thread. One thread for each queue waits for its work, and only while a task awaits it.
//!
//! Devices of other APIs than Vulkan are polled by any call that copies, allocates, waits or asks whether work is complete. wgpu calls
//! callbacks of its user (`map_async`) in there: one that uses a buffer which its thread is just copying waits for ever, and one that panics
//! loses the device. Leave what uses this library to another thread.
//!
//! On other platforms than Linux, Windows and macOS this crate is empty.
#![cfg(any(target_os = "linux", target_os = "macos", windows))]

mod api;
mod backend;
mod config;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda;
mod interop;
mod open;
mod portable;
#[cfg(all(test, any(target_os = "linux", windows)))]
#[path = "../tests/unit/setup.rs"]
mod setup;
#[cfg(any(target_os = "linux", windows))]
mod vulkan;
mod wakers;

pub use backend::WgpuBackend;
pub use config::WgpuBackendConfig;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
pub use cuda::CudaInterop;
#[cfg(any(target_os = "linux", windows))]
pub use vulkan::create_shared_device;
#[doc(no_inline)]
pub use wgpu;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
