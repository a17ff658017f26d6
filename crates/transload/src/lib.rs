//! Moves tensors between any two memories of a machine by the method predicted to be fastest, and reports how it did it.
//!
//! ```
//! # #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))] {
//! # async fn first_page() -> transload::Result<()> {
//! use transload::Runtime;
//!
//! let rt = Runtime::discover()?; // The host, and every GPU that is there.
//! let gpu = rt.cuda(0)?; // Allocators, streams and raw handles of one GPU.
//! let weights = rt.host(vec![1.0_f32; 1 << 20])?; // An `Array<f32>` over the vector, without a copy.
//! let there = gpu.alloc::<f32>(1 << 20)?; // An `Array<f32>` in the GPU's memory.
//!
//! let report = rt.copy(&weights, &there).wait()?; // Or `.await`, or `.submit()` and wait later.
//! println!("{report}");
//! let back = rt.download(&there.slice(..1024)?).await?; // A `HostBuffer<f32>`: reads like a slice.
//! assert_eq!(*back, [1.0; 1024]);
//! # Ok(()) }
//! # let _ = first_page;
//! # }
//! ```
//!
//! It works without a GPU too, and says why one is absent:
//!
//! ```
//! use transload::{DeviceId, MemoryKind, Runtime};
//!
//! let rt = Runtime::discover()?;
//! for (family, reason) in rt.absent() {
//!     println!("no {family}: {reason}");
//! }
//! // To the first GPU if there is one, else within the host's memory.
//! let gpu = rt.devices().into_iter().find(|device| !device.id.is_cpu());
//! let (device, kind) = gpu.map_or((DeviceId::Cpu, MemoryKind::Pageable), |gpu| (gpu.id, MemoryKind::Device));
//! let weights = rt.host((0..4096_u32).collect())?;
//! let there = rt.alloc::<u32>(device, kind, 4096)?;
//!
//! println!("{}", rt.copy(&weights, &there).plan()?); // What would be done, and why.
//! rt.copy(&weights, &there).wait()?;
//! assert_eq!(*rt.download(&there).wait()?, *weights.read()?);
//!
//! drop((weights, there));
//! rt.drain()?; // Dropping never waits; this does.
//! # Ok::<(), transload::Error>(())
//! ```
//!
//! An awaited copy never blocks the thread of a task; [one table](CopyBuilder#what-blocks-and-what-keeps-order) says what does. The examples, numbered from `01_first_copy` on, are a page each on async tasks,
//! typed views, unified memory, streams and graphs, a KV cache, other libraries (cudarc, DLPack), and a small framework. `--simulate` runs
//! them without a GPU, 07 without cudarc.
//!
//! # What is where
//! At the root is what programs use every day. [`cpu`] has the host's backend, [`io`] sources and sinks of bytes, and [`backend`] the
//! traits and types for authors of backends, and rarer ones, such as [`Observer`](backend::Observer) and
//! [`TransferStats`](backend::TransferStats). Features add the rest; all are off by default, and do nothing where a platform lacks
//! them:
//!
//! | Feature | Adds |
//! |---|---|
//! | `calibration` | the module `calibration`, `Runtime::calibrate`: methods chosen by what was measured on this machine |
//! | `cuda` | CUDA devices, on Linux and Windows: the module `cuda` with streams, launches, graphs and memory resources, `Runtime::cuda`, `RuntimeBuilder::cuda` |
//! | `dlpack` | the module `dlpack`: memory shared with other tensor libraries |
//! | `half` | `Float` for the types `f16` and `bf16` of the crate `half`: casts with `Runtime::cast` |
//! | `nvtx` | `enable_nvtx` of profilers: ranges for tools such as Nsight Systems |
//! | `profiler` | the module `profiler`, `Runtime::profile`: reports, advice and traces of streams and transfers; the variable `TRANSLOAD_TRACE` |
//! | `prometheus` | `profiler::PrometheusCollector`: a profiler's counts as metrics of a registry of the crate `prometheus-client` |
//! | `safetensors` | the module `load`, `Runtime::load`: model files onto devices |
//! | `serde` | `Serialize` and `Deserialize` of ids, places, plans, costs, reports and statistics; `Serialize` of [`Resources`] and loaded tensors |
//! | `tokio` | `io::Tokio`: tokio's readers and writers as sources and sinks |
//! | `wgpu` | devices of Vulkan, DX12 and OpenGL, on macOS of Metal: the module `wgpu`, `RuntimeBuilder::wgpu` |

mod array;
mod builder;
#[cfg(feature = "calibration")]
pub mod calibration;
mod cast;
mod download;
mod drain;
mod families;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod gpu;
mod host_buffer;
pub mod io;
#[cfg(feature = "safetensors")]
pub mod load;
#[cfg(feature = "profiler")]
pub mod profiler;
mod resources;
mod runtime;
mod staging;
mod strided_view;
mod upload;

pub use array::Array;
pub use builder::RuntimeBuilder;
pub use cast::Float;
pub use download::Download;
pub use host_buffer::HostBuffer;
pub use resources::Resources;
pub use runtime::Runtime;
pub use strided_view::StridedView;
/// What elements may be: plain old data, a trait of the crate `bytemuck`. Numbers and arrays of them are; a struct is by
/// `#[derive(bytemuck::Pod)]`; `half::f16` and `bf16` are with the feature `bytemuck` of the crate `half`.
pub use transload_core::Pod;
pub use transload_core::{
    Buffer, DeviceId, DeviceInfo, Error, ErrorKind, Fence, FloatType, ListWay, MemoryKind, MemoryShortage,
    Place, RawBuffer, ReadGuard, Result, Retry, StreamPriority, Timing, Transfer, TransferMethod,
    TransferReport, TransferState, WorkloadType, WriteGuard,
};
pub use transload_transfer::{
    CastBuilder, CastReport, CastTransfer, CopyBuilder, CopyManyBuilder, CopyManyError, CopyManyReport,
    CopyManyTransfer, CrossBackendTransferManager, Plan, RecordedTransfers, Sampling, StridedLayout,
    TransferOptions,
};

/// What authors of backends need: all of `transload-core`, `transload-transfer` and `transload-executor`.
pub mod backend {
    pub use crate::{download::Destination, families::DeviceFamily};
    /// The macro that an implementation of [`DeviceFamily`] stands under.
    pub use async_trait::async_trait;
    pub use transload_core::*;
    pub use transload_executor as executor;
    pub use transload_transfer::*;
}

/// Host memory and the threads that copy within it.
pub mod cpu {
    pub use transload_backend_cpu::*;
}

/// Feature `dlpack`: buffers as other libraries' tensors and theirs as buffers, without a copy.
#[cfg(feature = "dlpack")]
pub mod dlpack {
    pub use transload_dlpack::*;
}

/// Feature `cuda`, on Linux and Windows: CUDA devices, their streams, launches, graphs and memory.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
pub mod cuda {
    pub use crate::gpu::CudaGpu;
    pub use transload_backend_cuda::*;
    pub use transload_core::{Access, Operation, Pattern};
    pub use transload_memory as memory;
    pub use transload_streams::{self as streams, CudaGraph, CudaKernel, CudaModule, LaunchConfig};
}

/// Feature `wgpu`, on Linux, Windows and macOS: devices of Vulkan, DX12, OpenGL and Metal.
///
/// With the feature `cuda`, memory that streams and shaders use in place:
///
/// ```no_run
/// # #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))] {
/// use transload::{
///     Array, Runtime,
///     backend::{Access, Backend as _},
///     wgpu::{CudaInterop, WgpuBackend, WgpuBackendConfig, wgpu::CommandBuffer},
/// };
///
/// /// `record` records a shader that uses the buffer.
/// fn compute(record: impl FnOnce(&transload::wgpu::wgpu::Buffer) -> CommandBuffer) -> transload::Result<()> {
///     let vulkan = WgpuBackend::open(&WgpuBackendConfig::default())?;
///     let rt = Runtime::builder().backend(vulkan.clone()).discover()?;
///     let gpu = rt.cuda(0)?;
///     let uuid = gpu.device().driver().uuid().ok();
///     let Some(same) = vulkan.devices().into_iter().find(|info| info.uuid == uuid) else { return Ok(()) };
///
///     let memory = CudaInterop::new(&vulkan, same.id, gpu.memory()?)?.allocate(4096)?;
///     let theirs = rt.manager().share(&memory, same.id)?.buffer; // the same bytes, for shaders
///     let array: Array<f32> = rt.array(memory)?; // and for copies and kernels
///     rt.copy(&rt.host(vec![1.0_f32; 1024])?, &array).wait()?;
///     vulkan.submit(same.id, [record(&vulkan.buffer(&theirs)?)], &[(&theirs, Access::Write)])?;
///     println!("{}", rt.download(&array).wait()?[0]); // after the shader
///     Ok(())
/// }
/// # }
/// ```
#[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
pub mod wgpu {
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    pub use transload_backend_wgpu::CudaInterop;
    #[cfg(any(target_os = "linux", windows))]
    pub use transload_backend_wgpu::create_shared_device;
    /// The crate itself, for shaders.
    #[doc(no_inline)]
    pub use transload_backend_wgpu::wgpu;
    pub use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig};
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the guides compile. Of the workspace, whose tests have these features; a package has no guides.
#[cfg(all(
    doctest,
    feature = "calibration",
    feature = "cuda",
    feature = "dlpack",
    feature = "profiler",
    feature = "safetensors",
    feature = "wgpu",
    any(target_os = "linux", windows)
))]
mod guides {
    #[doc = include_str!("../../../docs/adopt.md")]
    struct Adopt;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/copies.md")]
    struct Copies;
    #[doc = include_str!("../../../docs/kernels.md")]
    struct Kernels;
    #[doc = include_str!("../../../docs/lost-device.md")]
    struct LostDevice;
    #[doc = include_str!("../../../docs/pinned-memory.md")]
    struct PinnedMemory;
    #[doc = include_str!("../../../docs/profiling.md")]
    struct Profiling;
    #[doc = include_str!("../../../docs/timing.md")]
    struct Timing;
    #[doc = include_str!("../../../docs/unified-memory.md")]
    struct UnifiedMemory;
}
