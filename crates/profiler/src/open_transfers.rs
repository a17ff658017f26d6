//! Transfers from their submission to their end, also those whose handles were dropped.

use std::collections::BTreeMap;

use transload_core::{Fence, TransferId, TransferMethod, TransferReport};

use crate::inbox::TransferEnd;

/// Driver queries of one collection; the oldest transfers come first.
const QUERIES: usize = 256;
/// Collections after which operations of a transfer that was not taken are forgotten.
const FORGOTTEN_AFTER: u32 = 200;

/// A transfer that ended. Times are nanoseconds since the profiler was made.
pub(crate) struct EndedTransfer {
    pub(crate) report: TransferReport,
    pub(crate) begun: i64,
    pub(crate) end: i64,
    /// When the end was seen.
    pub(crate) seen: i64,
    pub(crate) is_failed: bool,
    /// Whether its handle was dropped before.
    pub(crate) is_dropped: bool,
}

#[derive(Default)]
struct OpenTransfer {
    submitted: Option<(TransferReport, i64, Option<Fence>)>,
    /// Operations whose times are not known yet.
    operations: u32,
    /// The last known end of an operation.
    operated: Option<i64>,
    /// When it was last seen incomplete.
    incomplete: i64,
    /// When it was first seen complete.
    complete: Option<i64>,
    is_failed: bool,
    is_dropped: bool,
    /// Collections since it was complete, or without a submission.
    idle: u32,
}

#[derive(Default)]
pub(crate) struct OpenTransfers {
    /// The oldest first.
    open: BTreeMap<u64, OpenTransfer>,
}

impl OpenTransfers {
    /// Returns how many were submitted and have not ended.
    pub(crate) fn count(&self) -> u64 {
        self.open.values().filter(|open| open.submitted.is_some()).count() as u64
    }

    /// Takes a submission; `false` if there are `most` transfers already.
    pub(crate) fn submitted(
        &mut self,
        report: TransferReport,
        begun: i64,
        end: Option<Fence>,
        most: usize,
    ) -> bool {
        let Some(id) = report.id else { return true };
        if self.open.len() >= most && !self.open.contains_key(&id.get()) {
            return false;
        }
        let open = self.open.entry(id.get()).or_default();
        let took = report.submitting.map_or(0, |took| i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
        let enqueued = begun.saturating_add(took);
        // A short one may be complete before the call that submits it returns.
        (open.incomplete, open.idle) = (begun, 0);
        if end.is_none() {
            open.complete = Some(enqueued);
        }
        open.submitted = Some((report, begun, end));
        true
    }

    /// Takes an operation of a transfer, which may come before the submission.
    pub(crate) fn enqueued(&mut self, id: Option<TransferId>, most: usize) {
        let Some(id) = id else { return };
        if self.open.len() < most || self.open.contains_key(&id.get()) {
            let open = self.open.entry(id.get()).or_default();
            (open.operations, open.idle) = (open.operations + 1, 0);
        }
    }

    /// Takes the end of an operation, if it is known.
    pub(crate) fn operated(&mut self, id: Option<TransferId>, end: Option<i64>) {
        if let Some(open) = id.and_then(|id| self.open.get_mut(&id.get())) {
            open.operations = open.operations.saturating_sub(1);
            open.operated = open.operated.max(end);
        }
    }

    /// Takes what the transfer's submitter saw.
    pub(crate) fn observed(&mut self, id: Option<TransferId>, end: TransferEnd, at: i64) {
        let Some(open) = id.and_then(|id| self.open.get_mut(&id.get())) else { return };
        match end {
            TransferEnd::Abandoned => open.is_dropped = true,
            TransferEnd::Completed | TransferEnd::Failed => {
                open.is_failed = end == TransferEnd::Failed;
                // A collection may have looked at the clock later.
                open.complete = Some(open.complete.map_or(at, |seen| seen.min(at)));
            }
        }
    }

    /// Returns those that ended and have no outstanding operation. One collection later than they were seen complete, since the records of their
    /// operations may come a little later; at once if it is the `last`.
    pub(crate) fn ended(&mut self, now: impl Fn() -> i64, last: bool) -> Vec<EndedTransfer> {
        let mut queries = if last { usize::MAX } else { QUERIES };
        self.open.values_mut().for_each(|open| open.look(&now, &mut queries));
        let is_over = |open: &OpenTransfer| match (&open.submitted, open.complete) {
            (Some(_), Some(_)) => open.operations == 0 && (last || open.idle > 1),
            (Some(_), None) => false,
            (None, _) => open.operations == 0 && open.idle > FORGOTTEN_AFTER,
        };
        self.open.extract_if(.., |_, open| is_over(open)).filter_map(|(_, open)| open.end()).collect()
    }
}

impl OpenTransfer {
    fn look(&mut self, now: impl Fn() -> i64, queries: &mut usize) {
        self.idle = self.idle.saturating_add(1);
        let (Some((_, _, Some(fence))), None) = (&self.submitted, self.complete) else { return };
        if !fence.is_known_complete() {
            if *queries == 0 {
                return;
            }
            *queries -= 1;
        }
        // It ends after this if it is found incomplete, and has ended before `now` if it is found complete.
        let before = now();
        match fence.poll() {
            Ok(false) => {
                self.incomplete = self.incomplete.max(before);
                self.idle = 0;
                return;
            }
            Ok(true) => {}
            Err(_) => self.is_failed = true,
        }
        if !transload_core::mutant!("profiler/dropped-handles") {
            (self.complete, self.idle) = (Some(now()), 1);
        }
    }

    /// Its end is that of its last operation, unless it was seen incomplete after that, some operation was not timed, or threads of the host copy what a
    /// staged download brought: then when it was seen complete.
    fn end(self) -> Option<EndedTransfer> {
        let Self { submitted, operated, incomplete, complete, is_failed, is_dropped, .. } = self;
        let ((report, begun, _), seen) = submitted.zip(complete)?;
        let seen = seen.max(begun);
        let ends_by_host = report.method == TransferMethod::HostStaged && report.path.dst.device.is_cpu();
        let is_end = |end: &i64| !ends_by_host && (incomplete..=seen).contains(end);
        let end = operated.filter(is_end).unwrap_or(seen);
        Some(EndedTransfer { report, begun, end: end.max(begun), seen, is_failed, is_dropped })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use transload_backend_cpu::CpuBackend;
    use transload_core::{
        Backend, DeviceId, MemoryKind, Place, StreamPriority, TransferPath, Wanted, WorkloadType,
    };

    use super::*;

    fn report() -> TransferReport {
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let path = TransferPath::new(host, host);
        let mut report = TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cpu, 1);
        (report.id, report.submitting) =
            (TransferId::if_wanted(Wanted::Times), Some(Duration::from_nanos(300)));
        report
    }

    #[test]
    fn transfer_that_ends_during_a_collection_ends_with_its_last_operation() {
        let (report, mut open) = (report(), OpenTransfers::default());
        let backend = CpuBackend::new().unwrap();
        let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let complete = Fence::new(Arc::clone(queue.timeline()), 0);
        let id = report.id;
        open.enqueued(id, 8);
        assert!(open.submitted(report, 100, Some(complete), 8));
        // The clock goes on between the begin of a collection, at 120, and the look at the fence.
        let times = std::cell::Cell::new(120);
        let mut collected = open.ended(|| times.replace(times.get() + 300), false);
        assert!(collected.is_empty());
        open.operated(id, Some(300));
        collected = open.ended(|| 1000, true);
        assert_eq!(collected.pop().map(|ended| (ended.end, ended.seen)), Some((300, 420)));
    }

    /// Returns the end of a transfer by a method that was submitted from 100 to 400 ns, whose operation ended at `operated`, and which was seen
    /// complete at 900.
    fn end_of(method: TransferMethod, operated: i64) -> i64 {
        let mut report = report();
        report.method = method;
        let (id, mut open) = (report.id, OpenTransfers::default());
        open.enqueued(id, 8);
        assert!(open.submitted(report, 100, None, 8));
        open.operated(id, Some(operated));
        open.open.values_mut().for_each(|open| open.complete = Some(900));
        open.ended(|| 1000, true).pop().unwrap_or_else(|| unreachable!("it ended")).end
    }

    /// A collection looks at the fence, and at the clock a little later.
    #[test]
    fn transfer_that_is_seen_complete_twice_ends_when_it_was_seen_first() {
        let (report, mut open) = (report(), OpenTransfers::default());
        let (id, backend) = (report.id, CpuBackend::new().unwrap());
        let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let complete = Fence::new(Arc::clone(queue.timeline()), 0);
        assert!(open.submitted(report, 100, Some(complete), 8));
        assert!(open.ended(|| 900, false).is_empty());
        open.observed(id, TransferEnd::Completed, 500);
        let ended = open.ended(|| 1000, true).pop();
        assert_eq!(ended.map(|ended| (ended.end, ended.seen)), Some((500, 500)));
    }

    #[test]
    fn transfer_ends_with_its_last_operation_also_within_its_submission() {
        let end_of = |operated| end_of(TransferMethod::DirectCopy, operated);
        assert_eq!([150, 500].map(end_of), [150, 500]);
        // Clocks are off.
        assert_eq!([50, 1500].map(end_of), [900, 900]);
    }

    #[test]
    fn staged_download_ends_with_the_copies_of_the_host() {
        assert_eq!(end_of(TransferMethod::HostStaged, 500), 900);
    }
}
