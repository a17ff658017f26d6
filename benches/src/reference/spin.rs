//! A kernel that does nothing for a given time, launched by hand.

use anyhow::Result;
use transload_cuda_sys::cust::sys::CUstream;

use super::RawKernel;

/// `transload_spin(nanoseconds, out)`: the same text that the library's examples and tests load.
pub const SPIN: &str = include_str!("../../../crates/streams/examples/kernels/spin.ptx");

/// The kernel that keeps the device busy.
#[derive(Debug)]
pub struct Spin(RawKernel);

impl Spin {
    /// Loads it into the current context.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn load() -> Result<Self> {
        RawKernel::load(SPIN, c"transload_spin").map(Self)
    }

    /// Launches so many blocks of so many threads, each busy for so many nanoseconds.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The stream is one of the module's context.
    #[inline]
    pub unsafe fn launch(&self, stream: CUstream, blocks: u32, threads: u32, nanoseconds: u64) -> Result<()> {
        let out = 0_u64;
        let mut parameters = [(&raw const nanoseconds).cast_mut().cast(), (&raw const out).cast_mut().cast()];
        // SAFETY: the kernel takes these two parameters of 8 bytes; with an address of 0 it stores nothing.
        unsafe { self.0.launch(stream, (blocks, threads), &mut parameters) }
    }
}
