//! Keeps this library's calls from invalidating another user's stream capture.

use crate::{Result, check, driver::code, ffi, record_drop_error};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls never invalidate a capture.
const RELAXED: u32 = 2;

/// A guard: while it lives, calls of this thread that a capture in *global* mode forbids (allocating, freeing, querying
/// events) do not invalidate captures of other threads.
///
/// Handles of this crate use it where needed. On driver 580, while another thread captures in global mode, querying or
/// synchronising an event or a stream without it returns error 900 and invalidates the capture.
///
/// Source: `cuThreadExchangeStreamCaptureMode` in the CUDA driver API.
#[must_use = "the mode is exchanged back when this is dropped"]
#[derive(Debug)]
pub struct RelaxedCapture {
    before: u32,
    /// The mode is per thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Switches the calling thread to relaxed capture mode.
    ///
    /// # Errors
    /// The driver's code.
    #[inline]
    pub fn enter() -> Result<Self> {
        Ok(Self { before: exchange(RELAXED)?, not_send: std::marker::PhantomData })
    }
}

#[inline]
fn exchange(mut mode: u32) -> Result<u32> {
    // SAFETY: the pointer is valid for the call; the driver reads the new mode and stores the old one.
    check("cuThreadExchangeStreamCaptureMode", unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
    Ok(mode)
}

/// Runs one driver call in relaxed capture mode, without a guard's cost. Returns the code of the call, or of the
/// exchange before it; an error of the exchange back is recorded. The call must not unwind, or the mode would stay
/// exchanged; driver calls do not.
#[inline(always)]
pub fn relaxed(call: impl FnOnce() -> u32) -> u32 {
    let mut before = RELAXED;
    // SAFETY: the pointer is valid for the call.
    let entered = unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut before) };
    if entered != code::SUCCESS {
        return entered;
    }
    let answer = call();
    // SAFETY: as above.
    let left = unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut before) };
    if left != code::SUCCESS {
        record_drop_error(check("cuThreadExchangeStreamCaptureMode", left));
    }
    answer
}

impl Drop for RelaxedCapture {
    #[inline]
    fn drop(&mut self) {
        // Check inline: a function call would add cost to every short driver call.
        if let Err(error) = exchange(self.before) {
            record_drop_error(Err(error));
        }
    }
}
