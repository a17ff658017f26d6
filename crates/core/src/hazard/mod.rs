//! Who used which bytes of an allocation last, and so what an operation must wait for.
//!
//! Every operation *claims* the ranges it touches before it is enqueued and *commits* its fence afterwards. Claims on
//! several allocations are made in the order of their identities, so two submitters cannot wait for each other in a
//! circle. The table's lock is never held across a call into a backend.

mod holder;
mod table;
mod woken;

use std::{ops::Range, sync::Arc, task::Waker};

use smallvec::SmallVec;

use crate::{
    Access, Fence, Result, Timeline,
    brief_lock::{Bell, BriefGuard, BriefLock},
    mutant,
};

use holder::{Holder, busy, in_flight};
pub(crate) use table::Ticket;
use table::{Held, Obstacle, Removed, Table, Use};
pub(crate) use woken::Woken;

/// The fences that an operation must come after. Inline up to eight.
pub(crate) type Dependencies = SmallVec<[Fence; 8]>;

/// The uses of one allocation that are not known to be over.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hazards {
    table: BriefLock<Table>,
    /// Rung when a claim or view ends and a thread waits for that.
    resolved: Bell,
}

/// What came of an attempt to open a host view.
#[derive(Debug)]
pub(crate) enum Opening {
    /// It is open.
    Open(Ticket),
    /// Another thread is between its claim and its commit on the range.
    Pending,
    /// It must come after these.
    After(Dependencies),
}

impl Hazards {
    /// A table that begins with work in flight on the range.
    pub(crate) fn behind(range: Range<usize>, fences: &[Fence]) -> Self {
        let written =
            |fence: &Fence| Use { range: range.clone(), access: Access::Write, fence: fence.clone() };
        let table = Table { uses: fences.iter().map(written).collect(), ..Table::default() };
        Self { table: BriefLock::new(table), resolved: Bell::default() }
    }

    /// Makes the table that of another buffer, if all uses are known to be complete. Returns whether they are. Takes no lock, but
    /// drops fences.
    #[inline]
    pub(crate) fn renew(&mut self) -> bool {
        let table = self.table.get_mut();
        let in_flight = |used: &Use| !used.fence.is_known_done();
        if table.uses.iter().any(in_flight) && !mutant!("core/recycle-in-flight") {
            return false;
        }
        if table.last_ticket > 0 || !table.uses.is_empty() {
            while table.uses.swap_remove(0).is_some() {}
            // What is still held was forgotten by its holder, who cannot use it any more.
            table.held.clear();
            table.wakers.clear();
            (table.last_ticket, table.writes, table.awaited) = (0, 0, false);
        }
        true
    }

    /// Claims a range for an operation about to be enqueued on the timeline `own`, where nobody holds anything and all uses
    /// are of that timeline: so nothing is in its way, and nothing needs to be collected.
    #[inline(never)]
    pub(crate) fn claim_after_own(
        &self,
        range: Range<usize>,
        access: Access,
        own: &Arc<dyn Timeline>,
    ) -> Option<Ticket> {
        let mut table = self.table.lock();
        table.is_only_of(own).then(|| table.hold(range, access, Holder::Pending))
    }

    /// Claims a range for an operation about to be enqueued, and collects what it must come after. Earlier work of the
    /// timeline `own`, where one is given, is left out: the operation will be enqueued behind it there.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a host view is open on a conflicting range.
    pub(crate) fn claim(
        &self,
        range: Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) -> Result<Ticket> {
        if let Some(ticket) = own.and_then(|own| self.claim_after_own(range.clone(), access, own)) {
            return Ok(ticket);
        }
        loop {
            if let Some(ticket) = self.try_claim(range.clone(), access, own, after)? {
                return Ok(ticket);
            }
            // Another thread is between its claim and its commit: a call into a driver, no more.
            self.resolved.sleep_while(|| self.table.lock().must_wait(&range, access));
        }
    }

    /// As [`claim`](Self::claim), but answers `None` where another thread's claim stands in the way.
    pub(crate) fn try_claim(
        &self,
        range: Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) -> Result<Option<Ticket>> {
        // Declared before the lock, so dropped after it.
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        match table.obstacle(&range, access) {
            Obstacle::Open(by, access) => {
                drop(table);
                return Err(busy(&range, by, access));
            }
            Obstacle::Pending => return Ok(None),
            Obstacle::None => {}
        }
        table.forget_what_is_over(&mut removed);
        table.collect(&range, access, own, after);
        Ok(Some(table.hold(range, access, Holder::Pending)))
    }

    /// Arranges that `waker` is woken when a pending claim is resolved. Answers `true`, and keeps nothing, where none
    /// stands in the way.
    pub(crate) fn wake_at_a_commit(&self, range: &Range<usize>, access: Access, waker: &Waker) -> bool {
        // The user's code, as its drop is: not under the lock.
        let mut waker = Some(waker.clone());
        let mut table = self.table.lock();
        if !table.must_wait(range, access) {
            drop(table);
            return true;
        }
        if let Some(new) = waker.take_if(|new| !table.wakers.iter().any(|known| known.will_wake(new))) {
            table.wakers.push(new);
        }
        drop(table);
        false
    }

    /// Ends a change of the table: whoever waits for one is woken.
    #[inline]
    fn close(&self, table: BriefGuard<'_, Table>, woken: &mut Woken) {
        if table.awaited {
            self.close_and_tell(table, woken);
        }
    }

    #[cold]
    fn close_and_tell(&self, mut table: BriefGuard<'_, Table>, woken: &mut Woken) {
        table.awaited = false;
        let wakers = std::mem::take(&mut table.wakers);
        drop(table);
        woken.add(wakers);
        self.resolved.ring();
    }

    /// Turns a claim into a use that is over when `fence` is.
    #[inline(never)]
    pub(crate) fn commit(&self, ticket: Ticket, fence: &Fence, woken: &mut Woken) {
        if !self.move_on(ticket, fence) {
            self.commit_among_others(ticket, fence, woken);
        }
    }

    /// By far the most: where the one use was of the same timeline, nobody waits and nobody looks just now, it becomes the
    /// claimed one where it lies. Calls nothing.
    #[inline]
    fn move_on(&self, ticket: Ticket, fence: &Fence) -> bool {
        let Some(mut guard) = self.table.try_lock() else { return false };
        let table = &mut *guard;
        let ([held], Some(only)) = (table.held.as_slice(), table.uses.only_mut()) else { return false };
        let moves = !table.awaited
            && held.ticket == ticket
            && only.fence.is_of_timeline(fence.timeline())
            && held.replaces(only, fence);
        if moves {
            only.become_later(held, fence);
            table.held.clear();
        }
        moves
    }

    #[inline(never)]
    fn commit_among_others(&self, ticket: Ticket, fence: &Fence, woken: &mut Woken) {
        let mut table = self.table.lock();
        let Some(held) = table.release(ticket) else { return };
        let mut removed = Removed::new();
        let mut moved_on = false;
        let mut index = 0;
        while let Some(old) = table.uses.get_mut(index) {
            if !held.replaces(old, fence) {
                index += 1;
            } else if !moved_on && old.fence.is_of_timeline(fence.timeline()) {
                // It becomes this use: a handle of the timeline less to make and to drop.
                old.become_later(&held, fence);
                moved_on = true;
                index += 1;
            } else {
                removed.extend(table.uses.swap_remove(index));
            }
        }
        if !moved_on {
            table.uses.push(Use { range: held.range, access: held.access, fence: fence.clone() });
        }
        self.close(table, woken);
    }

    /// Makes a claim a loan: from here on whoever is in conflict with it is refused, and does not wait.
    pub(crate) fn lend(&self, ticket: Ticket) {
        let mut woken = Woken::default();
        let mut table = self.table.lock();
        if let Some(held) = table.held.iter_mut().find(|held| held.ticket == ticket) {
            held.by = Holder::Loan;
        }
        self.close(table, &mut woken);
    }

    /// Takes a claim back: its operation was not enqueued.
    pub(crate) fn withdraw(&self, ticket: Ticket, woken: &mut Woken) {
        let mut table = self.table.lock();
        let _its_operation_was_not_enqueued = table.release(ticket);
        self.close(table, woken);
    }

    /// Opens a host view: waits for conflicting operations, or with `wait` false answers Busy.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a conflicting view is open, or would have to wait. The error of an operation that was
    /// waited for does not stop the view: who awaits the transfer is told.
    pub(crate) fn open_view(&self, range: Range<usize>, access: Access, wait: bool) -> Result<Ticket> {
        loop {
            match self.try_open_view(range.clone(), access)? {
                Opening::Open(ticket) => return Ok(ticket),
                by => self.make_way(&range, access, by, wait)?,
            }
        }
    }

    /// Waits for what is in the way of a view, or with `wait` false answers [`ErrorKind::Busy`] unless it is over.
    pub(crate) fn make_way(
        &self,
        range: &Range<usize>,
        access: Access,
        by: Opening,
        wait: bool,
    ) -> Result<()> {
        match by {
            Opening::Open(_) => {}
            Opening::Pending if !wait => return Err(in_flight(range)),
            Opening::Pending => self.resolved.sleep_while(|| self.table.lock().must_wait(range, access)),
            Opening::After(after) => {
                for fence in &after {
                    if wait {
                        let _reported_by_the_transfer = fence.wait();
                    } else if !fence.is_over() {
                        return Err(in_flight(range));
                    }
                }
                self.forget(&after);
            }
        }
        Ok(())
    }

    /// Opens a host view where nothing is in its way; else says what is, without waiting and without asking any driver.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a conflicting view is open.
    pub(crate) fn try_open_view(&self, range: Range<usize>, access: Access) -> Result<Opening> {
        self.try_open(range, access, true)
    }

    /// As [`try_open_view`](Self::try_open_view), and drops no fence, which might be the last handle of its stream: for callers
    /// that hold a lock.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn try_hold(&self, range: Range<usize>, access: Access) -> Result<Opening> {
        self.try_open(range, access, false)
    }

    fn try_open(&self, range: Range<usize>, access: Access, forgets: bool) -> Result<Opening> {
        let mut after = Dependencies::new();
        // Declared before the lock, so dropped after it.
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        match table.obstacle(&range, access) {
            Obstacle::Open(by, access) => {
                drop(table);
                return Err(busy(&range, by, access));
            }
            Obstacle::Pending => return Ok(Opening::Pending),
            Obstacle::None => {}
        }
        if forgets {
            table.forget_what_is_over(&mut removed);
        }
        table.collect_open(&range, access, &mut after);
        if after.is_empty() {
            return Ok(Opening::Open(table.hold(range, access, Holder::View)));
        }
        Ok(Opening::After(after))
    }

    /// Forgets uses that were waited for: they are over, whatever their timelines say of themselves by now.
    pub(crate) fn forget(&self, over: &[Fence]) {
        let mut removed = Removed::new();
        let is_over = |used: &Use| over.iter().any(|known| known.is_same_as(&used.fence));
        let mut table = self.table.lock();
        table.take_out(&mut removed, is_over);
        drop(table);
    }

    /// Closes a host view.
    pub(crate) fn close_view(&self, ticket: Ticket) {
        self.withdraw(ticket, &mut Woken::default());
    }

    /// Ends a loan under which work was enqueued that this table does not know: its range is used until the fences are over.
    pub(crate) fn close_behind(&self, ticket: Ticket, fences: &[Fence]) {
        let mut woken = Woken::default();
        let mut table = self.table.lock();
        if let Some(Held { range, access, .. }) = table.release(ticket) {
            for fence in fences {
                table.uses.push(Use { range: range.clone(), access, fence: fence.clone() });
            }
        }
        self.close(table, &mut woken);
    }

    /// How many claims and views there were so far.
    pub(crate) fn uses(&self) -> u64 {
        self.table.lock().last_ticket
    }

    /// How many of those were for writing.
    pub(crate) fn writes(&self) -> u64 {
        self.table.lock().writes
    }

    /// The fences of the uses of a range that are not known to be over; `None` while another thread enqueues one.
    pub(crate) fn in_flight(&self, range: &Range<usize>) -> Option<Dependencies> {
        // Both declared before the lock, so dropped after it.
        let (mut removed, mut found) = (Removed::new(), Dependencies::new());
        let mut table = self.table.lock();
        if table.is_pending(range) {
            return None;
        }
        table.forget_what_is_over(&mut removed);
        table.collect(range, Access::Write, None, &mut found);
        Some(found)
    }

    /// The fences of all uses that are not known to be over.
    pub(crate) fn outstanding(&self) -> Dependencies {
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        table.forget_what_is_over(&mut removed);
        table.uses.iter().map(|used| used.fence.clone()).collect()
    }
}
