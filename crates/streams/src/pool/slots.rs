//! Values in fixed places, leased by any thread without a lock, put in and taken out by one thread at a time.

use super::shell::{Held, Look, Place};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// One bit each in a word.
pub(crate) const MOST: usize = 64;

pub(crate) struct Slots<T> {
    places: Box<[Place<T>]>,
    /// Which places have a value, to be found quickly; the places themselves say it for certain.
    filled: AtomicU64,
    /// Held while places change.
    changing: Mutex<()>,
}

impl<T> Slots<T> {
    /// Empty places; at most [`MOST`].
    pub(crate) fn new(places: usize) -> Self {
        Self {
            places: (0..places.min(MOST)).map(|_| Place::new()).collect(),
            filled: AtomicU64::new(0),
            changing: Mutex::new(()),
        }
    }

    /// The bits of the places that have a value.
    #[inline]
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Leases the value of a place, if there is one, and answers how many other leases there were.
    #[inline]
    pub(crate) fn hold(&self, index: usize) -> Option<(Held<T>, u64)> {
        self.places.get(index)?.hold()
    }

    /// Looks at the value of a place, if there is one, without leasing it, and answers how many leases there were.
    pub(crate) fn look(&self, index: usize) -> Option<(Look<'_, T>, u64)> {
        self.places.get(index)?.look()
    }

    /// How many leases of a place's value there are.
    #[inline]
    pub(crate) fn leases(&self, index: usize) -> u64 {
        self.places.get(index).map_or(0, Place::leases)
    }

    /// Puts a value into the first empty place of `among` and leases it; answers which, or the value where all are filled.
    pub(crate) fn put(&self, among: u64, value: T) -> Result<(usize, Held<T>), T> {
        let _one = self.changing.lock();
        let empty = among & !self.filled();
        let found = self.places.iter().enumerate().find(|(index, _)| empty & bit(*index) != 0);
        let Some((index, place)) = found else { return Err(value) };
        // SAFETY: places are filled and emptied while `changing` is held, which also says which are empty.
        let held = unsafe { place.fill(value) };
        self.filled.fetch_or(bit(index), Ordering::Relaxed);
        Ok((index, held))
    }

    /// Takes out a value that nobody holds, where `may` agrees, told the bits of all that are filled.
    pub(crate) fn take(&self, index: usize, may: impl FnOnce(u64, &T) -> bool) -> Option<T> {
        let _one = self.changing.lock();
        let filled = self.filled();
        let place = self.places.get(index).filter(|_| filled & bit(index) != 0)?;
        // SAFETY: places are filled and emptied while `changing` is held.
        let taken = unsafe { place.take(|value| may(filled, value)) }?;
        self.filled.fetch_and(!bit(index), Ordering::Relaxed);
        Some(taken)
    }
}

/// The bit of a place.
#[inline]
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % MOST)
}
