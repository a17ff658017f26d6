//! A CUDA event: a point in a stream to wait for, to query, or to measure time from.

use std::{ptr, time::Duration};

use cust::sys::CUevent;

use crate::{
    AsStream, Context, DriverError, RelaxedCapture, Result, check, driver::code, ffi, record_drop_error,
};

/// Whether an event records time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTiming {
    /// The event records a timestamp, which makes recording slower.
    Enabled,
    /// The event only orders work.
    Disabled,
}

/// An event. Usable from any thread.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: the driver allows an event to be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event on `context`'s device.
    ///
    /// # Errors
    /// The driver's code.
    pub fn new(context: &Context, timing: EventTiming) -> Result<Self> {
        /// `CU_EVENT_DISABLE_TIMING`.
        const DISABLE_TIMING: u32 = 2;
        let flags = match timing {
            EventTiming::Enabled => 0,
            EventTiming::Disabled => DISABLE_TIMING,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        context.call("cuEventCreate", || unsafe { ffi::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Returns the context of the device it is on.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the driver's handle, valid while `self` lives.
    #[must_use]
    pub fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// Records the work enqueued on `stream` so far. The stream must belong to the event's context.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`] for a stream of another context; the driver's code.
    #[inline]
    pub fn record(&self, stream: &impl AsStream) -> Result<()> {
        if stream.context().as_raw() != self.context.as_raw() {
            // A default-stream handle means a different stream in each context, so the driver could not detect this.
            return Err(DriverError::OtherContext {
                event: self.context.device().ordinal(),
                stream: stream.context().device().ordinal(),
            });
        }
        let _bound = self.context.enter()?;
        // SAFETY: both handles are valid by their types' invariants and belong to the context that is current.
        check("cuEventRecord", unsafe { ffi::cuEventRecord(self.raw, stream.as_raw()) })
    }

    /// Returns whether the recorded work is complete; true if never recorded. Does not invalidate captures.
    ///
    /// # Errors
    /// The driver's code, including errors of the recorded work.
    #[inline]
    pub fn is_done(&self) -> Result<bool> {
        let _capture = RelaxedCapture::enter()?;
        // SAFETY: the handle is valid by this type's invariant.
        match unsafe { ffi::cuEventQuery(self.raw) } {
            code::NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Blocks until the recorded work is complete.
    ///
    /// # Errors
    /// The driver's code, including errors of the recorded work.
    #[inline]
    pub fn synchronize(&self) -> Result<()> {
        let _capture = RelaxedCapture::enter()?;
        // SAFETY: the handle is valid by this type's invariant.
        check("cuEventSynchronize", unsafe { ffi::cuEventSynchronize(self.raw) })
    }

    /// Returns the device time between two recorded events with timing; resolution about 0.5 µs.
    ///
    /// # Errors
    /// The driver's code: both must have been recorded and be complete.
    pub fn elapsed_since(&self, start: &Self) -> Result<Duration> {
        let milliseconds = self.milliseconds_since(start)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds).max(0.0) / 1e3))
    }

    /// Like [`elapsed_since`](Self::elapsed_since) as the driver returns it, negative if `start` was later: in steps of 2⁻²³ of the time.
    ///
    /// # Errors
    /// Like `elapsed_since`.
    pub fn milliseconds_since(&self, start: &Self) -> Result<f32> {
        let _capture = RelaxedCapture::enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both handles are valid, the out pointer for the call.
        let code = unsafe { ffi::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        check("cuEventElapsedTime", code).map(|()| milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is owned and not used after this; the driver frees it once its work is done.
        record_drop_error(
            self.context.call("cuEventDestroy_v2", || unsafe { ffi::cuEventDestroy_v2(self.raw) }),
        );
    }
}
