//! Sources of segments for allocators: the [`MemoryResource`] trait, its implementations, and a limiting adaptor.
//!
//! Resources serve few large requests; small and frequent ones are the allocator's work. Every method may be called
//! from any thread.

mod cuda;
mod edges;
mod host_registration;
mod limiting;
#[cfg(target_os = "linux")]
mod mapping;
mod numa;
mod pinned;
mod registration;
mod upload;

use std::sync::Arc;

use transload_core::{DeviceId, MemoryInfo, Place, RawBuffer, Result};

pub use cuda::CudaResource;
pub use edges::registration_edges;
pub(crate) use host_registration::{HostRegistration, Owner};
pub use limiting::LimitingResource;
pub use numa::NumaBinding;
pub use pinned::{HostPages, PinnedResource};
pub use registration::{RegistrationCache, RegistrationStatistics};
pub use upload::UploadBuffer;

/// Allocates segments of one kind of memory.
///
/// An allocator takes any implementation, such as one that passes the requests on to another and counts them:
///
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use transload_core::{DeviceId, MemoryInfo, Place, RawBuffer, Result};
/// use transload_memory::{CudaResource, MemoryResource};
///
/// struct Counted {
///     upstream: CudaResource,
///     segments: AtomicUsize,
/// }
///
/// // SAFETY: the segments are the upstream's, which are passed on as they are and not kept.
/// unsafe impl MemoryResource for Counted {
///     fn place(&self) -> Place {
///         self.upstream.place()
///     }
///
///     fn device(&self) -> Option<DeviceId> {
///         self.upstream.device()
///     }
///
///     fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
///         let segment = self.upstream.allocate_segment(bytes)?;
///         self.segments.fetch_add(1, Ordering::Relaxed);
///         Ok(segment)
///     }
///
///     fn trim(&self) -> Result<()> {
///         self.upstream.trim()
///     }
///
///     fn info(&self) -> Result<MemoryInfo> {
///         self.upstream.info()
///     }
/// }
/// # }
/// ```
///
/// # Safety
/// Allocators divide segments into blocks for different owners by address alone, so every segment that
/// [`allocate_segment`](Self::allocate_segment) returns must satisfy:
///
/// * It is exclusive: no clone, slice or view of the buffer is kept, and no other buffer covers the same bytes.
/// * It is idle: nothing in flight uses it, not even work that the buffer itself would wait for.
/// * Its bytes are not reused before the buffer is dropped and the work then in flight on it is complete.
/// * It has at least the requested size, and [`place`](Self::place) and [`device`](Self::device) describe it correctly.
pub unsafe trait MemoryResource: Send + Sync + 'static {
    /// Returns the owner and kind of the memory.
    fn place(&self) -> Place;

    /// Returns the device whose streams may use the memory; `None` if any may.
    fn device(&self) -> Option<DeviceId>;

    /// Allocates a segment of at least `bytes` bytes. Once dropped, it is released when nothing in flight uses it.
    ///
    /// # Errors
    /// `OutOfMemory` if releasing memory and retrying may help; `InvalidArgument` for 0 bytes; the driver's.
    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer>;

    /// Releases cached memory to the system. May wait for device work on it, but not for other backends' work, which
    /// the calling thread may have to finish.
    ///
    /// # Errors
    /// The driver's.
    fn trim(&self) -> Result<()>;

    /// Returns free and total bytes of this memory.
    ///
    /// # Errors
    /// `Unsupported` if unknown; the driver's.
    fn info(&self) -> Result<MemoryInfo>;
}

// SAFETY: every method forwards to the shared resource.
unsafe impl<R: MemoryResource + ?Sized> MemoryResource for Arc<R> {
    fn place(&self) -> Place {
        (**self).place()
    }

    fn device(&self) -> Option<DeviceId> {
        (**self).device()
    }

    #[track_caller]
    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        (**self).allocate_segment(bytes)
    }

    fn trim(&self) -> Result<()> {
        (**self).trim()
    }

    fn info(&self) -> Result<MemoryInfo> {
        (**self).info()
    }
}
