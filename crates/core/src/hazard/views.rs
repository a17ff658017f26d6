//! Host views and range guards: holds that require that nothing conflicting is in flight.

use std::{ops::Range, sync::Arc};

use super::{
    Attempt, Blocker, Dependencies, Hazards, Ticket, TurnId, WakeList, blocker_of,
    collect::{FoundWrites, Scan},
    held_ranges::Conflict,
    hold_kind::HoldKind,
    uses::{Removed, UseKind},
};
use crate::{Access, Fence, Result, Timeline};

/// How many fences that their timelines do not report as complete are removed in one call.
const MAX_FORGOTTEN: usize = 16;

/// What a range is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A host view.
    View,
    /// A view of a caller that replaces every byte: damage is no error, and counts as repaired once the view is open.
    Overwrite,
    /// A guard for a caller that holds a lock: no fence is dropped, which might be the last handle of its stream.
    Guard,
}

impl Hazards {
    /// Opens a host view or a range guard if nothing blocks it; otherwise returns what does. Neither waits nor queries a
    /// driver.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) if a conflicting view or loan is open,
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if bytes may be damaged.
    pub(crate) fn try_open(
        &self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        opening: Opening,
    ) -> Result<Attempt<Ticket>> {
        let (prunes, overwrites) = (opening != Opening::Guard, opening == Opening::Overwrite);
        loop {
            let (mut after, mut found) = (Dependencies::default(), FoundWrites::default());
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            let mut table = self.table.lock();
            // Ending turns drops fences, so callers that must not drop any ignore turns.
            let admitted = match table.held.conflict(range, access) {
                Conflict::None if !prunes => Ok(()),
                _ => table.admit(range, access, turn, &mut removed),
            };
            if let Err(blocked) = admitted {
                drop(table);
                return blocker_of(blocked, range).map(Attempt::Blocked);
            }
            // Not a use yet, so not counted.
            table.held.add(range, access, HoldKind::Pending);
            table.collect_lists(range, access, None, &mut after);
            let mut rest = range.clone();
            // The hold blocks conflicting uses, so the rest may be collected in parts.
            loop {
                let next =
                    table.collect(&rest, access, None, &mut Scan::default(), &mut after, Some(&mut found));
                let Some(next) = next else { break };
                drop(table);
                after.fold();
                rest.start = next;
                table = self.table.lock();
            }
            // The outcomes of these writes are needed first. Callers that may not query the driver leave that
            // to the waiter.
            found.writes.retain(|write| write.fence.is_known_complete());
            if !prunes {
                let open = found.writes.drain(..);
                open.for_each(|write| after.add(write.fence.timeline(), write.fence.point()));
            }
            if prunes {
                table.sweep(&mut removed);
                table.remove_lists(&mut removed, |origins, list| origins.is_complete(&list.used));
                // The next use sweeps the rest of the range.
                let _rest = table.prune(range, &mut removed, |origins, used| origins.is_removable(used));
            }
            let opens = after.is_empty() && found.writes.is_empty() && (found.mark.is_none() || overwrites);
            table.held.release(range, access, HoldKind::Pending);
            let view = opens.then(|| table.hold(range, access, HoldKind::View));
            let mut wake_list = WakeList::default();
            self.close(table, &mut wake_list);
            if prunes {
                self.record_outcomes(&removed.unresolved);
            }
            if let Some(view) = view {
                if found.mark.is_some() && !crate::mutant!("core/overwrite-repairs") {
                    self.assume_written(range);
                }
                return Ok(Attempt::Held(view));
            }
            if let Some(mark) = found.mark.filter(|_| !overwrites) {
                mark.wait()?;
            }
            if !after.is_empty() {
                return Ok(Attempt::Blocked(Blocker::Fences(after.into_vec())));
            }
            self.record_outcomes(&found.writes);
        }
    }

    /// Removes uses of a range that were waited for: they are complete, even if their timelines do not report
    /// it.
    pub(crate) fn forget(&self, range: &Range<usize>, complete: &[Fence]) {
        let is_complete = |timeline: &Arc<dyn Timeline>, point| {
            let is_known = |known: &Fence| known.is_of_timeline(timeline) && point <= known.point();
            // The rest is left to the next call: waiters retry while anything is left.
            timeline.reached() >= point || complete.iter().take(MAX_FORGOTTEN).any(is_known)
        };
        let mut found = FoundWrites::default();
        self.in_steps(range.start, |table, from, removed| {
            let rest = from..range.end;
            if let Some(waiting) = &mut table.waiting {
                waiting.forget(complete, removed);
            }
            let mut after = Dependencies::default();
            let _as_below =
                table.collect(&rest, Access::Write, None, &mut Scan::default(), &mut after, Some(&mut found));
            table.remove_lists(removed, |origins, list| {
                let point = list.used.point;
                origins.of(&list.used).is_none_or(|origin| is_complete(origin.timeline(), point))
            });
            table.prune(&rest, removed, |origins, used| {
                let is_sure = used.kind() != UseKind::Mark && !used.may_damage();
                let origin = origins.of(used).filter(|_| is_sure);
                origin.is_some_and(|origin| is_complete(origin.timeline(), used.point))
            })
        });
        found.writes.retain(|write| is_complete(write.fence.timeline(), write.fence.point()));
        self.record_outcomes(&found.writes);
    }
}
