//! Waiting for another thread's claim, and taking turns.

use std::{ops::Range, task::Waker};

use super::{Hazards, TurnId, WakeList, held_ranges::Conflict, table::Blocked, uses::Removed, wake};
use crate::{Access, Fence, sync::yield_now};

impl Hazards {
    /// Arranges that `waker` is woken when a pending claim ends. Returns `true`, and stores nothing, if
    /// nothing blocks the holder of the turn.
    pub(crate) fn wake_at_commit(
        &self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        waker: &Waker,
    ) -> bool {
        let mut removed = Removed::default();
        // Cloning and dropping a waker runs user code, so not under the lock.
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
            // No event announces the end of a turn, but it ends within a millisecond.
            wake(waker);
        }
        false
    }

    /// Blocks the calling thread while another thread's claim is pending.
    pub(crate) fn wait_for_commit(&self, range: &Range<usize>, access: Access) {
        self.resolved.wait_while(|| {
            let mut table = self.table.lock();
            let pending = table.held.conflict(range, access) == Conflict::Pending;
            if pending {
                table.waiting.get_or_insert_default().sleepers = true;
            }
            pending
        });
        // If a waiter goes first, it takes its turn within a millisecond.
        yield_now();
    }

    /// Creates or updates a waiter's turn. `until` is what it waits for; empty for a claim.
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
        let (mut removed, mut wake_list) = (Removed::default(), WakeList::default());
        let mut table = self.table.lock();
        if let Some(waiting) = &mut table.waiting
            && !crate::mutant!("core/turn-ends-with-waiter")
        {
            waiting.end_turn(turn, &mut removed);
        }
        self.close(table, &mut wake_list);
    }
}
