//! Keeps calls of ours from invalidating a graph that someone else is capturing.

use crate::{Result, check, driver::code, ffi, record_drop_error};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls never invalidate a capture.
const RELAXED: u32 = 2;

/// While it lives, driver calls of this thread that a capture in *global* mode forbids (allocating, freeing, asking
/// events) leave the captures of other threads valid.
///
/// The handles of this crate enter it by themselves where the driver needs it. Seen on driver 580: while another thread
/// captures in global mode, asking or synchronising an event or a stream answers 900 without it, and destroys the capture.
///
/// Source: `cuThreadExchangeStreamCaptureMode` in the CUDA driver API.
#[must_use = "the mode is exchanged back when this is dropped"]
#[derive(Debug)]
pub struct RelaxedCapture {
    before: u32,
    /// The mode belongs to a thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Exchanges the calling thread's capture mode.
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

/// As a [`RelaxedCapture`] around one driver call, for calls so short that it shows what is around them. Answers the call's
/// code, or that of the exchange before it; an error of the exchange back is recorded. The call must not unwind, as no call of
/// the driver does: the mode would stay exchanged.
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
        // Looked at here: the call would be one more on the way of every short call of the driver's.
        if let Err(error) = exchange(self.before) {
            record_drop_error(Err(error));
        }
    }
}
