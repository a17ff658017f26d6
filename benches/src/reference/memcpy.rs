//! Host to host: the C library's `memcpy` on the calling thread.

use std::{hint::black_box, ptr::NonNull};

use anyhow::Result;

use super::Reference;

/// A copy of so many bytes between two addresses.
#[derive(Debug)]
pub struct Memcpy {
    src: NonNull<u8>,
    dst: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the constructor's caller promises memory that nobody else uses meanwhile.
unsafe impl Send for Memcpy {}

impl Memcpy {
    /// # Safety
    /// * `bytes` bytes must be readable at `src` and writable at `dst` while the value lives; they must not overlap, and
    ///   nobody else may use them during a call.
    #[must_use]
    pub unsafe fn new(src: NonNull<u8>, dst: NonNull<u8>, bytes: usize) -> Self {
        Self { src, dst, bytes }
    }
}

impl Reference for Memcpy {
    fn submit(&mut self) -> Result<()> {
        let (src, dst, bytes) = black_box((self.src, self.dst, self.bytes));
        // SAFETY: promised to `new`.
        unsafe { src.copy_to_nonoverlapping(dst, bytes) };
        black_box(dst);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}
