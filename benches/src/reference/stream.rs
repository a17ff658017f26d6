//! A stream that is waited for by blocking the thread, as both references below have one.

use std::ptr;

use anyhow::{Context as _, Result};
use transload_cuda_sys::{Context, check, cust::sys::CUstream, ffi};

/// A stream of a context.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: Context,
    pub(super) raw: CUstream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(context: &Context) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut raw = ptr::null_mut();
        let bound = context.enter()?;
        // SAFETY: the out pointer is valid and the context is current.
        check("cuStreamCreate", unsafe { ffi::cuStreamCreate(&mut raw, NON_BLOCKING) })?;
        drop(bound);
        Ok(Self { context: context.clone(), raw })
    }

    #[inline]
    pub(super) fn finish(&self) -> Result<()> {
        // SAFETY: the stream is owned.
        check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(self.raw) })
            .context("the reference's copy")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and goes here. Errors cannot be handled in a drop.
        unsafe {
            ffi::cuStreamSynchronize(self.raw);
            ffi::cuStreamDestroy_v2(self.raw);
        }
    }
}
