//! Where an allocator gets its segments: one trait, implemented by resources and by a limit around another one.
//!
//! A resource is asked seldom and for much; what is small and often is the allocator's own work. Every method may be called
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

/// Gives segments of one kind of memory.
///
/// # Safety
/// Allocators cut segments into blocks and give those to different owners by their addresses alone, so of every segment that
/// [`allocate_segment`](Self::allocate_segment) answers an implementation promises:
///
/// * Nobody else has it: no clone, slice or view of the buffer is kept, and no other buffer is over the same bytes.
/// * It is idle: nothing in flight uses it, also nothing that the buffer itself would know to wait for.
/// * Its bytes are not given out again, and are used for nothing else, before the buffer is dropped and what was in flight on
///   it then is over.
/// * It has at least as many bytes as were asked for, and [`place`](Self::place) and [`device`](Self::device) say the truth
///   about it.
pub unsafe trait MemoryResource: Send + Sync + 'static {
    /// Whose memory, and of what kind.
    fn place(&self) -> Place;

    /// The device whose streams use the memory; `None` where every device's may.
    fn device(&self) -> Option<DeviceId>;

    /// A segment of at least `bytes` bytes. Dropped, it goes back when nothing in flight uses it.
    ///
    /// # Errors
    /// `OutOfMemory` where giving back and asking again may help; `InvalidArgument` for 0 bytes; the driver's.
    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer>;

    /// Gives what is free but kept back to the system. May wait for work of devices that is in flight on memory given back; not for
    /// what other backends do, which the calling thread may be the one to end.
    ///
    /// # Errors
    /// The driver's.
    fn trim(&self) -> Result<()>;

    /// Free and total bytes of this memory.
    ///
    /// # Errors
    /// `Unsupported` where the resource cannot tell; the driver's.
    fn info(&self) -> Result<MemoryInfo>;
}

// SAFETY: every answer is that of the resource that is shared.
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
