//! The loan of an exported buffer, which the deleter ends.

use transload_core::Loan;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
use transload_core::events::report;

/// When the loan ends, once the deleter is called.
pub(crate) enum ReturnMode {
    /// At once: the consumer's work is complete.
    Immediate,
    /// After the work that the consumer has enqueued on this stream by then.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    AfterStream(transload_streams::CudaStream),
}

/// Context of an exported tensor. Its deleter drops it, on any thread.
pub(crate) struct ExportedLoan {
    /// `None` once ended.
    loan: Option<Loan>,
    return_mode: ReturnMode,
}

impl ExportedLoan {
    pub(crate) fn new(loan: Loan, return_mode: ReturnMode) -> Self {
        Self { loan: Some(loan), return_mode }
    }
}

impl Drop for ExportedLoan {
    fn drop(&mut self) {
        let Some(loan) = self.loan.take() else { return };
        if transload_core::mutant!("dlpack/loan-does-not-end") {
            return std::mem::forget(loan);
        }
        match &self.return_mode {
            ReturnMode::Immediate => drop(loan),
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            ReturnMode::AfterStream(_) if transload_core::mutant!("dlpack/loan-ends-after-consumer") => {
                drop(loan)
            }
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            ReturnMode::AfterStream(stream) => {
                if let Err(error) = stream.end_loan(loan) {
                    report::call_failed("a loan ends later", stream.device(), &error);
                }
            }
        }
    }
}
