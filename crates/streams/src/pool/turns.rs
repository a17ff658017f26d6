//! Whose turn it is: each thread goes round by itself, so that no line of memory is written by all of them for it.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use transload_core::WorkloadType;

use super::{slots::MOST, strategy::WORKLOADS};

/// A thread remembers where it is in so many lanes: those of 21 pools.
const SEATS: usize = 64;
/// Where a thread remembers whose turn it is, whatever the workload.
pub(crate) const TURN: WorkloadType = WorkloadType::Compute;
/// A thread was not in the lane yet.
const FRESH: u8 = u8::MAX;
/// One lease in so many, counted by each thread, looks whether the lane could do with fewer streams. A prime, so that it is
/// not always the same lane's where a thread alternates between several.
const LEASES_PER_LOOK: u32 = 1021;

/// Seats that lanes have, as bits.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Threads that have leased.
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static TURNS: Turns = const {
        Turns {
            thread: Cell::new(None),
            leases: Cell::new(0),
            at: [const { [const { Cell::new(FRESH) }; WORKLOADS.len()] }; SEATS],
        }
    };
}

struct Turns {
    /// Threads in the order of their first leases.
    thread: Cell<Option<u32>>,
    leases: Cell<u32>,
    at: [[Cell<u8>; WORKLOADS.len()]; SEATS],
}

/// A lane's place in every thread's memory. Where more lanes live than there are seats, some share one: threads that use
/// those in alternation may then leave out a stream's turn, which is nothing but less even.
pub(crate) struct Seat {
    number: usize,
    is_shared: bool,
}

impl Seat {
    pub(crate) fn claim() -> Self {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        match TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(taken) => Self { number: taken.trailing_ones() as usize, is_shared: false },
            Err(_) => Self { number: SEATS - 1, is_shared: true },
        }
    }

    /// The place whose turn it is for this thread, of those `there`.
    #[inline]
    pub(crate) fn next(&self, there: u64) -> Option<usize> {
        TURNS.with(|turns| {
            let at = &turns.at[self.number % SEATS][TURN as usize];
            let last = at.get();
            let index = if last == FRESH { turns.start(there)? } else { from(last.wrapping_add(1), there)? };
            at.set(index);
            Some(usize::from(index))
        })
    }

    /// Where this thread looks first for a workload: where it was last.
    #[inline]
    pub(crate) fn first(&self, workload: WorkloadType, there: u64) -> Option<usize> {
        TURNS.with(|turns| {
            let at = &turns.at[self.number % SEATS][workload as usize];
            let last = at.get();
            let index = if last == FRESH { turns.start(there)? } else { from(last, there)? };
            at.set(index);
            Some(usize::from(index))
        })
    }

    /// This thread looks there first from now on.
    #[inline]
    pub(crate) fn stay(&self, workload: WorkloadType, index: usize) {
        TURNS.with(|turns| turns.at[self.number % SEATS][workload as usize].set((index % MOST) as u8));
    }

    /// Whether this thread's lease is the one in so many.
    #[inline]
    pub(crate) fn is_look_due() -> bool {
        TURNS.with(|turns| {
            let leases = turns.leases.get() + 1;
            turns.leases.set(if leases >= LEASES_PER_LOOK { 0 } else { leases });
            leases >= LEASES_PER_LOOK
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.is_shared {
            TAKEN.fetch_and(!(1 << (self.number % SEATS)), Ordering::Relaxed);
        }
    }
}

impl Turns {
    /// Where the thread begins: each at another one.
    #[cold]
    fn start(&self, there: u64) -> Option<u8> {
        let thread = self.thread.get().unwrap_or_else(|| {
            let thread = THREADS.fetch_add(1, Ordering::Relaxed);
            // So that threads of few leases look as well, now and then.
            self.leases.set(thread.wrapping_mul(617) % LEASES_PER_LOOK);
            self.thread.set(Some(thread));
            thread
        });
        let mut rest = there;
        for _ in 0..thread.checked_rem(there.count_ones())? {
            rest &= rest - 1;
        }
        Some(rest.trailing_zeros() as u8)
    }
}

/// The first bit of `there` from `index` on, all around.
#[inline]
fn from(index: u8, there: u64) -> Option<u8> {
    let ahead = there.rotate_right(u32::from(index)).trailing_zeros() as u8;
    (there != 0).then_some(index.wrapping_add(ahead) % MOST as u8)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, thread};

    use super::*;

    #[test]
    fn every_bit_has_its_turn_in_order_and_all_around() {
        let seat = Seat::claim();
        for there in [1, 0b1010_0110, 1 << 63, 1 | 1 << 63, u64::MAX] {
            let bits: Vec<_> = (0..64).filter(|index| there & (1_u64 << index) != 0).collect();
            let first = seat.next(there).unwrap();
            let begin = bits.iter().position(|index| *index == first).unwrap();
            for turn in 1..=2 * bits.len() {
                assert_eq!(seat.next(there), Some(bits[(begin + turn) % bits.len()]), "{there:b}");
            }
        }
        assert_eq!((seat.next(0), seat.first(WorkloadType::Mixed, 0)), (None, None));
    }

    #[test]
    fn threads_begin_at_different_places_and_stay_where_they_are_told_to() {
        let seat = Seat::claim();
        let begin = || {
            let first = seat.first(WorkloadType::Memory, 0xff).unwrap();
            seat.stay(WorkloadType::Memory, 7 - first);
            assert_eq!(seat.first(WorkloadType::Memory, 0xff), Some(7 - first));
            first
        };
        // One behind the other, but other tests may begin threads in between.
        let firsts: HashSet<_> =
            (0..64).map(|_| thread::scope(|scope| scope.spawn(begin).join().unwrap())).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
    }

    #[test]
    fn lanes_that_live_at_once_have_seats_of_their_own_while_there_are_some() {
        let seats: Vec<_> = (0..2 * SEATS).map(|_| Seat::claim()).collect();
        let own: Vec<_> = seats.iter().filter(|seat| !seat.is_shared).map(|seat| seat.number).collect();
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len());
        assert!(seats.iter().all(|seat| seat.number < SEATS));
    }
}
