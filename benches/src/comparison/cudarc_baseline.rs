//! cudarc on the same device, used through its safe interface as in its examples.

use std::{cell::RefCell, sync::Arc};

use anyhow::{Result, ensure};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, PinnedHostSlice, sys};

use super::Verify;
use crate::content::Content;

/// Name in the rows.
pub(crate) const NAME: &str = "cudarc 0.19";

/// cudarc's view of the device.
pub(crate) struct CudarcBaseline {
    pub(crate) context: Arc<CudaContext>,
}

impl CudarcBaseline {
    /// Opens the device's primary context; `None` if cudarc finds no driver.
    pub(crate) fn open(ordinal: u32) -> Result<Option<Self>> {
        // SAFETY: it only checks whether the library can be opened.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        Ok(Some(Self { context: CudaContext::new(ordinal as usize)? }))
    }

    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>> {
        Ok(self.context.new_stream()?)
    }
}

/// Allocates and frees in the order of a stream.
pub(crate) fn pair(stream: &Arc<CudaStream>, bytes: usize) -> Result<()> {
    // SAFETY: the memory is never read.
    drop(unsafe { stream.alloc::<u8>(bytes) }?);
    Ok(())
}

/// Sources and destinations allocated by cudarc.
pub(crate) struct CudarcPairs {
    stream: Arc<CudaStream>,
    list: RefCell<Vec<(PinnedHostSlice<u8>, CudaSlice<u8>)>>,
    contents: Vec<Vec<u8>>,
}

impl CudarcPairs {
    pub(crate) fn new(cudarc: &CudarcBaseline, count: usize, bytes: usize) -> Result<Self> {
        let stream = cudarc.stream()?;
        let mut content = Content::new(bytes, 0xCDAC + count as u64);
        let (mut list, mut contents) = (Vec::new(), Vec::new());
        for _ in 0..count {
            // SAFETY: it is written before anything reads it. Flags of 0 are those of our own pinned memory.
            let mut host = unsafe { cudarc.context.alloc_pinned_with_flags::<u8>(bytes, 0) }?;
            let start = content.draw();
            host.as_mut_slice()?.copy_from_slice(content.part(start, bytes));
            contents.push(content.part(start, bytes).to_vec());
            list.push((host, stream.alloc_zeros::<u8>(bytes)?));
        }
        stream.synchronize()?;
        Ok(Self { stream, list: RefCell::new(list), contents })
    }

    /// Enqueues every copy.
    pub(crate) fn enqueue(&self) -> Result<()> {
        for (host, device) in self.list.borrow_mut().iter_mut() {
            self.stream.memcpy_htod(host, device)?;
        }
        Ok(())
    }

    /// Blocks until they are done.
    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }
}

impl Verify for CudarcPairs {
    fn poison(&self) -> Result<()> {
        for (_, device) in self.list.borrow_mut().iter_mut() {
            self.stream.memset_zeros(device)?;
        }
        self.finish()
    }

    fn check(&self) -> Result<()> {
        for ((_, device), content) in self.list.borrow().iter().zip(&self.contents) {
            ensure!(self.stream.clone_dtoh(device)? == *content, "cudarc's destination differs");
        }
        Ok(())
    }
}
