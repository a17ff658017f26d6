//! State that a manager shares with its transfers.

use std::sync::{Arc, atomic::AtomicU64};

use transload_core::{Error, Observer, RefusalHandler, Result, TransferEvent, TransferReport};

use crate::{
    Sampling,
    stats::{
        lost::LostDevices,
        unobserved::{UnobservedTransfers, UnreportedFailure},
    },
};

/// Whom every transfer's end concerns.
#[derive(Default)]
pub(crate) struct ManagerContext {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) sampling: Sampling,
    pub(crate) lost: LostDevices,
    pub(crate) refused: AtomicU64,
    /// The first failure that nobody saw, for the next `drain`.
    pub(crate) unreported: UnreportedFailure,
    pub(crate) unobserved: UnobservedTransfers,
}

impl ManagerContext {
    pub(crate) fn tell(&self, event: TransferEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.transfer(event);
        }
    }

    /// Tells the end of a transfer that somebody waited for.
    pub(crate) fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) => self.tell(TransferEvent::Completed(report)),
            Err(error) => {
                self.lost.note(report.lane, error);
                self.tell(TransferEvent::Failed(report, error));
            }
        }
    }
}

impl RefusalHandler for ManagerContext {
    fn refusal_dropped(&self, error: &Error) {
        self.unreported.note(error);
    }
}
