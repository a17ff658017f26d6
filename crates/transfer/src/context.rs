//! State that a manager shares with its transfers.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use transload_core::{
    DeviceId, Error, Observer, RefusalHandler, Result, TimelineId, TransferEvent, TransferId, TransferReport,
    Wanted,
};
use transload_executor::{BlockingKey, Executor};

use crate::{
    Sampling,
    methods::DeviceScratch,
    planning::costs::Costs,
    report_events,
    stats::{
        lost::LostDevices,
        unobserved::{UnobservedTransfers, UnreportedFailure},
    },
};

/// What every transfer reports to.
pub(crate) struct ManagerContext {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) sampling: Sampling,
    pub(crate) costs: Costs,
    /// Whether transfers refine the costs.
    pub(crate) refines: bool,
    /// Whether the second best method is tried now and then. Only if they do.
    pub(crate) explores: bool,
    /// Whether memory that is staged repeatedly is registered.
    pub(crate) registers: bool,
    /// Whether a calibration runs.
    pub(crate) calibrating: AtomicBool,
    pub(crate) lost: LostDevices,
    pub(crate) refused: AtomicU64,
    /// The first failure not returned to any caller; the next `drain` returns it.
    pub(crate) unreported: UnreportedFailure,
    pub(crate) unobserved: UnobservedTransfers,
    /// Device memory that lists and casts go through.
    pub(crate) scratch: Arc<DeviceScratch>,
    /// Submits for tasks whatever may take their thread long.
    pub(crate) executor: Executor,
    pub(crate) submitting: SubmissionKeys,
    /// For calls of code above the manager.
    pub(crate) calls: BlockingKey,
}

/// How many submissions to a lane that may block run at once.
const MAX_SUBMITTING: usize = 8;

/// How many calls of code above the manager run at once.
const MAX_CALLS: usize = 8;

/// Where a submission that may block goes. Those to one place do not hold up those to another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmissionTarget {
    /// A leased queue of a device.
    Lane(DeviceId),
    /// A queue of a caller's, whatever it has to do first.
    Queue(TimelineId),
}

/// The keys of the submissions that may block, while there are any.
#[derive(Default)]
pub(crate) struct SubmissionKeys(Mutex<Vec<(SubmissionTarget, Weak<BlockingKey>)>>);

impl SubmissionKeys {
    /// Returns the key of a target. It lives as long as a submission holds it.
    pub(crate) fn key(&self, target: SubmissionTarget) -> Arc<BlockingKey> {
        let mut keys = self.0.lock();
        keys.retain(|(_, key)| key.strong_count() > 0);
        let found = keys.iter().find(|(other, _)| *other == target).and_then(|(_, key)| key.upgrade());
        found.unwrap_or_else(|| {
            let most = match target {
                SubmissionTarget::Lane(_) => MAX_SUBMITTING,
                // The stream does them one after another.
                SubmissionTarget::Queue(_) => 1,
            };
            let key = Arc::new(BlockingKey::new(most));
            keys.push((target, Arc::downgrade(&key)));
            key
        })
    }
}

impl Default for ManagerContext {
    fn default() -> Self {
        Self {
            observer: None,
            sampling: Sampling::default(),
            costs: Costs::default(),
            refines: true,
            explores: true,
            registers: true,
            lost: LostDevices::default(),
            calibrating: AtomicBool::new(false),
            refused: AtomicU64::default(),
            unreported: UnreportedFailure::default(),
            unobserved: UnobservedTransfers::default(),
            scratch: Arc::default(),
            executor: Executor::shared(),
            submitting: SubmissionKeys::default(),
            calls: BlockingKey::new(MAX_CALLS),
        }
    }
}

impl ManagerContext {
    /// Returns an id for the calling thread's next transfer, of so many bytes, if anybody wants its events.
    #[inline]
    pub(crate) fn transfer_id(&self, bytes: u64) -> Option<TransferId> {
        TransferId::if_wanted(
            self.observer.as_ref().map_or(Wanted::Failure, |observer| observer.wants(bytes)),
        )
    }

    /// Counts and reports what was refused before anything was enqueued.
    pub(crate) fn refused(&self, id: Option<TransferId>, error: &Error) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        report_events::refused(id, error);
    }

    pub(crate) fn tell(&self, event: TransferEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.transfer(event);
        }
    }

    /// Reports the end of a transfer that was waited for.
    pub(crate) fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) if is_observed(report.id) => self.tell(TransferEvent::Completed(report)),
            Ok(()) => {}
            Err(error) => {
                // The whole fails with its parts.
                let is_part = report.id.is_some_and(TransferId::is_part);
                if !is_part {
                    report_events::failed(report, error);
                }
                self.lost.note(report.lane, error);
                if !is_part {
                    self.tell(TransferEvent::Failed(report, error));
                }
            }
        }
    }
}

impl RefusalHandler for ManagerContext {
    fn refusal_dropped(&self, id: Option<TransferId>, error: &Error) {
        self.unreported.note(id, error);
    }
}

/// Returns whether the observer takes the events of the transfer with this id.
#[inline]
pub(crate) fn is_observed(id: Option<TransferId>) -> bool {
    id.is_some_and(TransferId::is_observed)
}
