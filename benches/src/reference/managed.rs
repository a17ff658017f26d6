//! Managed memory into a device's own: prefetched there as a whole, then copied, on one stream.

use anyhow::{Context as _, Result, bail};
use transload_cuda_sys::{Context, check, ffi};

use super::{Reference, stream::Stream};
use crate::address::Address;

/// A prefetch and the copy behind it.
#[derive(Debug)]
pub struct PrefetchedCopy {
    stream: Stream,
    src: u64,
    dst: u64,
    bytes: usize,
}

impl PrefetchedCopy {
    /// With a stream of its own.
    ///
    /// # Errors
    /// The driver's; a destination on the host.
    ///
    /// # Safety
    /// * `src` must be managed memory. `bytes` bytes must be readable at `src` and writable at `dst` while the value lives;
    ///   nobody else may use them while a copy is in flight.
    pub unsafe fn new(context: &Context, src: Address, dst: Address, bytes: usize) -> Result<Self> {
        let Address::Device(dst) = dst else { bail!("the destination is the host's") };
        let src = match src {
            Address::Host(address) => address.addr().get() as u64,
            Address::Device(address) => address,
        };
        Ok(Self { stream: Stream::new(context)?, src, dst, bytes })
    }
}

impl Reference for PrefetchedCopy {
    #[inline]
    fn submit(&mut self) -> Result<()> {
        let device = self.stream.context.device().as_raw();
        // SAFETY: the memory is promised to `new`; the stream is kept.
        unsafe {
            let code = ffi::cuMemPrefetchAsync(self.src, self.bytes, device, self.stream.raw);
            check("cuMemPrefetchAsync", code).context("the reference's prefetch")?;
            let code = ffi::cuMemcpyDtoDAsync_v2(self.dst, self.src, self.bytes, self.stream.raw);
            check("cuMemcpyDtoDAsync", code).context("the reference's copy")
        }
    }

    #[inline]
    fn finish(&mut self) -> Result<()> {
        self.stream.finish()
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}
