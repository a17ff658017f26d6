//! State that a manager shares with its transfers.

use std::sync::{Arc, atomic::AtomicU64};

use transload_core::{Error, Observer, RefusalHandler, Result, TransferEvent, TransferId, TransferReport};

use transload_executor::{BlockingKey, Executor};

use crate::{
    Sampling, report_events,
    stats::{
        lost::LostDevices,
        unobserved::{UnobservedTransfers, UnreportedFailure},
    },
};

/// What every transfer reports to.
pub(crate) struct ManagerContext {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) sampling: Sampling,
    pub(crate) lost: LostDevices,
    pub(crate) refused: AtomicU64,
    /// The first failure not returned to any caller; the next `drain` returns it.
    pub(crate) unreported: UnreportedFailure,
    pub(crate) unobserved: UnobservedTransfers,
    /// Submits for tasks whatever may take their thread long.
    pub(crate) executor: Executor,
    pub(crate) submitting: BlockingKey,
}

/// How many submissions that may block run at once.
const MAX_SUBMITTING: usize = 8;

impl Default for ManagerContext {
    fn default() -> Self {
        Self {
            observer: None,
            sampling: Sampling::default(),
            lost: LostDevices::default(),
            refused: AtomicU64::default(),
            unreported: UnreportedFailure::default(),
            unobserved: UnobservedTransfers::default(),
            executor: Executor::shared(),
            submitting: BlockingKey::new(MAX_SUBMITTING),
        }
    }
}

impl ManagerContext {
    pub(crate) fn tell(&self, event: TransferEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.transfer(event);
        }
    }

    /// Reports the end of a transfer that was waited for.
    pub(crate) fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) => self.tell(TransferEvent::Completed(report)),
            Err(error) => {
                report_events::failed(report, error);
                self.lost.note(report.lane, error);
                self.tell(TransferEvent::Failed(report, error));
            }
        }
    }
}

impl RefusalHandler for ManagerContext {
    fn refusal_dropped(&self, id: Option<TransferId>, error: &Error) {
        self.unreported.note(id, error);
    }
}
