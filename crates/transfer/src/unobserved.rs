//! Transfers whose handles were dropped before their end was observed, kept until the end is known.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use transload_core::{DeviceId, Error, Fence, Result, TransferReport};

/// Entries that a submission checks: more than it adds, so that the list gets shorter.
const FEW: usize = 4;
/// With fewer entries than this nothing is polled.
const MANY: usize = 64;
/// With more, the driver is polled for one of them each time that the list has grown by so many. A question costs as much as a
/// small copy, and its answer is that of all that share an event.
const POLL_EVERY: usize = 16;

/// A transfer that nobody waits for.
pub(crate) struct Unobserved {
    fence: Fence,
    pub(crate) bytes: u64,
    pub(crate) lane: DeviceId,
}

/// How an unobserved transfer ended.
pub(crate) struct UnobservedEnd {
    pub(crate) transfer: Unobserved,
    /// The time of the movement, if it was measured.
    pub(crate) outcome: Result<Option<Duration>>,
}

/// A list of them. No fence is polled, waited for or dropped under its lock.
#[derive(Default)]
pub(crate) struct UnobservedList {
    /// Entries in the list, so that checking an empty one is a single load.
    waiting: AtomicUsize,
    list: Mutex<List>,
    settled: Condvar,
}

#[derive(Default)]
struct List {
    entries: VecDeque<Unobserved>,
    /// Entries that a thread has removed and not yet settled or put back.
    in_transit: usize,
}

impl Unobserved {
    pub(crate) fn new(report: &TransferReport, fence: &Fence) -> Self {
        Self { fence: fence.clone(), bytes: report.bytes, lane: report.lane }
    }

    fn settled(self, outcome: Result<()>) -> UnobservedEnd {
        let timeline = self.fence.timeline();
        let outcome = outcome.and_then(|()| timeline.take_duration(self.fence.point()));
        UnobservedEnd { transfer: self, outcome }
    }
}

impl UnobservedList {
    /// Keeps the transfer until its end is known. Calls `settle` where that is so at once.
    pub(crate) fn add(&self, transfer: Unobserved, settle: impl Fn(UnobservedEnd)) {
        if transfer.fence.is_known_done() {
            let outcome = transfer.fence.wait();
            return settle(transfer.settled(outcome));
        }
        if transload_core::mutant!("transfer/keeps-unobserved") {
            return;
        }
        let mut list = self.list.lock();
        list.entries.push_back(transfer);
        self.waiting.store(list.entries.len(), Ordering::Release);
        self.check(list, true, settle);
    }

    /// Settles up to four transfers that are known to be over. Polls nothing, and leaves the list to a thread that has it.
    pub(crate) fn check_few(&self, settle: impl Fn(UnobservedEnd)) {
        if self.waiting.load(Ordering::Acquire) > 0
            && let Some(list) = self.list.try_lock()
        {
            self.check(list, false, settle);
        }
    }

    fn check(&self, mut list: MutexGuard<'_, List>, polls: bool, settle: impl Fn(UnobservedEnd)) {
        let mut taken = SmallVec::<[Unobserved; FEW]>::new();
        for _ in 0..FEW.min(list.entries.len()) {
            // What is not over goes to the end: one that takes long hides no others.
            match list.entries.pop_front() {
                Some(over) if over.fence.is_known_done() => taken.push(over),
                Some(open) => list.entries.push_back(open),
                None => {}
            }
        }
        if polls
            && taken.is_empty()
            && list.entries.len() >= MANY
            && (list.entries.len().is_multiple_of(POLL_EVERY)
                || transload_core::mutant!("transfer/polls-seldom"))
        {
            taken.extend(list.entries.pop_front());
        }
        if !taken.is_empty() {
            self.settle(list, taken, false, settle);
        }
    }

    /// Polls every transfer once, and settles those that are over.
    pub(crate) fn check_all(&self, settle: impl Fn(UnobservedEnd)) {
        let mut list = self.list.lock();
        let all = std::mem::take(&mut list.entries);
        self.settle(list, all, false, settle);
    }

    /// Waits for every transfer, and settles it. Returns when none is left, with any thread.
    pub(crate) fn wait_for_all(&self, settle: impl Fn(UnobservedEnd)) {
        loop {
            let mut list = self.list.lock();
            let all = std::mem::take(&mut list.entries);
            if !all.is_empty() {
                self.settle(list, all, true, &settle);
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
        taken: impl IntoIterator<Item = Unobserved, IntoIter: ExactSizeIterator>,
        wait: bool,
        settle: impl Fn(UnobservedEnd),
    ) {
        let taken = taken.into_iter();
        let count = taken.len();
        list.in_transit += count;
        self.waiting.store(list.entries.len(), Ordering::Release);
        drop(list);
        let mut open = SmallVec::<[Unobserved; FEW]>::new();
        for transfer in taken {
            if wait || transfer.fence.is_over() {
                let outcome = transfer.fence.wait();
                settle(transfer.settled(outcome));
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

/// The first failure that nobody saw.
#[derive(Default)]
pub(crate) struct UnseenFailure(Mutex<Option<Error>>);

impl UnseenFailure {
    pub(crate) fn note(&self, error: &Error) {
        if transload_core::mutant!("transfer/notes-unseen") {
            return;
        }
        self.0.lock().get_or_insert_with(|| error.clone());
    }

    /// # Errors
    /// The first one since the last call.
    pub(crate) fn take(&self) -> Result<()> {
        let first = self.0.lock().take();
        first.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place, TransferMethod, TransferPath};

    use super::*;
    use crate::engine_queue::tests::Manual;

    #[test]
    fn long_list_is_polled_for_one_in_so_many_that_are_added_and_gets_short_again() {
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
        let path = TransferPath::new(host, host);
        let report = TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cpu, 64);
        let (timeline, list) = (Manual::new(), UnobservedList::default());
        let settled = std::cell::Cell::new(0);
        let settle = |_end: UnobservedEnd| settled.set(settled.get() + 1);
        for point in 1..=1000 {
            list.check_few(settle);
            list.add(Unobserved::new(&report, &timeline.fence(point)), settle);
        }
        let polls = timeline.polls();
        assert!((1..=1000 / POLL_EVERY as u64).contains(&polls), "{polls} polls for 1000 transfers");
        timeline.reach(1000);
        for point in 1001..=2000 {
            timeline.reach(point);
            list.check_few(settle);
            list.add(Unobserved::new(&report, &timeline.fence(point)), settle);
        }
        let left = list.waiting.load(Ordering::Relaxed);
        assert!(left <= 2 * MANY, "{left} of 2000 are kept though all are over");
        assert_eq!(settled.get() + left, 2000);
    }
}
