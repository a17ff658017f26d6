//! A global allocator that counts allocations of all threads on demand.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    backtrace::Backtrace,
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Number of backtraces still to print.
static EXPLAIN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static COUNT_OF_THREAD: Cell<u64> = const { Cell::new(0) };
    /// Set while printing a backtrace, which allocates too.
    static EXPLAINING: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator with a counter. Install it as the global allocator.
#[derive(Debug)]
pub struct Counting;

/// Counts allocations and reallocations of all threads while `work` runs, except those of the software driver itself.
///
/// # Errors
/// If `work` fails.
pub fn count<E>(work: impl FnOnce() -> Result<(), E>) -> Result<u64, E> {
    COUNT.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    let outcome = work();
    COUNTING.store(false, Ordering::SeqCst);
    outcome.map(|()| COUNT.load(Ordering::SeqCst))
}

/// Like [`count`], but only of the calling thread.
///
/// # Errors
/// If `work` fails.
pub fn count_of_thread<E>(work: impl FnOnce() -> Result<(), E>) -> Result<u64, E> {
    let before = COUNT_OF_THREAD.get();
    count(work).map(|_all| COUNT_OF_THREAD.get() - before)
}

/// Returns whether [`Counting`] is the global allocator. Otherwise a count of 0 means nothing.
#[must_use]
pub fn is_counting() -> bool {
    let counted = count::<()>(|| {
        drop(std::hint::black_box(Box::new(std::hint::black_box(1_u8))));
        Ok(())
    });
    counted.is_ok_and(|count| count > 0)
}

/// Prints the backtraces of at most `most` counted allocations.
pub fn explain(most: u32) {
    EXPLAIN.store(most, Ordering::SeqCst);
}

#[inline]
fn note() {
    if COUNTING.load(Ordering::Relaxed) {
        note_counted();
    }
}

#[cold]
fn note_counted() {
    #[cfg(any(target_os = "linux", windows))]
    if transload_cuda_sim::is_in_call() {
        return;
    }
    if EXPLAINING.try_with(Cell::get).unwrap_or(true) {
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    COUNT_OF_THREAD.set(COUNT_OF_THREAD.get() + 1);
    let left = EXPLAIN.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    if left.is_ok() {
        let _gone_with_its_thread = EXPLAINING.try_with(|explaining| {
            explaining.set(true);
            eprintln!("counted allocation:\n{}", Backtrace::force_capture());
            explaining.set(false);
        });
    }
}

// SAFETY: every method forwards its arguments to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(address, layout, size) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(address, layout) }
    }
}
