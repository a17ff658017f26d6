//! Which of a fixed number of places a thread uses, for state that threads shall not share.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Places. Of more threads than this some share one.
pub const PLACES: usize = 64;

/// Returns the calling thread's place, below [`PLACES`]: threads get them in turn, each for good.
#[inline]
#[must_use]
pub fn place_of_thread() -> usize {
    thread_local! {
        static PLACE: Cell<usize> = const { Cell::new(PLACES) };
    }
    let place = PLACE.get();
    if place < PLACES {
        return place;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let place = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
    PLACE.set(place);
    place
}
