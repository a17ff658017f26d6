//! Writing to write-combined memory.

use std::ptr;

use transload_core::{
    Access, Error, ErrorKind, RawBuffer, Result,
    host_access::{self, HostAccess},
};

use crate::storage::DriverMemory;

/// Write-combined memory: a source of uploads, filled by the host. May be used from any thread.
#[derive(Debug)]
pub struct UploadBuffer {
    source: RawBuffer,
}

impl UploadBuffer {
    /// Wraps memory of [`CudaResource::write_combined`](crate::CudaResource::write_combined), or an allocator's block
    /// of it.
    ///
    /// # Errors
    /// `InvalidArgument` for other memory.
    pub fn new(source: RawBuffer) -> Result<Self> {
        let memory = source.storage().and_then(|storage| storage.as_any().downcast_ref::<DriverMemory>());
        if memory.is_some_and(DriverMemory::is_write_combined) && !source.is_writable() {
            return Ok(Self { source });
        }
        let text =
            format!("{source:?} is no write-combined memory; take it from CudaResource::write_combined");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Returns the source of uploads.
    #[must_use]
    pub fn source(&self) -> &RawBuffer {
        &self.source
    }

    /// Writes bytes at `offset`. Blocks until uploads of that range in flight are complete. Multiples of 64 bytes are
    /// fastest.
    ///
    /// # Errors
    /// `OutOfRange` if the bytes do not fit; `Busy` if a view of the range is open.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len());
        let range = self.source.slice(offset..end)?;
        let loan = range.lend(Access::Write)?;
        loan.wait_for_earlier_work()?;
        let Some(to) = loan.buffer().host_address() else {
            return Err(Error::new(ErrorKind::Unsupported, "write-combined memory without an address"));
        };
        host_access::note(to.as_ptr().addr(), bytes.len(), HostAccess::Write);
        // SAFETY: the range has as many bytes, and is lent exclusively to this call. It cannot overlap the source: a
        // view of it would have prevented the loan.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        // Flush this core's write-combining buffers before another thread starts an upload.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}
