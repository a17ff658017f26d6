//! Between two devices: one asynchronous peer copy on a stream of the source's device, access being enabled both ways.

use anyhow::{Context as _, Result, bail};
use transload_cuda_sys::{Context, check, ffi};

use super::{Reference, stream::Stream};
use crate::address::Address;

/// A copy from one device's memory to another's.
#[derive(Debug)]
pub struct PeerCopy {
    stream: Stream,
    to: Context,
    src: u64,
    dst: u64,
    bytes: usize,
}

impl PeerCopy {
    /// Enables access both ways and makes a stream.
    ///
    /// # Errors
    /// The driver's; an address of the host.
    ///
    /// # Safety
    /// * `bytes` bytes must be readable at `src` in `from` and writable at `dst` in `to` while the value lives; nobody else
    ///   may use them while a copy is in flight.
    pub unsafe fn new(
        from: &Context,
        to: &Context,
        src: Address,
        dst: Address,
        bytes: usize,
    ) -> Result<Self> {
        let (Address::Device(src), Address::Device(dst)) = (src, dst) else {
            bail!("peers copy between devices' memory");
        };
        from.enable_peer(to)?;
        to.enable_peer(from)?;
        Ok(Self { stream: Stream::new(from)?, to: to.clone(), src, dst, bytes })
    }
}

impl Reference for PeerCopy {
    #[inline]
    fn submit(&mut self) -> Result<()> {
        let from = &self.stream.context;
        let _bound = from.enter()?;
        // SAFETY: the memory is promised to `new`; stream and contexts are kept.
        let code = unsafe {
            ffi::cuMemcpyPeerAsync(
                self.dst,
                self.to.as_raw(),
                self.src,
                from.as_raw(),
                self.bytes,
                self.stream.raw,
            )
        };
        check("cuMemcpyPeerAsync", code).context("the reference's copy")
    }

    #[inline]
    fn finish(&mut self) -> Result<()> {
        self.stream.finish()
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}
