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

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::{Access, Error, ErrorKind, Fence, Result, Timeline};

/// The fences that an operation must come after. Inline up to eight.
pub(crate) type Dependencies = SmallVec<[Fence; 8]>;

/// Identifies one entry of one table until it is committed or withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
enum State {
    /// Claimed; its operation is being enqueued by some thread right now.
    Pending(Ticket),
    /// Enqueued; over when the fence is.
    Submitted(Fence),
    /// A host view is open.
    Viewed(Ticket),
}

#[derive(Debug)]
struct Entry {
    range: Range<usize>,
    access: Access,
    state: State,
}

/// The uses of one allocation that are not known to be over.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    table: Mutex<Table>,
    /// Signalled when a pending entry is resolved and someone waits for that.
    resolved: Condvar,
}

/// Entries taken out of a table, to be dropped once its lock is open: a fence may be the last handle of its stream.
type Removed = SmallVec<[Entry; 8]>;

#[derive(Debug, Default)]
struct Table {
    entries: SmallVec<[Entry; 6]>,
    last_ticket: u64,
    /// How many threads wait for a pending entry.
    waiting: usize,
    /// Tasks that wait for one.
    wakers: Vec<Waker>,
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
    fn add(&mut self, range: Range<usize>, access: Access, state: impl FnOnce(Ticket) -> State) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.entries.push(Entry { range, access, state: state(ticket) });
        ticket
    }

    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.entries.iter().position(
            |entry| matches!(entry.state, State::Pending(this) | State::Viewed(this) if this == ticket),
        )
    }

    /// What a pending or viewed entry is about.
    fn claimed(&self, ticket: Ticket) -> Option<(Range<usize>, Access)> {
        let entry = self.entries.get(self.position(ticket)?)?;
        Some((entry.range.clone(), entry.access))
    }

    /// Drops an entry that holds no fence, where it is.
    fn discard(&mut self, index: usize) {
        let last = self.entries.len().saturating_sub(1);
        if index != last {
            self.entries.swap(index, last);
        }
        self.entries.truncate(last);
    }

    fn forget_what_is_over(&mut self, removed: &mut Removed) {
        self.take_out(
            removed,
            |entry| matches!(&entry.state, State::Submitted(fence) if fence.is_known_done()),
        );
    }

    fn take_out(&mut self, removed: &mut Removed, mut which: impl FnMut(&Entry) -> bool) {
        let mut index = 0;
        while let Some(entry) = self.entries.get(index) {
            if which(entry) { removed.push(self.entries.swap_remove(index)) } else { index += 1 }
        }
    }

    /// Whether a conflicting use that is not yet a fence stands in the way.
    fn obstacle(&self, range: &Range<usize>, access: Access) -> Obstacle {
        let mut obstacle = Obstacle::None;
        for entry in self.conflicts(range, access) {
            match entry.state {
                State::Viewed(_) => return Obstacle::View(entry.access),
                State::Pending(_) => obstacle = Obstacle::Pending,
                State::Submitted(_) => {}
            }
        }
        obstacle
    }

    /// Adds the fences of the uses in conflict, but for those of the timeline `own`.
    fn collect(
        &self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        for entry in self.conflicts(range, access) {
            if let State::Submitted(fence) = &entry.state
                && !own.is_some_and(|own| fence.is_of_timeline(own))
            {
                after.push(fence.clone());
            }
        }
    }

    fn conflicts(&self, range: &Range<usize>, access: Access) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| access.conflicts_with(entry.access) && overlaps(&entry.range, range))
    }
}

enum Obstacle {
    None,
    Pending,
    View(Access),
}

/// An empty range has no byte to conflict about, wherever it lies.
fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

impl Hazards {
    /// A table that begins with work in flight on the range.
    pub(crate) fn behind(range: Range<usize>, fences: &[Fence]) -> Self {
        let written = |fence: &Fence| Entry {
            range: range.clone(),
            access: Access::Write,
            state: State::Submitted(fence.clone()),
        };
        let table = Table { entries: fences.iter().map(written).collect(), ..Table::default() };
        Self { table: Mutex::new(table), resolved: Condvar::new() }
    }

    /// Claims a range for an operation about to be enqueued, and collects what it must come after. Earlier work of the
    /// timeline `own`, where one is given, is left out: the operation will be enqueued behind it there.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a host view is open on a conflicting range.
    pub(crate) fn claim(
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
            self.wait_for_a_commit(&range, access);
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
            Obstacle::View(open) => return Err(busy(&range, open)),
            Obstacle::Pending => return Ok(None),
            Obstacle::None => {}
        }
        table.forget_what_is_over(&mut removed);
        table.collect(&range, access, own, after);
        Ok(Some(table.add(range, access, State::Pending)))
    }

    /// Blocks until no pending claim stands in the way. Another thread is between its claim and its commit: a call into a
    /// driver, no more.
    fn wait_for_a_commit(&self, range: &Range<usize>, access: Access) {
        let mut table = self.table.lock();
        while matches!(table.obstacle(range, access), Obstacle::Pending) {
            table.waiting += 1;
            self.resolved.wait(&mut table);
            table.waiting -= 1;
        }
    }

    /// Arranges that `waker` is woken when a pending claim is resolved. Answers `true`, and keeps nothing, where none
    /// stands in the way.
    pub(crate) fn wake_at_a_commit(&self, range: &Range<usize>, access: Access, waker: &Waker) -> bool {
        let mut table = self.table.lock();
        if !matches!(table.obstacle(range, access), Obstacle::Pending) {
            return true;
        }
        if !table.wakers.iter().any(|known| known.will_wake(waker)) {
            table.wakers.push(waker.clone());
        }
        false
    }

    /// Ends a change of the table: whoever waits for one is woken.
    fn close(&self, mut table: MutexGuard<'_, Table>) {
        let someone_waits = table.waiting > 0;
        let wakers = std::mem::take(&mut table.wakers);
        drop(table);
        if someone_waits {
            self.resolved.notify_all();
        }
        for waker in wakers {
            // The user's code: its panic must not keep the caller's other claims from being resolved.
            let _panic = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// Turns a claim into a use that is over when `fence` is.
    pub(crate) fn commit(&self, ticket: Ticket, fence: &Fence) {
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        if let Some((range, access)) = table.claimed(ticket) {
            // The operation came after every conflicting use of its range, so whoever comes after it need not know
            // those any more; and an earlier read of the same timeline is implied by this one.
            let mut moved_on = false;
            let mut index = 0;
            while let Some(old) = table.entries.get_mut(index) {
                let State::Submitted(earlier) = &mut old.state else {
                    index += 1;
                    continue;
                };
                let same = earlier.is_of_timeline(fence.timeline());
                let covered = range.start <= old.range.start && old.range.end <= range.end;
                let implied = access == Access::Write
                    || (old.access == Access::Read && same && earlier.point() <= fence.point());
                if !(covered && implied) {
                    index += 1;
                } else if same && !moved_on {
                    // It becomes this use: a handle of the timeline less to make and to drop.
                    earlier.move_to(fence.point().max(earlier.point()));
                    (old.range, old.access) = (range.clone(), access);
                    moved_on = true;
                    index += 1;
                } else {
                    removed.push(table.entries.swap_remove(index));
                }
            }
            if let Some(index) = table.position(ticket) {
                if moved_on {
                    table.discard(index);
                } else if let Some(entry) = table.entries.get_mut(index) {
                    entry.state = State::Submitted(fence.clone());
                }
            }
        }
        self.close(table);
    }

    /// Takes a claim back: its operation was not enqueued.
    pub(crate) fn withdraw(&self, ticket: Ticket) {
        let mut table = self.table.lock();
        if let Some(index) = table.position(ticket) {
            table.discard(index);
        }
        self.close(table);
    }

    /// Opens a host view: waits for conflicting operations, or with `wait` false answers Busy.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a conflicting view is open, or would have to wait. The error of an operation that was
    /// waited for does not stop the view: who awaits the transfer is told.
    pub(crate) fn open_view(&self, range: Range<usize>, access: Access, wait: bool) -> Result<Ticket> {
        loop {
            let after = match self.try_open_view(range.clone(), access)? {
                Opening::Open(ticket) => return Ok(ticket),
                Opening::Pending if !wait => return Err(in_flight(&range)),
                Opening::Pending => {
                    self.wait_for_a_commit(&range, access);
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
    /// [`ErrorKind::Busy`] where a conflicting view is open.
    pub(crate) fn try_open_view(&self, range: Range<usize>, access: Access) -> Result<Opening> {
        let mut after = Dependencies::new();
        // Declared before the lock, so dropped after it.
        let mut removed = Removed::new();
        let mut table = self.table.lock();
        match table.obstacle(&range, access) {
            Obstacle::View(open) => return Err(busy(&range, open)),
            Obstacle::Pending => return Ok(Opening::Pending),
            Obstacle::None => {}
        }
        table.forget_what_is_over(&mut removed);
        table.collect(&range, access, None, &mut after);
        if after.is_empty() {
            return Ok(Opening::Open(table.add(range, access, State::Viewed)));
        }
        Ok(Opening::After(after))
    }

    /// Forgets uses that were waited for: they are over, whatever their timelines say of themselves by now.
    pub(crate) fn forget(&self, over: &[Fence]) {
        let mut removed = Removed::new();
        let is_over = |entry: &Entry| matches!(&entry.state, State::Submitted(fence) if over.iter().any(|known| known.is_same_as(fence)));
        let mut table = self.table.lock();
        table.take_out(&mut removed, is_over);
        drop(table);
    }

    /// Closes a host view.
    pub(crate) fn close_view(&self, ticket: Ticket) {
        self.withdraw(ticket);
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
        table
            .entries
            .iter()
            .filter_map(|entry| match &entry.state {
                State::Submitted(fence) => Some(fence.clone()),
                _ => None,
            })
            .collect()
    }
}

fn busy(range: &Range<usize>, open: Access) -> Error {
    let view = if open == Access::Write { "a writable host view" } else { "a host view" };
    Error::new(
        ErrorKind::Busy,
        format!("{view} is open on bytes {} to {}; close it first", range.start, range.end),
    )
}

fn in_flight(range: &Range<usize>) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("bytes {} to {} are used by a transfer in flight; wait for it first", range.start, range.end),
    )
}
