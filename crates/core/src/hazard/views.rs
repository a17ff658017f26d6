//! Host views and holds: ranges that are held where nothing conflicting is in flight.

use std::ops::Range;

use super::{
    Attempt, Before, Dependencies, Hazards, Ticket, TurnId, Woken,
    holder::Holder,
    holds::Conflict,
    segments::{Removed, Use},
    table::Found,
    told,
};
use crate::{Access, Fence, Result};

/// How many fences that their timelines do not know to be complete are forgotten in one go.
const FORGOTTEN: usize = 16;

impl Hazards {
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
}
