//! Who used which bytes of an allocation last, and so what an operation must wait for.
//!
//! Every operation *claims* the ranges it touches before it is enqueued and *commits* its fence afterwards. Claims on
//! several allocations are made in the order of their identities, so two submitters cannot wait for each other in a
//! circle. The table's lock is never held across a call into a backend.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use smallvec::SmallVec;

use crate::{
    Access, Fence, Result, Timeline,
    brief_lock::{Bell, BriefGuard, BriefLock},
    holder::{Holder, busy, in_flight},
};

/// The fences that an operation must come after. Inline up to eight.
pub(crate) type Dependencies = SmallVec<[Fence; 8]>;

/// Identifies a claim or a view of one table until it is committed, withdrawn or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// A use that was enqueued: over when the fence is.
#[derive(Debug)]
struct Use {
    range: Range<usize>,
    access: Access,
    fence: Fence,
}

#[derive(Debug)]
struct Held {
    ticket: Ticket,
    range: Range<usize>,
    access: Access,
    by: Holder,
}

/// The uses of one allocation that are not known to be over.
#[derive(Debug)]
pub(crate) struct Hazards {
    table: BriefLock<Table>,
    /// Rung when a claim or view ends and a thread waits for that.
    resolved: Bell,
}

/// Uses taken out of a table, to be dropped once its lock is open: a fence may be the last handle of its stream.
type Removed = SmallVec<[Use; 8]>;

/// In this order what a copy touches lies together: most buffers have one use.
#[derive(Debug, Default)]
#[repr(C)]
struct Table {
    last_ticket: u64,
    /// A thread or a task waits for a claim to end.
    awaited: bool,
    held: SmallVec<[Held; 1]>,
    uses: SmallVec<[Use; 4]>,
    /// Tasks that wait for a claim to end.
    wakers: Vec<Waker>,
}

/// Tasks to be woken, when this is dropped: behind the last of several changes, since a task may run where it is woken, and
/// would wait there for what its own thread has yet to resolve.
#[derive(Default)]
pub(crate) struct Woken(Vec<Waker>);

impl Drop for Woken {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.wake();
        }
    }
}

impl Woken {
    #[cold]
    fn wake(&mut self) {
        for waker in self.0.drain(..) {
            // The user's code: its panic is its own, and to drop what it panicked with may panic again.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                std::mem::forget(payload);
            }
        }
    }
}

/// What came of an attempt to open a host view.
pub(crate) enum Opening {
    /// It is open.
    Open(Ticket),
    /// Another thread is between its claim and its commit on the range.
    Pending,
    /// It must come after these.
    After(Dependencies),
}

impl Table {
    #[inline]
    fn hold(&mut self, range: Range<usize>, access: Access, by: Holder) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.held.push(Held { ticket, range, access, by });
        ticket
    }

    #[inline]
    fn release(&mut self, ticket: Ticket) -> Option<Held> {
        let index = self.held.iter().position(|held| held.ticket == ticket)?;
        Some(self.held.swap_remove(index))
    }

    /// Whether nobody holds anything, and the few uses are of the timeline `own`: then nothing is in the way of more work
    /// there, and nothing needs to be forgotten. Uses of its own that are over may stay: the next one takes their place.
    #[inline]
    fn is_only_of(&self, own: Option<&Arc<dyn Timeline>>) -> bool {
        const FEW: usize = 2;
        self.held.is_empty()
            && self.uses.len() <= FEW
            && self.uses.iter().all(|used| own.is_some_and(|own| used.fence.is_of_timeline(own)))
    }

    fn forget_what_is_over(&mut self, removed: &mut Removed) {
        self.take_out(removed, |used| used.fence.is_known_done());
    }

    fn take_out(&mut self, removed: &mut Removed, mut which: impl FnMut(&Use) -> bool) {
        let mut index = 0;
        while let Some(used) = self.uses.get(index) {
            if which(used) { removed.push(self.uses.swap_remove(index)) } else { index += 1 }
        }
    }

    /// Whether a conflicting use that is not yet a fence stands in the way.
    fn obstacle(&self, range: &Range<usize>, access: Access) -> Obstacle {
        let mut obstacle = Obstacle::None;
        for held in &self.held {
            if !(access.conflicts_with(held.access) && overlaps(&held.range, range)) {
                continue;
            }
            match held.by {
                Holder::View | Holder::Loan => return Obstacle::Open(held.by, held.access),
                Holder::Pending => obstacle = Obstacle::Pending,
            }
        }
        obstacle
    }

    /// As [`obstacle`](Self::obstacle), for who will wait: notes that somebody does.
    fn must_wait(&mut self, range: &Range<usize>, access: Access) -> bool {
        let pending = matches!(self.obstacle(range, access), Obstacle::Pending);
        self.awaited |= pending;
        pending
    }

    /// Adds the fences of the uses in conflict, but for those of the timeline `own`.
    fn collect(
        &self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        for used in &self.uses {
            if access.conflicts_with(used.access)
                && overlaps(&used.range, range)
                && !own.is_some_and(|own| used.fence.is_of_timeline(own))
            {
                after.push(used.fence.clone());
            }
        }
    }
}

enum Obstacle {
    None,
    Pending,
    /// A view or a loan.
    Open(Holder, Access),
}

/// An empty range has no byte to conflict about, wherever it lies.
fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

impl Held {
    /// Whether who comes after this, enqueued with `fence`, need not know `old` any more: the operation came after every
    /// conflicting use of its range; and an earlier read of the same timeline is implied by a later one.
    #[inline]
    fn replaces(&self, old: &Use, fence: &Fence) -> bool {
        let covered = self.range.start <= old.range.start && old.range.end <= self.range.end;
        let implied = || {
            old.access == Access::Read
                && old.fence.is_of_timeline(fence.timeline())
                && old.fence.point() <= fence.point()
        };
        covered && (self.access == Access::Write || implied())
    }
}

impl Use {
    /// Becomes the use `held` of the same timeline.
    #[inline]
    fn become_later(&mut self, held: &Held, fence: &Fence) {
        self.fence.move_to(fence.point().max(self.fence.point()));
        (self.range, self.access) = (held.range.clone(), held.access);
    }
}

impl Hazards {
    /// A table that begins with work in flight on the range.
    pub(crate) fn behind(range: Range<usize>, fences: &[Fence]) -> Self {
        let written =
            |fence: &Fence| Use { range: range.clone(), access: Access::Write, fence: fence.clone() };
        let table = Table { uses: fences.iter().map(written).collect(), ..Table::default() };
        Self { table: BriefLock::new(table), resolved: Bell::default() }
    }

    /// Claims a range for an operation about to be enqueued, and collects what it must come after. Earlier work of the
    /// timeline `own`, where one is given, is left out: the operation will be enqueued behind it there.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a host view is open on a conflicting range.
    #[inline]
    pub(crate) fn claim(
        &self,
        range: Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) -> Result<Ticket> {
        let mut table = self.table.lock();
        if table.is_only_of(own) {
            return Ok(table.hold(range, access, Holder::Pending));
        }
        drop(table);
        self.claim_among_others(range, access, own, after)
    }

    #[inline(never)]
    fn claim_among_others(
        &self,
        range: Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) -> Result<Ticket> {
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
        woken.0.append(&mut table.wakers);
        drop(table);
        self.resolved.ring();
    }

    /// Turns a claim into a use that is over when `fence` is.
    #[inline]
    pub(crate) fn commit(&self, ticket: Ticket, fence: &Fence, woken: &mut Woken) {
        let mut table = self.table.lock();
        let Some(held) = table.release(ticket) else { return };
        match table.uses.as_mut_slice() {
            [] => {
                table.uses.push(Use { range: held.range, access: held.access, fence: fence.clone() });
                self.close(table, woken);
            }
            [only] if only.fence.is_of_timeline(fence.timeline()) && held.replaces(only, fence) => {
                only.become_later(&held, fence);
                self.close(table, woken);
            }
            _ => self.commit_among_others(table, held, fence, woken),
        }
    }

    #[inline(never)]
    fn commit_among_others(
        &self,
        mut table: BriefGuard<'_, Table>,
        held: Held,
        fence: &Fence,
        woken: &mut Woken,
    ) {
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
                removed.push(table.uses.swap_remove(index));
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
            let after = match self.try_open_view(range.clone(), access)? {
                Opening::Open(ticket) => return Ok(ticket),
                Opening::Pending if !wait => return Err(in_flight(&range)),
                Opening::Pending => {
                    self.resolved.sleep_while(|| self.table.lock().must_wait(&range, access));
                    continue;
                }
                Opening::After(after) => after,
            };
            for fence in &after {
                if wait {
                    let _reported_by_the_transfer = fence.wait();
                } else if !fence.is_over() {
                    return Err(in_flight(&range));
                }
            }
            self.forget(&after);
        }
    }

    /// Opens a host view where nothing is in its way; else says what is, without waiting and without asking any driver.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) where a conflicting view is open.
    pub(crate) fn try_open_view(&self, range: Range<usize>, access: Access) -> Result<Opening> {
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
        table.forget_what_is_over(&mut removed);
        table.collect(&range, access, None, &mut after);
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

    /// How many claims and views there were so far.
    pub(crate) fn uses(&self) -> u64 {
        self.table.lock().last_ticket
    }

    /// The fences of all uses that are not known to be over.
    pub(crate) fn outstanding(&self) -> Dependencies {
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        table.forget_what_is_over(&mut removed);
        table.uses.iter().map(|used| used.fence.clone()).collect()
    }
}
