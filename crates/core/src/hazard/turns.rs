//! The threads and tasks that wait for a range, and their turns, which prevent starvation by later work.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    task::Waker,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{held_ranges::conflicts_with, steps, uses::Removed};
use crate::{Access, Fence};

/// How many conflicting uses may overtake a waiter.
const OVERTAKES: u32 = 16;

/// How many of the oldest turns are checked, to bound the cost of a claim.
const MAX_SCANNED: usize = 32;

/// How long an unblocked waiter has until it loses its turn.
const GRACE: Duration = Duration::from_millis(1);

/// Identifies a turn; a lower id is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnId(u64);

impl TurnId {
    /// Precedes all turns: for a use that has waited long enough.
    pub(crate) const FIRST: Self = Self(0);
}

/// The waiters of one table.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    /// Wakers to call when a claim or view ends.
    pub(super) wakers: Vec<Waker>,
    /// Whether threads wait until a claim or view ends.
    pub(super) sleepers: bool,
    turns: BTreeMap<TurnId, Turn>,
}

#[derive(Debug)]
struct Turn {
    range: Range<usize>,
    access: Access,
    /// The fences that the waiter waits for; empty if it waits for a claim.
    until: Vec<Fence>,
    overtaken: u32,
    /// When another thread first noticed that the waiter is not blocked any more.
    unblocked_since: Option<Instant>,
}

/// Which waiter goes before a use.
pub(super) enum Predecessor {
    /// None.
    None,
    /// A waiter that is not blocked any more. It goes on within [`GRACE`] or loses its turn.
    Waiter,
    /// A waiter that waits for these fences.
    Until(Vec<Fence>),
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty() && !self.sleepers && self.turns.is_empty()
    }

    /// Creates or updates a turn. `until` is what the waiter waits for now.
    pub(super) fn keep_turn(
        &mut self,
        turn: Option<TurnId>,
        range: &Range<usize>,
        access: Access,
        until: Vec<Fence>,
        removed: &mut Removed,
    ) -> TurnId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = turn.unwrap_or_else(|| TurnId(NEXT.fetch_add(1, Ordering::Relaxed)));
        let turn = self.turns.entry(id).or_insert_with(|| Turn {
            range: range.clone(),
            access,
            until: Vec::new(),
            overtaken: 0,
            unblocked_since: None,
        });
        let before = std::mem::replace(&mut turn.until, until);
        removed.fences.extend(before);
        turn.unblocked_since = None;
        id
    }

    pub(super) fn end_turn(&mut self, id: TurnId, removed: &mut Removed) {
        if let Some(turn) = self.turns.remove(&id) {
            removed.fences.extend(turn.until);
        }
    }

    /// Counts a use that overtakes the older waiters with which it `conflicts`. If the use itself has waited long enough, resets
    /// their counts instead.
    pub(super) fn overtake(
        &mut self,
        conflicts: impl Fn(&Range<usize>, Access) -> bool,
        own: Option<TurnId>,
    ) {
        let has_waited = own == Some(TurnId::FIRST);
        for (_, turn) in older(&mut self.turns, conflicts, own.filter(|_| !has_waited)) {
            turn.overtaken = if has_waited { 0 } else { turn.overtaken.saturating_add(1) };
        }
    }

    /// Returns the waiter that goes before a use with the turn `own`, if any. Ends expired turns.
    pub(super) fn predecessor(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<TurnId>,
        removed: &mut Removed,
    ) -> Predecessor {
        let mut expired = SmallVec::<[TurnId; 2]>::new();
        let mut found = Predecessor::None;
        for (id, turn) in older(&mut self.turns, conflicts_with(range, access), own) {
            if turn.overtaken < OVERTAKES || crate::mutant!("core/turn-blocks-newcomers") {
                continue;
            }
            while let Some(complete) = turn.until.pop_if(|fence| fence.is_known_complete()) {
                removed.fences.push(complete);
            }
            if !turn.until.is_empty() {
                found = Predecessor::Until(turn.until.iter().rev().take(MAX_SCANNED).cloned().collect());
                break;
            }
            let is_waited_for = turn.unblocked_since.is_none_or(|since| since.elapsed() < GRACE);
            turn.unblocked_since.get_or_insert_with(Instant::now);
            if is_waited_for {
                found = Predecessor::Waiter;
                break;
            }
            expired.push(*id);
        }
        for id in expired {
            self.end_turn(id, removed);
        }
        found
    }

    /// Removes fences that are complete although their timelines do not report it.
    pub(super) fn forget(&mut self, complete: &[Fence], removed: &mut Removed) {
        for turn in self.turns.values_mut().take(MAX_SCANNED) {
            let mut index = 0;
            while let Some(fence) = turn.until.get(index) {
                if complete.iter().any(|known| known.is_same_as(fence)) {
                    removed.fences.push(turn.until.swap_remove(index));
                } else {
                    index += 1;
                }
            }
        }
    }
}

/// Returns the turns with which a use `conflicts` and that are older than its own turn; without one, all are.
fn older(
    turns: &mut BTreeMap<TurnId, Turn>,
    conflicts: impl Fn(&Range<usize>, Access) -> bool,
    own: Option<TurnId>,
) -> impl Iterator<Item = (&TurnId, &mut Turn)> {
    let before =
        turns.iter_mut().take(MAX_SCANNED).take_while(move |(id, _)| own.is_none_or(|own| **id < own));
    let before = before.inspect(|_| steps::count());
    before.filter(move |(_, turn)| conflicts(&turn.range, turn.access))
}
