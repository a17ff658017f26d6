//! Uses of buffers by work that other code enqueues on a stream.

use parking_lot::Mutex;
use transload_core::{Access, ErrorKind, Loan, RawBuffer, Result};

use crate::CudaStream;

/// Loans whose users' stream was being captured when they ended: a fence can be taken only after the capture.
static PENDING: Mutex<Vec<(Loan, CudaStream)>> = Mutex::new(Vec::new());

/// A use of a buffer by work that other code enqueues on a stream, such as launches through its raw handle; see
/// [`CudaStream::use_buffer`]. Dropping it ends the use like [`end`](Self::end), and loses the error.
#[derive(Debug)]
#[must_use = "the use ends when this is dropped"]
pub struct StreamUse {
    /// Taken at the end.
    loan: Option<Loan>,
    stream: CudaStream,
}

impl CudaStream {
    /// Begins a use of a buffer by work that the caller enqueues on this stream until the use ends: that work comes after all earlier
    /// work on the buffer, and later work on the buffer comes after it. Does not wait, except for work of other backends, which the
    /// stream cannot wait for by itself. Meanwhile conflicting operations and host views return `Busy`.
    ///
    /// Work that the caller enqueues on other streams is not covered.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a conflicting host view or loan is open, and while this stream is being captured;
    /// [`ErrorKind::InvalidArgument`] for writing to memory that is not writable; the driver's.
    pub fn use_buffer(&self, buffer: &RawBuffer, access: Access) -> Result<StreamUse> {
        Self::retry_loan_ends();
        self.own.check_not_captured()?;
        if access == Access::Write && !buffer.is_writable() {
            let text = format!("{buffer:?} is not writable");
            return Err(transload_core::Error::new(ErrorKind::InvalidArgument, text));
        }
        let loan = buffer.lend(access)?;
        self.wait_fences(loan.after())?;
        // Work of the handle's users is not counted by the stream.
        self.own.share();
        Ok(StreamUse { loan: Some(loan), stream: self.clone() })
    }

    /// Ends a loan after all work enqueued on this stream so far, also through the raw handle. Does not wait. During a capture of the
    /// stream the loan stays, until the capture is over and another loan is begun or ended, or
    /// [`retry_loan_ends`](Self::retry_loan_ends) is called.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] during a capture; the driver's.
    pub fn end_loan(&self, mut loan: Loan) -> Result<()> {
        match self.fence() {
            Ok(fence) => {
                loan.end_after(&[fence]);
                Ok(())
            }
            // No work runs on a lost device.
            Err(error) if error.kind() == ErrorKind::DeviceLost => Err(error),
            Err(error) => {
                PENDING.lock().push((loan, self.clone()));
                Err(error)
            }
        }
    }

    /// Ends the loans that could not be ended during a capture that is over now.
    pub fn retry_loan_ends() {
        let pending = std::mem::take(&mut *PENDING.lock());
        for (loan, stream) in pending {
            let _stays_if_it_fails = stream.end_loan(loan);
        }
    }
}

impl StreamUse {
    /// Ends the use after everything enqueued on the stream so far.
    ///
    /// # Errors
    /// As for [`CudaStream::end_loan`].
    pub fn end(mut self) -> Result<()> {
        self.loan.take().map_or(Ok(()), |loan| self.stream.end_loan(loan))
    }
}

impl Drop for StreamUse {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            let _stays_if_it_fails = self.stream.end_loan(loan);
        }
    }
}
