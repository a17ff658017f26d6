//! Who used which bytes of an allocation last, and so what an operation must wait for.
//!
//! Every operation *claims* the ranges it touches before it is enqueued and *commits* its fence afterwards. Claims on
//! several allocations are made in the order of their identities, and a thread that must wait holds none meanwhile, so two
//! submitters cannot wait for each other in a circle. The table's lock is never held across a call into a backend.

mod dependencies;
mod holder;
mod holds;
mod mark;
mod segments;
mod table;
mod turns;
mod woken;

use std::{ops::Range, sync::Arc, task::Waker};

use smallvec::SmallVec;

use crate::{
    Access, Error, ErrorKind, Fence, Result, Timeline,
    brief_lock::{Bell, BriefGuard, BriefLock},
    claim::Claimed,
    source::{SourceList, add_sources, source_failed},
    sync::yield_now,
};

pub(crate) use dependencies::Dependencies;
pub(crate) use holder::in_flight;
use holder::{Holder, busy};
use holds::Conflict;
#[cfg(test)]
pub(crate) use segments::steps::counted;
use segments::{Removed, Use, Written};
pub(crate) use table::Ticket;
use table::{Blocked, Found, STEPS, Table};
pub(crate) use turns::TurnId;
pub(crate) use woken::{Woken, wake};

/// How many fences that their timelines do not know to be complete are forgotten in one go.
const FORGOTTEN: usize = 16;

/// The uses of one allocation that are not known to be over.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hazards {
    table: BriefLock<Table>,
    /// Rung when a claim or view ends and a thread waits for that.
    resolved: Bell,
}

/// What ranges are claimed for.
pub(crate) struct Asked<'a> {
    /// The timeline that the work will be enqueued on, where that is known.
    pub(crate) own: Option<&'a Arc<dyn Timeline>>,
    pub(crate) turn: Option<TurnId>,
    /// Whether what is claimed for writing keeps its content, in part or as a whole.
    pub(crate) keeps: bool,
}

/// What claims found of earlier work.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// What the work must come after.
    pub(crate) after: Dependencies,
    /// What the work reads that can fail.
    pub(crate) sources: SourceList,
}

/// What a range must wait for before it can be held.
#[derive(Debug)]
pub(crate) enum Before {
    /// Another thread's claim, or a waiter whose turn it is.
    Claim,
    /// These.
    Fences(Vec<Fence>),
}

/// The result of an attempt to hold ranges.
pub(crate) enum Attempt<T> {
    Held(T),
    Blocked(Before),
}

impl Hazards {
    /// A table that begins with work in flight on the range.
    pub(crate) fn behind(range: Range<usize>, fences: &[Fence]) -> Self {
        Self { table: BriefLock::new(Table::behind(range, fences)), resolved: Bell::default() }
    }

    /// Claims the ranges of one allocation for an operation about to be enqueued, and collects what it must come after.
    /// Earlier work of the timeline `own`, where one is given, is left out: the operation will be enqueued behind it there.
    /// Where one range is blocked, the answer tells by what; those with a ticket are claimed, for the caller to withdraw.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a host view is open on a conflicting range;
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) where a range to be read was damaged; likewise.
    #[inline]
    pub(crate) fn claim(
        &self,
        group: &mut [Claimed<'_>],
        asked: &Asked<'_>,
        before: &mut Earlier,
    ) -> Result<Attempt<()>> {
        let mut table = self.table.lock();
        if let ([one], Some(own), false) = (&mut *group, asked.own, asked.keeps)
            && let Some(ticket) = table.claim_after_own(&one.range, one.access, own)
        {
            one.ticket = Some(ticket);
            return Ok(Attempt::Held(()));
        }
        self.claim_among_others(table, group, asked, before)
    }

    #[inline(never)]
    fn claim_among_others(
        &self,
        table: BriefGuard<'_, Table>,
        group: &mut [Claimed<'_>],
        asked: &Asked<'_>,
        before: &mut Earlier,
    ) -> Result<Attempt<()>> {
        let mut removed = Removed::default();
        let mut locked = Some(table);
        for one in group {
            let mut table = locked.take().unwrap_or_else(|| self.table.lock());
            match table.try_hold(&one.range, one.access, Holder::Pending, asked.turn, &mut removed) {
                Ok(ticket) => one.ticket = Some(ticket),
                Err(blocked) => {
                    drop(table);
                    return told(blocked, &one.range).map(Attempt::Blocked);
                }
            }
            table.sweep(&mut removed);
            let (mut rest, access) = (one.range.clone(), one.access);
            let reads = access == Access::Read;
            let mut found = (reads || asked.keeps).then(Found::default);
            // What is held keeps conflicting uses away, so the rest may be collected a part at a time.
            loop {
                let next = table.collect(&rest, access, asked.own, &mut before.after, None, found.as_mut());
                drop(table);
                before.after.fold();
                let Some(end) = next else { break };
                rest.end = end;
                table = self.table.lock();
            }
            self.settle(&removed.unsettled);
            removed = Removed::default();
            let Some(Found { writes, mark }) = found else { continue };
            if reads
                && let Some(mark) = mark
                && !crate::mutant!("core/refuse-damaged-source")
            {
                mark.wait()?;
            }
            for write in writes {
                self.add_source(one, write, reads, &mut before.sources)?;
            }
        }
        Ok(Attempt::Held(()))
    }

    /// Adds a write that can fail to the sources of an operation that reads, unless it has ended well.
    fn add_source(
        &self,
        reader: &Claimed<'_>,
        write: Written,
        refuses: bool,
        sources: &mut SourceList,
    ) -> Result<()> {
        if write.fence.is_known_done() {
            let outcome = write.fence.outcome();
            let refused = match &outcome {
                Some(Err(error)) if refuses && damages(&write, error) => Err(failure_of(&write, error)),
                _ => Ok(()),
            };
            self.settle(std::slice::from_ref(&write));
            return refused;
        }
        if !crate::mutant!("core/inherit-sources") {
            let of = (reader.buffer.id(), reader.buffer.place());
            add_sources(sources, &write.fence, of, write.range);
        }
        Ok(())
    }

    /// Finds out how writes ended. Where one failed its bytes are marked; where one succeeded it is forgotten.
    fn settle(&self, writes: &[Written]) {
        for write in writes {
            let Some(outcome) = write.fence.outcome() else { continue };
            let failure = outcome
                .err()
                .filter(|error| damages(&write, error) && !crate::mutant!("core/mark-failed-writes"));
            let (mut removed, mut rest) = (Removed::default(), Some(write.range.clone()));
            while let Some(range) = rest {
                let end = self.table.lock().settle(&range, write, failure.as_ref(), &mut removed);
                rest = end.map(|end| range.start..end);
                removed = Removed::default();
            }
        }
    }

    /// Removes the marks of a range: the bytes are as they should be, or nobody cares.
    pub(crate) fn assume_written(&self, range: &Range<usize>) {
        // What has failed unseen leaves its marks first.
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            let (mut found, mut after) = (Found::default(), Dependencies::default());
            let end =
                self.table.lock().collect(&range, Access::Write, None, &mut after, None, Some(&mut found));
            self.settle(&found.writes);
            rest = end.map(|end| range.start..end);
        }
        self.prune_within(range, Use::is_mark);
    }

    /// Removes the uses of a range that `which` chooses, and cuts them where it begins and ends.
    fn prune_within(&self, range: &Range<usize>, which: impl Fn(&Use) -> bool) {
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            let mut table = self.table.lock();
            table.cut_out(&range);
            let end = table.prune_within(&range, &mut removed, &which);
            drop(table);
            rest = end.map(|end| range.start..end);
        }
    }

    /// Arranges that `waker` is woken when a pending claim is resolved. Returns `true`, and keeps nothing, where nothing
    /// blocks the holder of the turn.
    pub(crate) fn wake_at_a_commit(
        &self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        waker: &Waker,
    ) -> bool {
        let mut removed = Removed::default();
        // The user's code, as its drop is: not under the lock.
        let mut waker = Some(waker.clone());
        let mut table = self.table.lock();
        let is_pending = match table.check(range, access, turn, &mut removed) {
            Err(Blocked::By(Conflict::Pending)) => true,
            Err(Blocked::Turn) => false,
            _ => {
                drop(table);
                return true;
            }
        };
        if is_pending {
            let wakers = &mut table.waiting.get_or_insert_default().wakers;
            if let Some(new) = waker.take_if(|new| !wakers.iter().any(|known| known.will_wake(new))) {
                wakers.push(new);
            }
        }
        drop(table);
        if let Some(waker) = waker.filter(|_| !is_pending) {
            // The turn ends within a millisecond, with or without an event that could wake.
            wake(waker);
        }
        false
    }

    /// Blocks the calling thread while another thread's claim is pending.
    pub(crate) fn sleep_until_a_commit(&self, range: &Range<usize>, access: Access) {
        self.resolved.sleep_while(|| {
            let mut table = self.table.lock();
            let pending = table.holds.conflict(range, access) == Conflict::Pending;
            if pending && !crate::mutant!("core/sleeper-is-noted") {
                table.waiting.get_or_insert_default().sleepers = true;
            }
            pending
        });
        // Where a waiter comes first, it takes its turn within a millisecond.
        yield_now();
    }

    /// Gives a waiter a turn, or keeps the one that it has. `until` is what it waits for, if that is no claim.
    pub(crate) fn keep_turn(
        &self,
        turn: Option<TurnId>,
        range: &Range<usize>,
        access: Access,
        until: &[Fence],
    ) -> TurnId {
        let until = until.to_vec();
        let mut removed = Removed::default();
        let mut table = self.table.lock();
        table.waiting.get_or_insert_default().keep_turn(turn, range, access, until, &mut removed)
    }

    /// Ends a turn: the waiter holds the range, or has given up.
    pub(crate) fn end_turn(&self, turn: TurnId) {
        let (mut removed, mut woken) = (Removed::default(), Woken::default());
        let mut table = self.table.lock();
        if let Some(waiting) = &mut table.waiting
            && !crate::mutant!("core/turn-ends-with-waiter")
        {
            waiting.end_turn(turn, &mut removed);
        }
        self.close(table, &mut woken);
    }

    /// Ends a change of the table: whoever waits for one is woken.
    #[inline]
    fn close(&self, table: BriefGuard<'_, Table>, woken: &mut Woken) {
        if table.waiting.is_some() && !crate::mutant!("core/commit-wakes") {
            self.close_and_tell(table, woken);
        }
    }

    #[cold]
    fn close_and_tell(&self, mut table: BriefGuard<'_, Table>, woken: &mut Woken) {
        let Some(waiting) = &mut table.waiting else { return };
        let wakers = std::mem::take(&mut waiting.wakers);
        let sleepers = std::mem::take(&mut waiting.sleepers);
        let emptied = if waiting.is_empty() { table.waiting.take() } else { None };
        drop(table);
        drop(emptied);
        woken.add(wakers);
        if sleepers {
            self.resolved.ring();
        }
    }

    /// Turns a claim into a use that is complete when `fence` is.
    #[inline]
    pub(crate) fn commit(&self, range: &Range<usize>, ticket: Ticket, fence: &Fence, woken: &mut Woken) {
        let mut table = self.table.lock();
        if !table.move_on(range, ticket, fence) {
            self.commit_among_others(table, range, ticket, fence, woken);
        }
    }

    #[inline(never)]
    fn commit_among_others(
        &self,
        table: BriefGuard<'_, Table>,
        range: &Range<usize>,
        ticket: Ticket,
        fence: &Fence,
        woken: &mut Woken,
    ) {
        let (mut locked, mut from) = (Some(table), range.start);
        loop {
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            let mut table = locked.take().unwrap_or_else(|| self.table.lock());
            if table.commit(range, ticket, fence, &mut from, &mut removed) {
                self.close(table, woken);
                return;
            }
            drop(table);
        }
    }

    /// Like [`commit`](Self::commit), of a write that leaves the bytes as they are: marks stay.
    pub(crate) fn commit_keeping(
        &self,
        range: &Range<usize>,
        ticket: Ticket,
        fence: &Fence,
        woken: &mut Woken,
    ) {
        self.prune_within(range, |used| !used.is_mark());
        self.add(range, ticket, fence);
        self.withdraw(range, ticket, woken);
    }

    /// Adds a use beside what is there.
    fn add(&self, range: &Range<usize>, ticket: Ticket, fence: &Fence) {
        let mut from = range.start;
        loop {
            let mut removed = Removed::default();
            let mut table = self.table.lock();
            let is_added = table.add(range, ticket.used(fence), &mut from, &mut removed);
            drop(table);
            if is_added {
                return;
            }
        }
    }

    /// Makes a claim a loan: from here on whoever is in conflict with it is refused, and does not wait.
    pub(crate) fn lend(&self, range: &Range<usize>, ticket: Ticket) -> Ticket {
        let mut woken = Woken::default();
        let loan = Ticket { by: Holder::Loan, ..ticket };
        let mut table = self.table.lock();
        table.holds.release(&ticket.held(range.clone()));
        table.holds.add(loan.held(range.clone()));
        self.close(table, &mut woken);
        loan
    }

    /// Takes a claim back: its operation was not enqueued. Or closes a host view.
    pub(crate) fn withdraw(&self, range: &Range<usize>, ticket: Ticket, woken: &mut Woken) {
        let mut table = self.table.lock();
        table.holds.release(&ticket.held(range.clone()));
        self.close(table, woken);
    }

    /// Opens a host view where nothing blocks it; else tells what does, without waiting and without asking any driver.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a conflicting view is open.
    pub(crate) fn try_open_view(
        &self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
    ) -> Result<Attempt<Ticket>> {
        self.try_open(range, access, turn, true)
    }

    /// As [`try_open_view`](Self::try_open_view), and drops no fence, which might be the last handle of its stream: for callers
    /// that hold a lock.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn try_hold(&self, range: &Range<usize>, access: Access) -> Result<Attempt<Ticket>> {
        self.try_open(range, access, None, false)
    }

    fn try_open(
        &self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        prunes: bool,
    ) -> Result<Attempt<Ticket>> {
        loop {
            let (mut after, mut found) = (Dependencies::default(), Found::default());
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            let mut table = self.table.lock();
            // Turns end with a drop of fences, so who may drop none takes no notice of them.
            let held = match table.holds.conflict(range, access) {
                Conflict::None if !prunes => Ok(table.hold(range.clone(), access, Holder::Pending)),
                _ => table.try_hold(range, access, Holder::Pending, turn, &mut removed),
            };
            let ticket = match held {
                Ok(ticket) => ticket,
                Err(blocked) => {
                    drop(table);
                    return told(blocked, range).map(Attempt::Blocked);
                }
            };
            if prunes {
                table.sweep(&mut removed);
            }
            let mut rest = range.clone();
            // What is held keeps conflicting uses away, so the rest may be looked at a part at a time.
            loop {
                let pruned = if prunes { Some(&mut removed) } else { None };
                let next = table.collect(&rest, access, None, &mut after, pruned, Some(&mut found));
                let Some(end) = next else { break };
                drop(table);
                after.fold();
                rest.end = end;
                table = self.table.lock();
            }
            // How these ended is to be found out first; who may ask no driver leaves that to who waits.
            found.writes.retain(|write| write.fence.is_known_done());
            if !prunes {
                found.writes.drain(..).for_each(|write| after.add(&write.fence));
            }
            let (mut woken, view) = (Woken::default(), Ticket { by: Holder::View, ..ticket });
            let opens = after.is_empty() && found.writes.is_empty() && found.mark.is_none();
            table.holds.release(&ticket.held(range.clone()));
            if opens {
                table.holds.add(view.held(range.clone()));
            } else {
                table.was_no_use(access);
            }
            self.close(table, &mut woken);
            if prunes {
                self.settle(&removed.unsettled);
            }
            if opens {
                return Ok(Attempt::Held(view));
            }
            if let Some(mark) = found.mark {
                mark.wait()?;
            }
            if !after.is_empty() {
                return Ok(Attempt::Blocked(Before::Fences(after.into_vec())));
            }
            self.settle(&found.writes);
        }
    }

    /// Removes uses of a range that were waited for: they are complete, also where their timelines do not say so.
    pub(crate) fn forget(&self, range: &Range<usize>, complete: &[Fence]) {
        let mut removed = Removed::default();
        let is_complete = |fence: &Fence| {
            let is_known =
                |known: &Fence| known.is_of_timeline(fence.timeline()) && fence.point() <= known.point();
            // The rest is left to the next call: waiters try again as long as anything is left.
            fence.is_known_done() || complete.iter().take(FORGOTTEN).any(is_known)
        };
        let mut rest = range.clone();
        loop {
            let (mut found, mut after) = (Found::default(), Dependencies::default());
            let mut table = self.table.lock();
            if let Some(waiting) = &mut table.waiting {
                waiting.forget(complete, &mut removed);
            }
            let _as_below = table.collect(&rest, Access::Write, None, &mut after, None, Some(&mut found));
            let may_go = |used: &Use| !used.is_mark() && !used.may_damage() && is_complete(&used.fence);
            let next = table.prune_within(&rest, &mut removed, may_go);
            drop(table);
            removed = Removed::default();
            found.writes.retain(|write| is_complete(&write.fence));
            self.settle(&found.writes);
            let Some(end) = next else { return };
            rest.end = end;
        }
    }

    /// Ends a loan under which work was enqueued that this table does not know: its range is used until the fences are
    /// complete, and until what was there before is.
    pub(crate) fn close_behind(&self, range: &Range<usize>, ticket: Ticket, fences: &[Fence]) {
        fences.iter().for_each(|fence| self.add(range, ticket, fence));
        self.withdraw(range, ticket, &mut Woken::default());
    }

    /// How many claims and views there were so far.
    pub(crate) fn uses(&self) -> u64 {
        self.table.lock().claims
    }

    /// How many of those were for writing.
    pub(crate) fn writes(&self) -> u64 {
        self.table.lock().writes
    }

    /// The fences of the uses of a range that are not known to be over; `None` while another thread enqueues one.
    pub(crate) fn in_flight(&self, range: &Range<usize>) -> Option<Dependencies> {
        // Both declared before the lock, so dropped after it.
        let (mut removed, mut found) = (Removed::default(), Dependencies::default());
        let mut rest = range.clone();
        loop {
            let mut table = self.table.lock();
            if table.holds.is_pending(range) {
                return None;
            }
            let next = table.collect(&rest, Access::Write, None, &mut found, Some(&mut removed), None);
            drop(table);
            removed = Removed::default();
            found.fold();
            let Some(next) = next else { return Some(found) };
            rest.end = next;
        }
    }

    /// The fences of all uses that are not known to be over: also several of one timeline, since each may have failed.
    pub(crate) fn outstanding(&self) -> SmallVec<[Fence; 8]> {
        let (mut found, mut from) = (SmallVec::new(), Some(0));
        while let Some(next) = from {
            let table = self.table.lock();
            from = None;
            for (index, segment) in table.uses.iter_from(next).enumerate() {
                if index == STEPS {
                    from = Some(segment.start);
                    break;
                }
                let open = segment.uses.iter().map(|used| &used.fence).filter(|fence| !fence.is_known_done());
                found.extend(open.cloned());
            }
        }
        found
    }
}

/// Returns whether bytes may be damaged. With its device they are lost, and the device says so.
fn damages(write: &Written, error: &Error) -> bool {
    error.kind() != ErrorKind::DeviceLost && write.fence.timeline().may_have_written(write.fence.point())
}

#[cold]
fn failure_of(Written { range, claim, .. }: &Written, error: &Error) -> Error {
    let Range { start, end } = range;
    let text = format!(
        "bytes {start} to {end} cannot be read: the operation that wrote them (claim {claim} of the allocation) failed"
    );
    source_failed(text, error)
}

/// What blocks, or the error where it will not go by itself.
fn told(blocked: Blocked, range: &Range<usize>) -> Result<Before> {
    match blocked {
        Blocked::By(Conflict::Open(by, access)) => Err(busy(range, by, access)),
        Blocked::By(_) | Blocked::Turn => Ok(Before::Claim),
        Blocked::TurnUntil(fences) => Ok(Before::Fences(fences)),
    }
}
