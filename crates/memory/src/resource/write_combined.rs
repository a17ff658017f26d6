//! Write-combined pinned memory: past the host's caches on its way to a device, so for uploads and nothing else.
//!
//! Every method may be called from any thread. Only who asks for this resource gets such memory.

use std::{ptr, sync::Arc};

use transload_core::{Access, Error, ErrorKind, MemoryKind, RawBuffer, Result};

use super::{CudaResource, MemoryResource};
use crate::{CudaMemoryManager, driver_memory::DriverMemory, manager::Terms};

/// Segments of write-combined pinned memory. Nothing can be transferred into them, and no writable view of them opens:
/// [`RawBuffer::is_writable`] is false, since the host would read what a device wrote there some hundred times slower than from
/// any other memory. The host fills them through an [`UploadBuffer`]. A view to read opens, for tests of what was written.
#[derive(Clone, Debug)]
pub struct WriteCombinedResource {
    memory: CudaResource,
}

impl WriteCombinedResource {
    /// Write-combined memory, pinned for every device.
    #[must_use]
    pub fn new(manager: &Arc<CudaMemoryManager>) -> Self {
        Self { memory: CudaResource::with_terms(manager, MemoryKind::Pinned, Terms::WriteCombined) }
    }
}

// SAFETY: the segments are the wrapped resource's.
unsafe impl MemoryResource for WriteCombinedResource {
    as_upstream!(memory: place device trim info);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.memory.allocate_segment(bytes)
    }
}

/// Write-combined memory that the host fills and uploads begin at.
#[derive(Debug)]
pub struct UploadBuffer {
    source: RawBuffer,
}

impl UploadBuffer {
    /// Over memory of a [`WriteCombinedResource`], or a block that an allocator cut from it.
    ///
    /// # Errors
    /// `InvalidArgument` for other memory.
    pub fn new(source: RawBuffer) -> Result<Self> {
        let memory = source.storage().and_then(|storage| storage.as_any().downcast_ref::<DriverMemory>());
        if memory.is_some_and(DriverMemory::is_write_combined) && !source.is_writable() {
            return Ok(Self { source });
        }
        let text = format!("{source:?} is no write-combined memory; take it from a WriteCombinedResource");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// The source of uploads.
    #[must_use]
    pub fn source(&self) -> &RawBuffer {
        &self.source
    }

    /// Writes bytes from `offset` on. Blocks until uploads of that range in flight are done. In whole multiples of 64 bytes it
    /// is fastest.
    ///
    /// # Errors
    /// `OutOfRange` where the bytes do not fit; `Busy` where a view of the range is open.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len());
        let range = self.source.slice(offset..end)?;
        let loan = range.lend(Access::Write)?;
        loan.wait_for_earlier_work();
        let Some(to) = loan.buffer().host_address() else {
            return Err(Error::new(ErrorKind::Unsupported, "write-combined memory without an address"));
        };
        transload_core::host_access::note(
            to.as_ptr().addr(),
            bytes.len(),
            transload_core::host_access::HostAccess::Write,
        );
        // SAFETY: the range has as many bytes, and is lent to this call: nobody else uses it. It cannot be the source, which a
        // view of it would keep from being lent.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        // What still is in this core's write-combining buffers another thread's upload would miss.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}
