//! A stream put behind fences, for work that others will enqueue on it.

use transload_core::{Fence, Result};
use transload_memory::lift;

use crate::CudaStream;

impl CudaStream {
    /// Makes later work of this stream, by whomever, wait for the fences: on the device for those of streams, and here on the
    /// host for those of other backends. Work that failed counts as over. Without any that is open it does nothing.
    ///
    /// # Errors
    /// `Busy` while someone captures this stream into a graph: a graph cannot wait for what is outside of it. The driver's.
    pub fn wait_fences(&self, fences: &[Fence]) -> Result<()> {
        let own = &*self.own;
        if fences.iter().all(Fence::is_known_done) {
            return Ok(());
        }
        own.check_runs()?;
        let _bound = own.context().enter().map_err(lift)?;
        for fence in fences {
            match own.wait_for_fence(fence) {
                Some(waited) => _ = waited?,
                None => _ = fence.wait(), // Its transfer reports the error.
            }
        }
        Ok(())
    }
}
