//! A small number for each thread, in the order in which they ask first: for what threads have a share of each.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

const NONE: usize = usize::MAX;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

/// Returns the calling thread's number.
#[inline]
pub(crate) fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == NONE { give() } else { number }
}

#[cold]
fn give() -> usize {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}
