//! A CUDA stream, created with a priority and without implicit synchronisation with the default stream, or foreign.

use std::{ffi::CStr, ptr, sync::OnceLock};

use cust::sys::{CUevent, CUstream};

use crate::{
    Context, Driver, Event, RelaxedCapture, Result, Version, check, driver::code, ffi, record_drop_error,
};

/// A raw stream handle (`CUstream`) as this workspace passes it between crates.
pub type RawStream = CUstream;

/// A raw event handle (`CUevent`).
pub type RawEvent = CUevent;

/// A stream that work can be enqueued on: our streams, and wrappers of foreign ones.
///
/// # Safety
/// * [`as_raw`](Self::as_raw) must return a stream of [`context`](Self::context) that stays valid while `self` lives.
pub unsafe trait AsStream {
    /// Returns the driver's handle.
    fn as_raw(&self) -> RawStream;
    /// Returns the context of the stream.
    fn context(&self) -> &Context;
}

/// Options of a new stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The driver's priority: smaller is more urgent, clamped to [`Context::stream_priority_range`]. Priorities order
    /// kernels, not copies.
    pub priority: i32,
    /// Whether the stream synchronises with the legacy default stream. Off by default (`NON_BLOCKING`).
    pub blocking: bool,
}

/// A stream. Usable from any thread; concurrent calls on one stream take effect in some order.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: CUstream,
    owned: bool,
}

// SAFETY: the driver allows a stream to be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream (about 5 µs).
    ///
    /// # Errors
    /// The driver's code.
    pub fn new(context: &Context, options: StreamOptions) -> Result<Self> {
        /// `CU_STREAM_NON_BLOCKING`; cust's own `Stream::new` drops this flag.
        const NON_BLOCKING: u32 = 1;
        let flags = if options.blocking { 0 } else { NON_BLOCKING };
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        context.call("cuStreamCreateWithPriority", || unsafe {
            ffi::cuStreamCreateWithPriority(&mut raw, flags, options.priority)
        })?;
        Ok(Self { context: context.clone(), raw, owned: true })
    }

    /// Wraps a stream that another owner destroys (a framework's, cust's `Stream::as_inner`, or null for the legacy
    /// default stream).
    ///
    /// # Safety
    /// * `raw` is a stream of `context` (or a default stream) and outlives the returned value.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: RawStream) -> Self {
        Self { context: context.clone(), raw, owned: false }
    }

    /// Returns the priority that the driver assigned.
    ///
    /// # Errors
    /// The driver's code.
    pub fn priority(&self) -> Result<i32> {
        let _bound = self.context.enter()?;
        let mut priority = 0;
        // SAFETY: the handle is valid by this type's invariant, the out pointer for the call.
        check("cuStreamGetPriority", unsafe { ffi::cuStreamGetPriority(self.raw, &mut priority) })?;
        Ok(priority)
    }

    /// Returns whether the stream synchronises with the legacy default stream.
    ///
    /// # Errors
    /// The driver's code.
    pub fn is_blocking(&self) -> Result<bool> {
        let _bound = self.context.enter()?;
        let mut flags = 0;
        // SAFETY: as in `priority`.
        check("cuStreamGetFlags", unsafe { ffi::cuStreamGetFlags(self.raw, &mut flags) })?;
        Ok(flags & 1 == 0)
    }

    /// Returns whether all work enqueued so far is complete.
    ///
    /// # Errors
    /// The driver's code, including errors of the stream's own work.
    pub fn is_idle(&self) -> Result<bool> {
        let _bound = self.context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        // SAFETY: the handle is valid by this type's invariant.
        match unsafe { ffi::cuStreamQuery(self.raw) } {
            code::NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Blocks until all work enqueued so far is complete.
    ///
    /// # Errors
    /// The driver's code, including errors of the stream's own work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is valid by this type's invariant.
        self.context.call("cuStreamSynchronize", || unsafe { ffi::cuStreamSynchronize(self.raw) })
    }

    /// Makes later work of this stream wait for the work that `event` recorded last, without blocking the host. The
    /// event may belong to another device.
    ///
    /// # Errors
    /// The driver's code.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        // SAFETY: the handle is valid by its type's invariant.
        unsafe { self.wait_raw_event(event.as_raw()) }
    }

    /// Like [`wait_event`](Self::wait_event), for an event of other code, which may be destroyed once this returns.
    ///
    /// # Errors
    /// The driver's code.
    ///
    /// # Safety
    /// * `event` is a live event of this process.
    #[inline]
    pub unsafe fn wait_raw_event(&self, event: RawEvent) -> Result<()> {
        let _bound = self.context.enter()?;
        // SAFETY: the stream is valid by this type's invariant, the event by the caller's promise; 0 is the only defined flags
        // word here.
        check("cuStreamWaitEvent", unsafe { ffi::cuStreamWaitEvent(self.raw, event, 0) })
    }

    /// Returns whether the driver has [`wait_word`](Self::wait_word): from CUDA 12.0 on, for every device.
    #[must_use]
    pub fn can_wait_words() -> bool {
        static CAN_WAIT: OnceLock<bool> = OnceLock::new();
        *CAN_WAIT.get_or_init(|| has_since_12(c"cuStreamWaitValue32_v2"))
    }

    /// Makes later work of this stream wait until the word at a device address is at least `value`: until `word - value` is not
    /// negative as a signed number, so that values may wrap. Does not block the host. Calls that wait for the device, as frees do,
    /// wait for the word too, and other threads' calls may then wait for those.
    ///
    /// # Errors
    /// The driver's code.
    ///
    /// # Safety
    /// * The address is that of 4 aligned bytes of mapped host memory or of the device, which live until the wait is over.
    /// * The word gets the value, by a thread that calls no driver before.
    /// * The stream is not being captured.
    pub unsafe fn wait_word(&self, address: u64, value: u32) -> Result<()> {
        /// `CU_STREAM_WAIT_VALUE_GEQ`.
        const AT_LEAST: u32 = 0;
        let _bound = self.context.enter()?;
        // SAFETY: the stream is valid by this type's invariant; the rest is the caller's promise.
        check("cuStreamWaitValue32_v2", unsafe {
            ffi::cuStreamWaitValue32_v2(self.raw, address, value, AT_LEAST)
        })
    }

    /// Returns whether the driver has [`write_word`](Self::write_word): from CUDA 12.0 on, for every device.
    #[must_use]
    pub fn can_write_words() -> bool {
        static CAN_WRITE: OnceLock<bool> = OnceLock::new();
        *CAN_WRITE.get_or_init(|| has_since_12(c"cuStreamWriteValue32_v2"))
    }

    /// Writes the word at a device address once all work enqueued before is complete and the host sees what it wrote. Nothing is
    /// written if that work fails.
    ///
    /// # Errors
    /// The driver's code.
    ///
    /// # Safety
    /// * The address is that of 4 aligned bytes of mapped host memory or of the device, which live until the word is written or the
    ///   stream's work has ended. The host accesses them by atomic operations only.
    pub unsafe fn write_word(&self, address: u64, value: u32) -> Result<()> {
        let _bound = self.context.enter()?;
        // SAFETY: the stream is valid by this type's invariant; the rest is the caller's promise. Without flags the write comes after a
        // barrier for the whole system.
        check("cuStreamWriteValue32_v2", unsafe { ffi::cuStreamWriteValue32_v2(self.raw, address, value, 0) })
    }
}

/// Returns whether the driver is of CUDA 12.0 or later and has the function.
fn has_since_12(function: &CStr) -> bool {
    Driver::get().is_ok_and(|driver| driver.version() >= Version(12_000) && driver.has(function))
}

// SAFETY: the handle is valid while `self` lives: owned, or promised by the caller of `from_raw`.
unsafe impl AsStream for Stream {
    #[inline]
    fn as_raw(&self) -> RawStream {
        self.raw
    }

    #[inline]
    fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the stream is owned and not used after this. Work still enqueued completes; the driver frees the
            // stream's resources then.
            let destroy = || unsafe { ffi::cuStreamDestroy_v2(self.raw) };
            record_drop_error(self.context.call("cuStreamDestroy_v2", destroy));
        }
    }
}
