//! The handle of many copies.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use transload_core::{Error, Fence, Result, Transfer, TransferId, TransferReport, TransferState};

use super::{CopyManyError, CopyManyReport, singles::Singles};
use crate::context::ManagerContext;

/// Ends that one poll observes before it lets other tasks run.
const ENDS_A_POLL: usize = 1024;

/// Many copies in progress. They were enqueued when this was created. Dropping it neither cancels them nor waits for them; the memory
/// stays alive until they are complete.
///
/// Works with any async runtime, or none: [`wait`](Self::wait) blocks instead.
#[must_use = "await it to learn whether all bytes are in place"]
pub struct CopyManyTransfer {
    context: Arc<ManagerContext>,
    begun: Instant,
    /// Number of pairs in the list.
    pairs: usize,
    /// Those not observed to be complete.
    running: VecDeque<Running>,
    groups: Vec<GroupEnd>,
    /// The first error, and the pairs that it and later ones are about.
    failed: Option<CopyManyError>,
}

/// A transfer of some of the pairs.
struct Running {
    transfer: Transfer,
    of: Pairs,
}

/// The pairs of a transfer.
pub(super) enum Pairs {
    /// All of the group with this index.
    Group(usize),
    /// One of the group with the first index; the second is its index there.
    One(usize, usize),
    /// Those of the group with the first index from the second on, and of all later groups.
    From(usize, usize),
    /// Those of a list that was refused as a whole.
    Refused(SmallVec<[usize; 2]>),
}

/// What is known of the end of a group.
struct GroupEnd {
    /// Indices of its pairs in the list; `None` if they are the whole list.
    indices: Option<Arc<[usize]>>,
    /// Indices of the list's pairs without bytes, ascending, if its pairs are the whole list.
    empty: Vec<usize>,
    report: Option<TransferReport>,
    /// If its pairs are submitted one by one, and any of its events are wanted.
    singles: Option<Box<Singles>>,
}

impl GroupEnd {
    /// Adds the group's pairs from one on, of a list of `count`.
    fn fail_from(&self, from: usize, count: usize, failed: &mut Vec<usize>) {
        match &self.indices {
            Some(all) => failed.extend(all.iter().skip(from)),
            None => failed.extend((from..count).filter(|pair| self.empty.binary_search(pair).is_err())),
        }
    }
}

impl CopyManyTransfer {
    pub(super) fn new(context: &Arc<ManagerContext>, pairs: usize) -> Self {
        let (running, groups) = (VecDeque::new(), Vec::new());
        Self { context: Arc::clone(context), begun: Instant::now(), pairs, running, groups, failed: None }
    }

    /// Creates the handle of a list that was refused for no fault of a pair.
    pub(super) fn refused(context: &Arc<ManagerContext>, transfer: Transfer) -> Self {
        let mut refused = Self::new(context, 0);
        refused.add(transfer, Pairs::Refused(SmallVec::new()));
        refused
    }

    /// Adds the next group.
    pub(super) fn add_group(&mut self, indices: Option<Arc<[usize]>>) {
        self.groups.push(GroupEnd { indices, empty: Vec::new(), report: None, singles: None });
    }

    /// Adds a group of the whole list, of which these pairs have no bytes.
    pub(super) fn add_whole(&mut self, empty: Vec<usize>) {
        self.groups.push(GroupEnd { indices: None, empty, report: None, singles: None });
    }

    /// Begins to add the pairs of a group one by one, as a transfer of this id.
    pub(super) fn begin_singles(&mut self, group: usize, id: Option<TransferId>) {
        if let (Some(group), Some(id)) = (self.groups.get_mut(group), id) {
            group.singles = Some(Box::new(Singles::new(id)));
        }
    }

    /// Returns the id of the next of these pairs.
    pub(super) fn part_id(&self, group: usize) -> Option<TransferId> {
        Some(self.groups.get(group)?.singles.as_ref()?.part())
    }

    /// Tells that none of these pairs is left.
    pub(super) fn end_singles(&mut self, group: usize) {
        if let Some(singles) = self.groups.get_mut(group).and_then(|group| group.singles.as_mut()) {
            singles.submitted(&self.context);
        }
    }

    fn singles_of(&mut self, of: &Pairs) -> Option<(&mut Singles, &ManagerContext)> {
        let (Pairs::One(group, _) | Pairs::From(group, _)) = of else { return None };
        Some((self.groups.get_mut(*group)?.singles.as_mut()?, &*self.context))
    }

    /// Adds a transfer of some of the pairs.
    pub(super) fn add(&mut self, transfer: Transfer, of: Pairs) {
        if let Some((singles, context)) = self.singles_of(&of) {
            singles.add(&transfer);
            if matches!(of, Pairs::From(..)) {
                // No other comes.
                singles.submitted(context);
            }
        }
        // Those that were made at once are not kept: there may be a million.
        if transfer.fence().is_none() && transfer.state() == TransferState::Complete {
            self.ended(&of, transfer.wait());
        } else {
            self.running.push_back(Running { transfer, of });
        }
    }

    /// Returns the fences of the work that is not observed to be complete: other work that waits for all of them waits for all bytes.
    /// There is one for each path, or for each pair of a path whose pairs are copied one by one; none for what was complete when
    /// this was created. To know when a part of the bytes is in place, such as a layer, submit a list for each part.
    pub fn fences(&self) -> impl Iterator<Item = &Fence> {
        self.running.iter().filter_map(|running| running.transfer.fence())
    }

    /// Returns whether all are complete, successfully or not; never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.running.iter().all(|running| running.transfer.is_complete())
    }

    /// Blocks the calling thread until all are complete.
    ///
    /// # Errors
    /// The first error, with the pairs that it is about.
    pub fn wait(mut self) -> Result<CopyManyReport, CopyManyError> {
        while let Some(Running { transfer, of }) = self.running.pop_front() {
            self.ended(&of, transfer.wait());
        }
        self.end()
    }

    /// Notes the end of a transfer.
    fn ended(&mut self, of: &Pairs, outcome: Result<TransferReport>) {
        if let Some((singles, context)) = self.singles_of(of) {
            singles.ended(outcome.as_ref().err(), context);
        }
        match outcome {
            Ok(report) => self.succeeded(of, report),
            Err(error) => self.failed(of, error),
        }
    }

    fn succeeded(&mut self, of: &Pairs, mut report: TransferReport) {
        let (Pairs::Group(group) | Pairs::One(group, _)) = of else { return };
        let Some(GroupEnd { report: sum, singles, .. }) = self.groups.get_mut(*group) else { return };
        if matches!(of, Pairs::One(..)) {
            (report.chunks, report.predicted) = (1, Duration::ZERO);
            (report.submitting, report.elapsed, report.moving) = (None, None, None);
            report.id = singles.as_ref().map(|singles| singles.id());
        }
        match sum {
            None => *sum = Some(report),
            Some(sum) => {
                sum.bytes = sum.bytes.saturating_add(report.bytes);
                sum.chunks = sum.chunks.saturating_add(report.chunks);
            }
        }
    }

    #[cold]
    fn failed(&mut self, of: &Pairs, error: Error) {
        let failed = self.failed.get_or_insert_with(|| CopyManyError {
            error,
            pairs: Vec::new(),
            is_refused: matches!(of, Pairs::Refused(_)),
        });
        let indices = |group: &usize| self.groups.get(*group).and_then(|group| group.indices.as_deref());
        match of {
            Pairs::One(group, pair) => {
                failed.pairs.push(indices(group).and_then(|all| all.get(*pair).copied()).unwrap_or(*pair));
            }
            Pairs::Refused(refused) => failed.pairs.extend(refused),
            Pairs::From(group, pair) => {
                let first = self.groups.get(*group).map(|group| (group, *pair));
                let later = self.groups.iter().skip(group.saturating_add(1)).map(|group| (group, 0));
                for (group, from) in first.into_iter().chain(later) {
                    group.fail_from(from, self.pairs, &mut failed.pairs);
                }
            }
            Pairs::Group(group) => {
                if let Some(group) = self.groups.get(*group) {
                    group.fail_from(0, self.pairs, &mut failed.pairs);
                }
            }
        }
    }

    fn end(&mut self) -> Result<CopyManyReport, CopyManyError> {
        if let Some(mut failed) = self.failed.take() {
            failed.pairs.sort_unstable();
            return Err(failed);
        }
        let groups: Vec<_> = self.groups.iter_mut().filter_map(|group| group.report.take()).collect();
        let bytes = groups.iter().fold(0, |sum: u64, group| sum.saturating_add(group.bytes));
        Ok(CopyManyReport { pairs: self.pairs, bytes, elapsed: self.begun.elapsed(), groups })
    }
}

impl Future for CopyManyTransfer {
    type Output = Result<CopyManyReport, CopyManyError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for _ in 0..ENDS_A_POLL {
            let Some(Running { transfer, .. }) = self.running.front_mut() else {
                return Poll::Ready(self.end());
            };
            let Poll::Ready(outcome) = Pin::new(transfer).poll(context) else { return Poll::Pending };
            if let Some(Running { of, .. }) = self.running.pop_front() {
                self.ended(&of, outcome);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for CopyManyTransfer {
    /// Keeps an error that was observed and not returned, for the next drain. The running transfers do so themselves.
    fn drop(&mut self) {
        let singles = self.groups.iter_mut().filter_map(|group| group.singles.as_mut());
        singles.for_each(|singles| singles.abandoned(&self.context));
        if let Some(failed) = self.failed.take()
            && !transload_core::mutant!("transfer/many-failure-kept")
        {
            self.context.unreported.note(None, &failed.error);
        }
    }
}

impl fmt::Debug for CopyManyTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyManyTransfer")
            .field("pairs", &self.pairs)
            .field("groups", &self.groups.len())
            .field("transfers", &self.running.len())
            .finish_non_exhaustive()
    }
}
