//! Small numbers for running threads, as indices into sharded state.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

const NONE: usize = usize::MAX;

static NEXT: AtomicUsize = AtomicUsize::new(0);
static RETURNED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static RETURN: Return = const { Return };
}

/// Returns the thread's number for another thread when this one ends.
struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        RETURNED.lock().push(NUMBER.get());
    }
}

/// Returns the calling thread's number, which no other running thread has, unless one of them is just ending.
#[inline]
pub(crate) fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == NONE { give() } else { number }
}

#[cold]
fn give() -> usize {
    let number = RETURNED.lock().pop().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.set(number);
    // A thread that is ending already keeps its number.
    let _ending = RETURN.try_with(|_| ());
    number
}
