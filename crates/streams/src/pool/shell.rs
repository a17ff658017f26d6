//! A place for a value: leased by one addition, given back by one subtraction, emptied while nobody holds it.
//!
//! A shell stays where it is while its owner lives, so that whoever finds it empty has touched nothing that went away. What
//! is leased then outlives the owner: the last lease frees the shell. `tests/loom` checks this.

use std::{ops::Deref, ptr::NonNull};

use crate::sync::{AtomicU64, Ordering, UnsafeCell, fence};

/// The low half counts leases, the high half looks. To carry from one into the other takes billions of forgotten leases; the
/// sum stays right then, and with it everything but the numbers shown.
const LEASE: u64 = 1;
const LOOK: u64 = 1 << 31;
const LEASES: u64 = LOOK - 1;
/// Leases and looks: while there is one, the value stays.
const HOLDS: u64 = ORPHAN - 1;
/// The owner is gone.
const ORPHAN: u64 = 1 << 62;
/// There is no value, or it is being taken out.
const RETIRED: u64 = 1 << 63;

// Threads that lease different shells write different cache lines (two, since they are fetched in pairs).
#[repr(align(128))]
struct Shell<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
    /// What the last lease was for.
    note: AtomicU64,
}

/// The shell's owner.
pub(crate) struct Place<T> {
    shell: NonNull<Shell<T>>,
}

/// A lease of the value. May outlive the place.
pub(crate) struct Held<T> {
    shell: NonNull<Shell<T>>,
}

/// A look at the value that does not count as a lease.
pub(crate) struct Look<'a, T> {
    place: &'a Place<T>,
}

// SAFETY: the value is reached by shared references from any thread, and dropped by whichever is the last.
unsafe impl<T: Send + Sync> Send for Place<T> {}
// SAFETY: as above; it is put in and taken out by one thread at a time, as `fill` and `take` ask for.
unsafe impl<T: Send + Sync> Sync for Place<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Held<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Held<T> {}

impl<T> Place<T> {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let shell =
            Shell { state: AtomicU64::new(RETIRED), value: UnsafeCell::new(None), note: AtomicU64::new(0) };
        Self { shell: NonNull::from(Box::leak(Box::new(shell))) }
    }

    #[inline]
    fn shell(&self) -> &Shell<T> {
        // SAFETY: the shell is freed after its owner has said that it is gone.
        unsafe { self.shell.as_ref() }
    }

    /// A lease, and how many others there were; `None` where the place is empty.
    #[inline]
    pub(crate) fn hold(&self) -> Option<(Held<T>, u64)> {
        let before = self.enter(LEASE)?;
        Some((Held { shell: self.shell }, before & LEASES))
    }

    /// A look, and how many leases there were; `None` where the place is empty.
    pub(crate) fn look(&self) -> Option<(Look<'_, T>, u64)> {
        let before = self.enter(LOOK)?;
        Some((Look { place: self }, before & LEASES))
    }

    /// Adds a hold and answers the state before it. From here on the value stays, unless it was gone.
    #[inline]
    fn enter(&self, hold: u64) -> Option<u64> {
        let before = self.shell().state.fetch_add(hold, Ordering::Acquire);
        if before & RETIRED != 0 {
            self.shell().state.fetch_sub(hold, Ordering::Relaxed);
            return None;
        }
        Some(before)
    }

    /// Puts a value in and leases it.
    ///
    /// # Safety
    /// * The place is empty.
    /// * Nobody else is in `fill` or `take` of this place, and whoever was before is known to have left.
    pub(crate) unsafe fn fill(&self, value: T) -> Held<T> {
        // SAFETY: nobody reads the value while `RETIRED` is set, and nobody else writes it, as the caller promises.
        self.shell().value.with_mut(|place| unsafe { *place = Some(value) });
        // At once no longer retired and leased. Whoever enters behind this sees the value.
        self.shell().state.fetch_sub(RETIRED - LEASE, Ordering::Release);
        Held { shell: self.shell }
    }

    /// Takes the value out where nobody holds it, and `may` agrees.
    ///
    /// # Safety
    /// Nobody else is in `fill` or `take` of this place, and whoever was before is known to have left.
    pub(crate) unsafe fn take(&self, may: impl FnOnce(&T) -> bool) -> Option<T> {
        let state = &self.shell().state;
        // Acquires what every former holder did with the value: each left by a change of the state that was a release.
        state.compare_exchange(0, RETIRED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: nobody held the value, whoever comes sees `RETIRED`, and nobody else writes it, as the caller promises.
        let taken = self.shell().value.with_mut(|place| unsafe { (*place).take_if(|value| may(value)) });
        if taken.is_none() {
            state.fetch_and(!RETIRED, Ordering::Release);
        }
        taken
    }

    /// How many leases there are just now.
    #[inline]
    pub(crate) fn leases(&self) -> u64 {
        self.shell().state.load(Ordering::Relaxed) & LEASES
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        let before = self.shell().state.fetch_or(ORPHAN, Ordering::AcqRel);
        if before & HOLDS == 0 {
            // SAFETY: nobody holds the value, and nobody finds the shell any more.
            unsafe { free(self.shell) };
        }
    }
}

impl<T> Held<T> {
    #[inline]
    fn shell(&self) -> &Shell<T> {
        // SAFETY: a shell is freed after its last lease.
        unsafe { self.shell.as_ref() }
    }

    /// Says what the lease is for.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        self.shell().note.store(note, Ordering::Relaxed);
    }

    /// What the latest lease is for.
    #[inline]
    pub(crate) fn note(&self) -> u64 {
        self.shell().note.load(Ordering::Relaxed)
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is a value, put in before this lease was had, and it stays while the lease is held.
        self.shell().value.with(|value| unsafe { (*value).as_ref().unwrap_unchecked() })
    }
}

impl<T> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a shell is freed after its last lease; it is not touched after the subtraction unless this is it.
        let before = unsafe { self.shell.as_ref() }.state.fetch_sub(LEASE, Ordering::Release);
        if before & (ORPHAN | HOLDS) == ORPHAN | LEASE {
            // Everything that others did with the value comes before its end.
            fence(Ordering::Acquire);
            // SAFETY: the owner is gone, so that nobody finds the shell any more, and this was the last lease.
            unsafe { free(self.shell) };
        }
    }
}

impl<T> Deref for Look<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is a value, put in before this look began, and it stays while that lasts.
        self.place.shell().value.with(|value| unsafe { (*value).as_ref().unwrap_unchecked() })
    }
}

impl<T> Drop for Look<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.place.shell().state.fetch_sub(LOOK, Ordering::Release);
    }
}

/// # Safety
/// Nobody uses the shell any more, and what others did with it is known here.
#[cold]
unsafe fn free<T>(shell: NonNull<Shell<T>>) {
    // SAFETY: it was leaked from a box by `Place::new`, and the caller is the only one to free it.
    let shell = unsafe { Box::from_raw(shell.as_ptr()) };
    // SAFETY: nobody else uses it. (Done by hand so that loom sees it.)
    shell.value.with_mut(|value| unsafe { *value = None });
}
