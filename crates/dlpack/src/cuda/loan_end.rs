//! The end of a loan behind the consumer's stream, at once or as soon as it can be told.

use parking_lot::Mutex;
use transload_core::{ErrorKind, Loan};
use transload_streams::CudaStream;

/// Loans whose consumer is done, on streams that someone captures just now: nothing can tell the end of such work before the
/// capture ends.
static PENDING: Mutex<Vec<(Loan, CudaStream)>> = Mutex::new(Vec::new());

/// Ends a loan behind everything enqueued on the stream so far. Does not wait.
pub(crate) fn end_after_stream(loan: Loan, stream: &CudaStream) {
    match stream.fence() {
        Ok(_) if transload_core::mutant!("dlpack/loan-ends-after-consumer") => drop(loan),
        // SAFETY: the stream was put behind the work before the loan when it was made, or the host had waited for that, and
        // what the consumer still has in flight is on it.
        Ok(fence) => unsafe { loan.end_after(&fence) },
        // Nothing runs there any more.
        Err(error) if error.kind() == ErrorKind::DeviceLost => drop(loan),
        Err(_) => PENDING.lock().push((loan, stream.clone())),
    }
}

/// Tries again what could not be ended.
pub(crate) fn retry_pending_ends() {
    let pending = std::mem::take(&mut *PENDING.lock());
    for (loan, stream) in pending {
        end_after_stream(loan, &stream);
    }
}
