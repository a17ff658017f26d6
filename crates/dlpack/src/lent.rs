//! A loan in a consumer's hands, from the export to the deleter.

use transload_core::Loan;

/// How the memory comes back when the deleter is called.
pub(crate) enum Back {
    /// The consumer is done with it by then.
    AtOnce,
    /// The consumer's work that is in flight by then is on this stream.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    Behind(transload_streams::CudaStream),
}

/// What an exported tensor keeps. Dropped by its deleter, on whichever thread that is called.
pub(crate) struct Lent {
    /// Taken when it ends.
    loan: Option<Loan>,
    back: Back,
}

impl Lent {
    pub(crate) fn new(loan: Loan, back: Back) -> Self {
        Self { loan: Some(loan), back }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(loan) = self.loan.take() else { return };
        if transload_core::mutant!("dlpack/loan-does-not-end") {
            return std::mem::forget(loan);
        }
        match &self.back {
            Back::AtOnce => drop(loan),
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Back::Behind(stream) => crate::cuda::end_after(loan, stream),
        }
    }
}
