//! Values in fixed places, read by any thread without a lock, put in and taken out by one thread at a time.
//!
//! A reader passes the door: one addition gives it a ticket and counts it as inside. A place is emptied only after its bit
//! was taken out of `filled` and nobody was seen inside: whoever comes later sees the bit gone. `tests/loom` checks this.

use crate::sync::{Arc, AtomicU64, LOOKS, Mutex, Ordering, UnsafeCell, spin_loop};

/// One bit each in a word.
pub(crate) const MOST: usize = 64;

/// The door's low bits count the readers inside, the others are tickets. More threads than that do not exist.
const INSIDE: u64 = (1 << 24) - 1;
const TICKET: u64 = INSIDE + 1;

pub(crate) struct Slots<T> {
    door: AtomicU64,
    /// Which places may be read.
    filled: AtomicU64,
    places: Box<[UnsafeCell<Option<Arc<T>>>]>,
    /// Held while places change.
    changing: Mutex<()>,
}

// SAFETY: places are read by readers inside while their bits are in `filled`, and written only by the holder of `changing`
// while their bits are not and nobody is inside that may have seen them.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}
// SAFETY: it owns its values.
unsafe impl<T: Send + Sync> Send for Slots<T> {}

impl<T> Slots<T> {
    /// Empty places; at most [`MOST`] are used.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            door: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            places: (0..places.min(MOST)).map(|_| UnsafeCell::new(None)).collect(),
            changing: Mutex::new(()),
        }
    }

    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_, T> {
        let ticket = self.door.fetch_add(TICKET | 1, Ordering::Acquire) / TICKET;
        Inside { slots: self, ticket, filled: self.filled.load(Ordering::Acquire) }
    }

    /// Puts a value into the first empty place of `among`; answers which, or `None` where all are filled.
    pub(crate) fn put(&self, among: u64, value: &Arc<T>) -> Option<usize> {
        let _one = self.changing.lock();
        let empty = among & !self.filled.load(Ordering::Relaxed);
        let index = (0..self.places.len()).find(|index| empty & bit(*index) != 0)?;
        let place = self.places.get(index)?;
        // SAFETY: the bit is not in `filled`, so nobody reads the place: it was empty from the beginning, or emptied by
        // `take` while nobody was inside. Nobody else writes while `changing` is held.
        place.with_mut(|place| unsafe { *place = Some(Arc::clone(value)) });
        self.filled.fetch_or(bit(index), Ordering::Release);
        Some(index)
    }

    /// Takes a value out that nobody else holds; `None` where somebody does, or readers came and went all the time.
    pub(crate) fn take(&self, index: usize) -> Option<Arc<T>> {
        let _one = self.changing.lock();
        let place = self.places.get(index)?;
        if self.filled.load(Ordering::Relaxed) & bit(index) == 0 {
            return None;
        }
        self.filled.fetch_and(!bit(index), Ordering::AcqRel);
        let mut taken = None;
        for _ in 0..LOOKS {
            // Adding nothing puts this look into the door's order: every reader either passed before it, and is seen
            // inside or has left, or passes after it and sees the bit gone.
            if self.door.fetch_add(0, Ordering::AcqRel) & INSIDE == 0 {
                // SAFETY: nobody is inside who saw the bit, nobody who comes sees it, and nobody else writes.
                taken = place
                    .with_mut(|place| unsafe { (*place).take_if(|value| Arc::strong_count(value) == 1) });
                break;
            }
            spin_loop();
        }
        if taken.is_none() {
            self.filled.fetch_or(bit(index), Ordering::Release);
        }
        taken
    }
}

/// The bit of a place.
#[inline]
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % MOST)
}

/// A reader: while it lives, nothing that it can see is taken out.
pub(crate) struct Inside<'a, T> {
    slots: &'a Slots<T>,
    ticket: u64,
    filled: u64,
}

impl<T> Inside<'_, T> {
    /// Counts the readers; wraps.
    #[inline]
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The bits of the places that have a value.
    #[inline]
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }

    /// Looks at a value, if there is one. Whoever clones it holds it beyond this reader.
    #[inline]
    pub(crate) fn look<R>(&self, index: usize, look: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        if self.filled & bit(index) == 0 {
            return None;
        }
        let place = self.slots.places.get(index % MOST)?;
        // SAFETY: the bit was seen after this reader passed the door, so the value was put before and stays until the
        // reader has left.
        place.with(|place| unsafe { (*place).as_ref() }.map(look))
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.slots.door.fetch_sub(1, Ordering::Release);
    }
}
