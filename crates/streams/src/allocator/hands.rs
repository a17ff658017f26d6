//! Who has memory in hand: taken out of one place and not yet put into another. It is not missing, only not to be seen.
//!
//! A request that finds nothing waits for those hands to be empty and looks again, before it says that there is nothing.
//! Whoever has something in hand waits for no other hand, so nobody waits in a circle.

use std::cell::Cell;

use parking_lot::{Condvar, Mutex};

thread_local! {
    /// How often this thread put something down.
    static MINE: Cell<u64> = const { Cell::new(0) };
    /// How many hands this thread holds, of any allocator.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

fn mine() -> u64 {
    MINE.try_with(Cell::get).unwrap_or(0)
}

#[derive(Default)]
struct Count {
    held: u64,
    put_down: u64,
}

/// Counts the hands of one allocator.
#[derive(Default)]
pub(super) struct Hands {
    count: Mutex<Count>,
    empty: Condvar,
}

/// One hand with memory in it; put down when dropped.
pub(super) struct Hand<'a> {
    hands: &'a Hands,
}

/// When a request began to look.
#[derive(Clone, Copy)]
pub(super) struct Began {
    put_down: u64,
    mine: u64,
}

impl Hands {
    pub(super) fn take(&self) -> Hand<'_> {
        self.count.lock().held += 1;
        let _ending = HELD.try_with(|held| held.set(held.get() + 1));
        Hand { hands: self }
    }

    pub(super) fn begin(&self) -> Began {
        Began { put_down: self.count.lock().put_down, mine: mine() }
    }

    /// Waits until no hand holds anything. Answers whether other threads have put something down since `began`. The caller
    /// should hold nothing; one that does, as where an upstream resource allocates here in turn, does not wait for itself.
    pub(super) fn others_moved_since(&self, began: Began) -> bool {
        let holds = HELD.try_with(Cell::get).unwrap_or(0) > 0;
        let mut count = self.count.lock();
        while count.held > 0 && !holds {
            self.empty.wait(&mut count);
        }
        // This thread may have put down something of another allocator meanwhile; then it looks once too seldom.
        count.put_down - began.put_down > mine() - began.mine
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let _ending = MINE.try_with(|mine| mine.set(mine.get() + 1));
        let _ending = HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
        let mut count = self.hands.count.lock();
        count.held -= 1;
        count.put_down += 1;
        let empty = count.held == 0;
        drop(count);
        if empty {
            self.hands.empty.notify_all();
        }
    }
}
