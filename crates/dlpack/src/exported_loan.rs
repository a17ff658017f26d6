//! A loan in a consumer's hands, from the export to the deleter.

use transload_core::Loan;

/// How the memory comes return_mode when the deleter is called.
pub(crate) enum ReturnMode {
    /// The consumer is done with it by then.
    Immediate,
    /// The consumer's work that is in flight by then is on this stream.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    AfterStream(transload_streams::CudaStream),
}

/// What an exported tensor keeps. Dropped by its deleter, on whichever thread that is called.
pub(crate) struct ExportedLoan {
    /// Taken when it ends.
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
            ReturnMode::AfterStream(stream) => crate::cuda::end_after_stream(loan, stream),
        }
    }
}
