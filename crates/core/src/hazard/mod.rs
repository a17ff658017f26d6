//! Tracks the uses of each allocation's bytes: what an operation must wait for.
//!
//! Each operation *claims* the ranges that it uses before it is enqueued, and *commits* its fence afterwards.
//! Claims on several allocations are made in the order of their ids, and a waiting thread holds none, so
//! submitters cannot deadlock. The table's lock is never held across a call into a backend, but a short copy
//! by the host may run under it.

mod collect;
mod commit;
mod commit_list;
mod dependencies;
mod held_ranges;
mod hold_kind;
mod list_ranges;
mod list_uses;
pub(crate) mod mark;
mod outcomes;
mod request;
mod segments;
mod steps;
mod table;
mod turns;
mod uses;
mod views;
mod wait;
mod wake_list;

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::{
    Fence, Result,
    sync::spin_lock::{Notify, SpinLock, SpinLockGuard},
};

use collect::{FoundWrites, Scan};
pub(crate) use commit::Retained;
use commit::{Effect, NewUse};
pub(crate) use dependencies::Dependencies;
use held_ranges::Conflict;
pub(crate) use hold_kind::in_flight;
use hold_kind::{HoldKind, busy};
use list_ranges::ListRanges;
use list_uses::OpenLists;
pub use request::Access;
pub(crate) use request::{Attempt, Blocker, ClaimRequest, Claimed, EarlierWork};
#[cfg(test)]
#[allow(unused_imports, reason = "tests/steps includes this file")]
pub(crate) use steps::counted;
pub(crate) use table::Ticket;
use table::{Blocked, STEPS_PER_LOCK, Table};
pub(crate) use turns::TurnId;
use uses::Removed;
pub(crate) use views::Opening;
pub(crate) use wake_list::{WakeList, wake};

/// Groups of more ranges are held as one list.
const FEW: usize = 4;

/// The uses of one allocation that are not known to be complete.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hazards {
    table: SpinLock<Table>,
    /// Notified when a claim or view ends and a thread waits for that.
    resolved: Notify,
}

impl Hazards {
    /// Creates a table with work in flight on the range.
    pub(crate) fn with_fences(range: Range<usize>, fences: &[Fence]) -> Self {
        Self { table: SpinLock::new(Table::with_fences(range, fences)), resolved: Notify::default() }
    }

    /// Resets the table for a new buffer, if all uses are known to be complete. Returns whether they are.
    /// Takes no lock, but drops fences.
    #[inline]
    pub(crate) fn renew(&mut self) -> bool {
        self.table.get_mut().renew()
    }

    /// Claims the ranges of one allocation for an operation about to be enqueued, and collects the fences
    /// that it must wait for. Fences of the operation's own timeline are left out: its queue runs in order.
    /// If a range is blocked, returns by what; ranges with a ticket are claimed, and the caller withdraws
    /// them.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) if a conflicting host view or loan is open, and
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if a range to be read was damaged. Ranges with a
    /// ticket are claimed then, too.
    #[inline]
    pub(crate) fn claim(
        &self,
        group: &mut [Claimed<'_>],
        request: &ClaimRequest<'_>,
        before: &mut Option<EarlierWork>,
    ) -> Result<Attempt<()>> {
        let mut table = self.table.lock();
        if let ([one], false) = (&mut *group, request.inherits)
            && table.is_free(&one.range, one.access, request.own)
        {
            one.ticket = Some(table.hold(&one.range, one.access, HoldKind::Pending));
            return Ok(Attempt::Held(()));
        }
        self.claim_slow(table, group, request, before)
    }

    #[inline(never)]
    fn claim_slow<'t>(
        &'t self,
        mut table: SpinLockGuard<'t, Table>,
        group: &mut [Claimed<'_>],
        request: &ClaimRequest<'_>,
        before: &mut Option<EarlierWork>,
    ) -> Result<Attempt<()>> {
        // Dropped after the lock is released, and so is the table before an early return.
        let (mut removed, mut read, mut kept) =
            (Removed::default(), FoundWrites::default(), FoundWrites::default());
        let before = before.get_or_insert_default();
        let held = if group.len() <= FEW {
            table.hold_all(group, request.turn, &mut removed)
        } else {
            drop(table);
            let held = self.hold_list(group, request.turn, &mut removed);
            table = self.table.lock();
            held
        };
        if let Err((blocked, range)) = held {
            drop(table);
            return blocker_of(blocked, &range).map(Attempt::Blocked);
        }
        table.remove_lists(&mut removed, |origins, list| origins.is_complete(&list.used));
        let mut lists = OpenLists::new();
        match &*group {
            few if few.len() <= FEW => {
                for Claimed { range, access, .. } in few {
                    table.collect_lists(range, *access, request.own, &mut before.after);
                }
            }
            _ => lists = table.open_lists(request.own),
        }
        let mut from = (0, 0);
        // The claim blocks conflicting uses, so they may be collected in parts.
        while let Some(next) =
            table.collect_all(group, request, from, &mut before.after, [&mut read, &mut kept])
        {
            drop(table);
            before.after.fold();
            (table, from) = (self.table.lock(), next);
        }
        table.sweep(&mut removed);
        drop(table);
        for (ranges, fence) in &lists {
            if ranges.conflict(group.iter().map(|one| (&one.range, one.access))) {
                before.after.add(fence.timeline(), fence.point());
            }
        }
        before.after.fold();
        self.record_outcomes(&removed.unresolved);
        if let Some(first) = group.first() {
            self.add_sources(first.buffer, read, kept, &mut before.sources)?;
        }
        Ok(Attempt::Held(()))
    }

    /// Holds the ranges of a group as one list, up to the first that is blocked.
    fn hold_list(
        &self,
        group: &mut [Claimed<'_>],
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<(), (Blocked, Range<usize>)> {
        let ranges = Arc::new(ListRanges::new(group.iter().map(|one| (&one.range, one.access))));
        let (claim, is_free) = self.table.lock().add_list(ranges);
        let mut until = 0;
        for part in group.chunks_mut(STEPS_PER_LOCK) {
            let mut table = (!is_free).then(|| self.table.lock());
            for one in part {
                if let Some(table) = &mut table
                    && let Err(blocked) = table.check(&one.range, one.access, turn, removed)
                {
                    // No ticket tells of a list of which nothing is held.
                    let unused = if until == 0 { table.held.release_list(claim) } else { None };
                    return Err((blocked, one.range.clone())).inspect_err(|_| drop(unused));
                }
                one.ticket =
                    Some(Ticket { access: one.access, kind: HoldKind::Pending, claim, is_listed: true });
                if let Some(list) = table.as_mut().and_then(|table| table.held.list_mut(claim))
                    && !one.range.is_empty()
                {
                    until = one.range.end;
                    list.until = until;
                }
            }
        }
        if !is_free && !crate::mutant!("core/list-overtakes") {
            self.table.lock().overtake_by_list(claim, turn);
        }
        Ok(())
    }

    /// Copies from a range of this table to a range of another one under both locks, and counts that as
    /// claims do, if both ranges are free and the bytes to be replaced have no known uses. Waits for neither
    /// lock, so it cannot deadlock, and returns `None` within one allocation.
    #[inline]
    pub(crate) fn copy_if_free<T>(
        &self,
        from: &Range<usize>,
        (target, to): (&Self, &Range<usize>),
        copy: impl FnOnce() -> T,
    ) -> Option<T> {
        let (mut source, mut target) = (self.table.try_lock()?, target.table.try_lock()?);
        let is_known = !target.segments.is_empty() && target.segments.overlapping(to).next().is_some();
        if is_known || !target.is_free(to, Access::Write, None) || !source.is_free(from, Access::Read, None) {
            return None;
        }
        // Counts only: an empty range is not held.
        source.hold(&(0..0), Access::Read, HoldKind::Pending);
        target.hold(&(0..0), Access::Write, HoldKind::Pending);
        Some(copy())
    }

    /// Claims a range, if that needs neither a wait nor earlier fences. Waits for no lock, so the caller may have claimed another range.
    #[inline]
    pub(crate) fn claim_if_free(&self, range: &Range<usize>, access: Access) -> Option<Ticket> {
        let mut table = self.table.try_lock()?;
        table.is_free(range, access, None).then(|| table.hold(range, access, HoldKind::Pending))
    }

    /// Releases the lock after a change, and wakes waiters.
    #[inline]
    fn close(&self, table: SpinLockGuard<'_, Table>, wake_list: &mut WakeList) {
        if table.waiting.is_some() && !crate::mutant!("core/commit-wakes") {
            self.close_and_wake(table, wake_list);
        }
    }

    #[cold]
    fn close_and_wake(&self, mut table: SpinLockGuard<'_, Table>, wake_list: &mut WakeList) {
        let Some(waiting) = &mut table.waiting else { return };
        let wakers = std::mem::take(&mut waiting.wakers);
        let sleepers = std::mem::take(&mut waiting.sleepers);
        let emptied = if waiting.is_empty() { table.waiting.take() } else { None };
        drop(table);
        drop(emptied);
        wake_list.add(wakers);
        if sleepers {
            self.resolved.notify_all();
        }
    }

    /// Turns the claims of a group into uses that are complete when `fence` is. Writes replace earlier uses, except those `retained`.
    #[inline]
    pub(crate) fn commit(
        &self,
        group: &[Claimed<'_>],
        fence: &Fence,
        retained: Retained,
        wake_list: &mut WakeList,
    ) {
        if let [Claimed { ticket: Some(Ticket { is_listed: true, claim, .. }), .. }, ..] = group {
            return self.commit_list(*claim, group, (fence, retained), wake_list);
        }
        // Declared before the lock, so dropped after it. Usually there is nothing to remove.
        let mut removed = None;
        let (mut table, mut steps) = (self.table.lock(), STEPS_PER_LOCK);
        for Claimed { range, ticket, .. } in group {
            let (mut from, Some(ticket)) = (range.start, ticket) else { continue };
            while (retained.cross_device || !table.commit_fast(range, ticket, fence, retained.damage))
                && !table.commit(range, ticket, (fence, retained), &mut from, &mut steps, &mut removed)
            {
                drop(table);
                (table, steps) = (self.table.lock(), STEPS_PER_LOCK);
            }
        }
        self.close(table, wake_list);
        if let Some(removed) = &removed {
            self.record_outcomes(&removed.unresolved);
        }
    }

    #[inline(never)]
    fn commit_list(
        &self,
        claim: u32,
        group: &[Claimed<'_>],
        new: (&Fence, Retained),
        wake_list: &mut WakeList,
    ) {
        // Declared before the lock, so dropped after it.
        let (mut removed, list);
        removed = Removed::default();
        let mut from = (0, 0);
        let mut table = self.table.lock();
        if table.commit_as_list(claim, new, &mut removed) {
            list = None;
        } else {
            while let Some(next) = table.commit_list(group, new, from, &mut removed) {
                drop(table);
                (table, from) = (self.table.lock(), next);
            }
            list = table.held.release_list(claim);
        }
        table.sweep_if_new();
        self.close(table, wake_list);
        self.record_outcomes(&removed.unresolved);
        drop(list);
    }

    /// Ends a claim whose work is complete. A write removes all earlier uses of its range.
    #[inline]
    pub(crate) fn complete(&self, range: &Range<usize>, ticket: Ticket, wake_list: &mut WakeList) {
        let mut table = self.table.lock();
        if ticket.access == Access::Write
            && table.segments.overlapping(range).next().is_some()
            && !crate::mutant!("core/short-copy-repairs")
        {
            drop(table);
            self.in_steps(range.start, |table, from, removed| {
                table.cut_out(&(from..range.end));
                table.prune(&(from..range.end), removed, |_, _| true)
            });
            table = self.table.lock();
        }
        table.release(range, ticket);
        self.close(table, wake_list);
    }

    /// Calls `step` under the lock, from `start` on, at most [`STEPS_PER_LOCK`] segments at a time, until it
    /// returns `None`.
    fn in_steps(&self, start: usize, mut step: impl FnMut(&mut Table, usize, &mut Removed) -> Option<usize>) {
        let mut next = Some(start);
        while let Some(from) = next {
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            next = step(&mut self.table.lock(), from, &mut removed);
        }
    }

    /// Turns a claim into a loan: conflicting work then gets `Busy` and does not wait.
    pub(crate) fn lend(&self, range: &Range<usize>, ticket: Ticket) -> Ticket {
        let mut wake_list = WakeList::default();
        let loan = Ticket { kind: HoldKind::Loan, ..ticket };
        let mut table = self.table.lock();
        table.release(range, ticket);
        table.held.add(range, loan.access, loan.kind);
        self.close(table, &mut wake_list);
        loan
    }

    /// Withdraws the claim of an operation that was not enqueued, or closes a host view.
    pub(crate) fn withdraw(&self, range: &Range<usize>, ticket: Ticket, wake_list: &mut WakeList) {
        let mut table = self.table.lock();
        table.release(range, ticket);
        self.close(table, wake_list);
    }

    /// Withdraws the claims of a group.
    pub(crate) fn withdraw_all(&self, group: &[Claimed<'_>], wake_list: &mut WakeList) {
        let mut list = None;
        let mut table = self.table.lock();
        for one in group {
            match one.ticket {
                Some(Ticket { is_listed: true, claim, .. }) => {
                    list = table.held.release_list(claim);
                    break;
                }
                Some(ticket) => table.release(&one.range, ticket),
                None => {}
            }
        }
        self.close(table, wake_list);
        drop(list);
    }

    /// Ends a loan under which untracked work was enqueued: the range is in use until the fences and the uses
    /// before the loan are complete.
    pub(crate) fn close_after(&self, range: &Range<usize>, ticket: Ticket, fences: &[Fence]) {
        let Ticket { claim, access, .. } = ticket;
        for fence in fences {
            let new = NewUse { fence, claim, access, effect: Effect::Concurrent, cross_device: false };
            self.in_steps(range.start, |table, mut from, removed| {
                let is_complete = table.add(&mut from, range.end, &new, &mut { STEPS_PER_LOCK }, removed);
                (!is_complete).then_some(from)
            });
        }
        self.withdraw(range, ticket, &mut WakeList::default());
    }

    /// Returns the number of claims and views so far.
    pub(crate) fn uses(&self) -> u64 {
        self.table.lock().claims
    }

    /// Returns whether an operation that is not known to be complete, a view or a loan uses some of it.
    pub(crate) fn are_in_use(&self) -> bool {
        // In two steps: fences are cloned under the lock, and dropped without it.
        let is_held = !self.table.lock().held.is_empty();
        is_held || !self.outstanding().is_empty()
    }

    /// Returns the number of claims and views for writing so far.
    pub(crate) fn writes(&self) -> u64 {
        self.table.lock().writes
    }

    /// Returns the fences of the uses of a range that are not known to be complete; `None` while another
    /// thread enqueues one.
    pub(crate) fn in_flight(&self, range: &Range<usize>) -> Option<Dependencies> {
        let (mut found, mut is_pending) = (Dependencies::default(), false);
        self.in_steps(range.start, |table, from, _| {
            is_pending |= table.held.is_pending(range);
            let rest = from..range.end;
            table.collect(&rest, Access::Write, None, &mut Scan::default(), &mut found, None)
        });
        // After those: what was pending until then is among them.
        self.table.lock().collect_lists(range, Access::Write, None, &mut found);
        found.fold();
        (!is_pending).then_some(found)
    }

    /// Returns the fences of all uses that are not known to be complete. Several of one timeline may be among
    /// them, since each may have failed.
    pub(crate) fn outstanding(&self) -> SmallVec<[Fence; 8]> {
        let mut found = SmallVec::new();
        self.in_steps(0, |table, from, _| table.outstanding(from, &mut found));
        found
    }
}

/// Returns what blocks, or an error if that does not end without the user.
fn blocker_of(blocked: Blocked, range: &Range<usize>) -> Result<Blocker> {
    match blocked {
        Blocked::By(Conflict::Open(by, access)) => Err(busy(range, by, access)),
        Blocked::By(_) | Blocked::Turn => Ok(Blocker::Claim),
        Blocked::TurnUntil(fences) => Ok(Blocker::Turn(fences)),
    }
}
