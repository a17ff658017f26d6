//! A CUDA graph, captured and launched by hand.

use std::ptr;

use anyhow::{Result, ensure};
use transload_cuda_sys::{
    check,
    cust::sys::{CUgraph, CUgraphExec},
    ffi,
};

use super::RawQueue;

/// A captured graph, instantiated.
#[derive(Debug)]
pub struct RawGraph {
    graph: CUgraph,
    executable: CUgraphExec,
}

impl RawGraph {
    /// Captures what `work` enqueues on the stream.
    ///
    /// # Errors
    /// The driver's, and those of `work`.
    pub fn capture(stream: &RawQueue, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
        const OF_THIS_THREAD: u32 = 1;
        // SAFETY: the stream is owned.
        check("cuStreamBeginCapture", unsafe { ffi::cuStreamBeginCapture_v2(stream.raw, OF_THIS_THREAD) })?;
        let done = work();
        let mut graph = Self { graph: ptr::null_mut(), executable: ptr::null_mut() };
        // SAFETY: the capture began on this thread; the out pointer is valid.
        check("cuStreamEndCapture", unsafe { ffi::cuStreamEndCapture(stream.raw, &mut graph.graph) })?;
        done?;
        ensure!(!graph.graph.is_null(), "nothing was captured");
        // SAFETY: the graph was just captured; the out pointer is valid.
        check("cuGraphInstantiateWithFlags", unsafe {
            ffi::cuGraphInstantiateWithFlags(&mut graph.executable, graph.graph, 0)
        })?;
        Ok(graph)
    }

    /// Enqueues all of it.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * What was captured may be done again now.
    #[inline]
    pub unsafe fn launch(&self, stream: &RawQueue) -> Result<()> {
        // SAFETY: both are owned; for the work the caller promises.
        Ok(check("cuGraphLaunch", unsafe { ffi::cuGraphLaunch(self.executable, stream.raw) })?)
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        // SAFETY: the handles are owned and go here; null ones were never made. Errors cannot be handled in a drop.
        unsafe {
            if !self.executable.is_null() {
                ffi::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                ffi::cuGraphDestroy(self.graph);
            }
        }
    }
}
