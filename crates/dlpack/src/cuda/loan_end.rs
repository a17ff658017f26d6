//! Ends loans after the consumer's work, once its stream allows a fence.

use parking_lot::Mutex;
use transload_core::{ErrorKind, Loan};
use transload_streams::CudaStream;

/// Loans that the consumer returned while its stream was being captured: a fence can be taken only after the capture.
static PENDING: Mutex<Vec<(Loan, CudaStream)>> = Mutex::new(Vec::new());

/// Ends a loan after all work enqueued on the stream so far. Does not wait.
pub(crate) fn end_after_stream(loan: Loan, stream: &CudaStream) {
    match stream.fence() {
        Ok(_) if transload_core::mutant!("dlpack/loan-ends-after-consumer") => drop(loan),
        // SAFETY: when the loan was made, the stream or the host waited for earlier work, and what the consumer still
        // has in flight is on the stream.
        Ok(fence) => unsafe { loan.end_after(&fence) },
        // No work runs on a lost device.
        Err(error) if error.kind() == ErrorKind::DeviceLost => drop(loan),
        Err(_) => PENDING.lock().push((loan, stream.clone())),
    }
}

/// Retries the loans that could not be ended.
pub(crate) fn retry_pending_ends() {
    let pending = std::mem::take(&mut *PENDING.lock());
    for (loan, stream) in pending {
        end_after_stream(loan, &stream);
    }
}
