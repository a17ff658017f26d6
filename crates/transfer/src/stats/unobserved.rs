//! Transfers whose handles were dropped before their end was observed, tracked until the end is known.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use transload_core::{DeviceId, Error, Fence, Result, TransferId, catch_panic};
use transload_executor::{SHARDS, thread_shard};

use crate::{
    CrossBackendTransferManager, context::ManagerContext, report_events, stats::path_stats::PathStats,
};

/// Entries that a submission checks: more than it adds, so that the list shrinks.
const FEW: usize = 4;
/// Additions to a list after which up to twice as many entries are checked. Checked in a batch they cost submitting
/// threads one transfer of cache lines instead of one each. One incomplete entry is polled, since some ends are found
/// by polling only; a query costs as much as a small copy, and covers all that share an event.
const BATCH: usize = 16;

/// A transfer without a handle.
pub(crate) struct UnobservedTransfer {
    pub(crate) id: Option<TransferId>,
    pub(crate) fence: Fence,
    pub(crate) bytes: u64,
    pub(crate) lane: DeviceId,
    /// Statistics that count it, if any.
    pub(crate) stats: Option<Arc<PathStats>>,
    /// Whether its timeline may know its duration.
    pub(crate) is_timed: bool,
}

/// Per-thread lists. No fence is polled, waited for or dropped under a lock.
pub(crate) struct UnobservedTransfers(Box<[UnobservedList]>);

#[derive(Default)]
#[repr(align(128))]
struct UnobservedList {
    /// Entries in the list, so that checking an empty one is a single load.
    waiting: AtomicUsize,
    list: Mutex<List>,
    settled: Condvar,
}

#[derive(Default)]
struct List {
    entries: Vec<UnobservedTransfer>,
    /// Entries added so far.
    added: usize,
    /// Index of the entry to check next, so that a long transfer does not hide others.
    next: usize,
    /// Entries that a thread has removed and not yet recorded or put back.
    in_transit: usize,
}

impl UnobservedTransfer {
    /// Records its end. A panic of its backend is a failure of this transfer only.
    fn settle(self, context: &ManagerContext) {
        let fence = self.fence;
        let outcome = catch_panic(move || {
            fence.wait()?;
            if self.is_timed { fence.timeline().take_duration(fence.point()) } else { Ok(None) }
        });
        let outcome = outcome.and_then(|outcome| outcome);
        if let Some(stats) = &self.stats {
            stats.count(self.bytes, |counts| match &outcome {
                Ok(moving) => counts.add(self.bytes, *moving),
                Err(_) => counts.failures += 1,
            });
        }
        if let Err(error) = outcome {
            context.lost.note(self.lane, &error);
            context.unreported.note(self.id, &error);
        }
    }
}

impl Default for UnobservedTransfers {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| UnobservedList::default()).collect())
    }
}

impl UnobservedTransfers {
    fn here(&self) -> Option<&UnobservedList> {
        self.0.get(thread_shard())
    }

    /// Tracks the transfer, and counts it when its end is known.
    pub(crate) fn add(&self, transfer: UnobservedTransfer, context: &ManagerContext) {
        match self.here() {
            Some(here) => here.add(transfer, context),
            None => transfer.settle(context),
        }
    }

    /// Counts up to four transfers of this thread that are known to be complete. Polls nothing, and does not wait for
    /// the lock.
    pub(crate) fn check_few(&self, context: &ManagerContext) {
        if let Some(here) = self.here()
            && here.waiting.load(Ordering::Acquire) > 0
            && let Some(list) = here.list.try_lock()
        {
            here.check(list, FEW, context);
        }
    }

    /// Polls every transfer once, and counts those that are complete.
    pub(crate) fn check_all(&self, context: &ManagerContext) {
        for one in &self.0 {
            let mut list = one.list.lock();
            let all = std::mem::take(&mut list.entries);
            one.settle(list, all.into_iter(), false, context);
        }
    }

    /// Waits for every transfer, and counts it. Returns when none is left, with any thread.
    pub(crate) fn wait_for_all(&self, context: &ManagerContext) {
        self.0.iter().for_each(|one| one.wait_for_all(context));
    }
}

impl UnobservedList {
    fn add(&self, transfer: UnobservedTransfer, context: &ManagerContext) {
        if transload_core::mutant!("transfer/keeps-unobserved") {
            return;
        }
        let mut list = self.list.lock();
        list.entries.push(transfer);
        list.added += 1;
        self.waiting.store(list.entries.len(), Ordering::Release);
        if list.added.is_multiple_of(BATCH) || transload_core::mutant!("transfer/polls-seldom") {
            self.check(list, 2 * BATCH - 1, context);
        }
    }

    fn check(&self, mut list: MutexGuard<'_, List>, most: usize, context: &ManagerContext) {
        let mut taken = SmallVec::<[UnobservedTransfer; 2 * BATCH]>::new();
        // After a panic, the next check continues with the next entry.
        let _few_are_checked = catch_panic(|| {
            for _ in 0..most.min(list.entries.len()) {
                let at = if list.next < list.entries.len() { list.next } else { 0 };
                list.next = at + 1;
                if list.entries.get(at).is_some_and(|one| one.fence.is_known_complete()) {
                    taken.push(list.entries.swap_remove(at));
                    list.next = at;
                }
            }
        });
        if most > FEW && !list.entries.is_empty() {
            // Round-robin, despite `swap_remove`.
            let at = list.added / BATCH % list.entries.len();
            taken.push(list.entries.swap_remove(at));
        }
        if !taken.is_empty() {
            self.settle(list, taken.drain(..), false, context);
        }
    }

    fn wait_for_all(&self, context: &ManagerContext) {
        loop {
            let mut list = self.list.lock();
            let all = std::mem::take(&mut list.entries);
            if !all.is_empty() {
                self.settle(list, all.into_iter(), true, context);
            } else if list.in_transit > 0 {
                self.settled.wait(&mut list);
            } else {
                return;
            }
        }
    }

    fn settle(
        &self,
        mut list: MutexGuard<'_, List>,
        taken: impl ExactSizeIterator<Item = UnobservedTransfer>,
        wait: bool,
        context: &ManagerContext,
    ) {
        let count = taken.len();
        list.in_transit += count;
        self.waiting.store(list.entries.len(), Ordering::Release);
        drop(list);
        let mut open = SmallVec::<[UnobservedTransfer; FEW]>::new();
        for transfer in taken {
            // One whose poll panics is waited for later.
            if wait || catch_panic(|| transfer.fence.is_complete()).unwrap_or(false) {
                transfer.settle(context);
            } else {
                open.push(transfer);
            }
        }
        let mut list = self.list.lock();
        list.entries.extend(open);
        list.in_transit -= count;
        self.waiting.store(list.entries.len(), Ordering::Release);
        drop(list);
        self.settled.notify_all();
    }
}

/// The first failure not returned to any caller, and how many came after it.
#[derive(Default)]
pub(crate) struct UnreportedFailure(Mutex<Option<(Error, usize)>>);

impl UnreportedFailure {
    pub(crate) fn note(&self, id: Option<TransferId>, error: &Error) {
        report_events::unobserved(id, error);
        if transload_core::mutant!("transfer/notes-unseen") {
            return;
        }
        self.keep(error.clone());
    }

    pub(crate) fn keep(&self, error: Error) {
        let mut first = self.0.lock();
        match &mut *first {
            Some((_, more)) => *more += 1,
            None => *first = Some((error, 0)),
        }
    }

    /// # Errors
    /// The first one since the last call, with their number if there were more.
    pub(crate) fn take(&self) -> Result<()> {
        let first = self.0.lock().take();
        match first {
            None => Ok(()),
            Some((error, more)) => {
                let text = match more {
                    0 => "an earlier failure that no caller was told".to_owned(),
                    _ => format!("the first of {} earlier failures that no caller was told", more + 1),
                };
                Err(Error::caused_by(error.kind(), text, error))
            }
        }
    }
}

impl CrossBackendTransferManager {
    /// Keeps the error of a [`drain`](Self::drain) whose caller is gone, for the next one. Only the first error since the last drain is
    /// kept; further ones are counted.
    pub fn keep_failure(&self, error: Error) {
        self.context.unreported.keep(error);
    }
}

#[cfg(test)]
mod tests {
    use transload_core::ErrorKind;

    use super::*;
    use crate::planning::engine_queue::tests::Manual;

    #[test]
    fn first_kept_failure_is_returned_with_their_number() {
        let kept = UnreportedFailure::default();
        for kind in [ErrorKind::Busy, ErrorKind::DeviceLost, ErrorKind::Io] {
            kept.keep(Error::new(kind, format!("a {kind:?}")));
        }
        let error = kept.take().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let text = error.to_string();
        assert!(text.contains("first of 3 earlier failures") && text.contains("a Busy"), "{text}");
        kept.take().unwrap();
    }

    #[test]
    fn polled_end_is_found_next_to_known_ones() {
        let (quiet, known, context) = (Manual::new(), Manual::new(), ManagerContext::default());
        let drop_one = |fence| {
            context.unobserved.add(
                UnobservedTransfer {
                    id: None,
                    fence,
                    bytes: 64,
                    lane: DeviceId::Cpu,
                    stats: None,
                    is_timed: false,
                },
                &context,
            );
        };
        // Three that stay, so that a poll in vain goes on to the next.
        let open = Manual::new();
        (1..=3).for_each(|point| drop_one(open.fence(point)));
        drop_one(quiet.fence(1));
        quiet.reach(1);
        known.reach(u64::MAX);
        assert!(known.fence(u64::MAX).is_complete());
        (1..=10 * BATCH as u64).for_each(|point| drop_one(known.fence(point)));
        assert_eq!(Arc::strong_count(&quiet), 1, "kept though it is over");
        open.reach(3);
        context.unobserved.check_all(&context);
        assert_eq!(Arc::strong_count(&open), 1);
    }

    #[test]
    fn long_list_is_polled_once_per_batch_and_shrinks() {
        let (timeline, context) = (Manual::new(), ManagerContext::default());
        let drop_one = |point| {
            context.unobserved.check_few(&context);
            let fence = timeline.fence(point);
            context.unobserved.add(
                UnobservedTransfer {
                    id: None,
                    fence,
                    bytes: 64,
                    lane: DeviceId::Cpu,
                    stats: None,
                    is_timed: false,
                },
                &context,
            );
        };
        (1..=1000).for_each(drop_one);
        let polls = timeline.polls();
        assert!((1..=1000 / BATCH as u64).contains(&polls), "{polls} polls for 1000 transfers");
        assert_eq!(Arc::strong_count(&timeline), 1001, "none is over, and all are kept");
        timeline.reach(1000);
        for point in 1001..=2000 {
            timeline.reach(point);
            drop_one(point);
        }
        let left = Arc::strong_count(&timeline) - 1;
        assert!(left <= 4 * BATCH, "{left} of 2000 are kept though all are over");
        context.unobserved.wait_for_all(&context);
        assert_eq!(Arc::strong_count(&timeline), 1);
    }
}
