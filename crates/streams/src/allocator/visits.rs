//! Threads that look after all streams at once hold handles of them for a moment. Who lets go of a stream waits for them.

use std::cell::Cell;

use parking_lot::{Condvar, Mutex};

thread_local! {
    /// How often this thread is inside, of any allocator.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

#[derive(Default)]
struct Count {
    /// Visits are counted apart from those that began before someone waited, so that new ones hold nobody up.
    epoch: usize,
    inside: [u64; 2],
}

/// Counts the visits of one allocator.
#[derive(Default)]
pub(super) struct Visits {
    count: Mutex<Count>,
    left: Condvar,
    /// Held by the one that waits.
    waiting: Mutex<()>,
}

/// While it lives, this thread may hold handles and fences of any stream.
pub(super) struct Visit<'a> {
    visits: &'a Visits,
    epoch: usize,
}

impl Visits {
    pub(super) fn enter(&self) -> Visit<'_> {
        let epoch = {
            let mut count = self.count.lock();
            let epoch = count.epoch;
            count.inside[epoch] += 1;
            epoch
        };
        let _ending = INSIDE.try_with(|inside| inside.set(inside.get() + 1));
        Visit { visits: self, epoch }
    }

    /// Blocks until every visit that began before this is over. A thread that is inside itself does not wait.
    pub(super) fn wait_for_earlier_ones(&self) {
        if INSIDE.try_with(Cell::get).unwrap_or(0) > 0 {
            return;
        }
        let _one_at_a_time = self.waiting.lock();
        let mut count = self.count.lock();
        let before = count.epoch;
        count.epoch = 1 - before;
        while count.inside[before] > 0 {
            self.left.wait(&mut count);
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let _ending = INSIDE.try_with(|inside| inside.set(inside.get().saturating_sub(1)));
        let mut count = self.visits.count.lock();
        count.inside[self.epoch] -= 1;
        let empty = count.inside[self.epoch] == 0;
        drop(count);
        if empty {
            self.visits.left.notify_all();
        }
    }
}
