//! Counts driver calls by name while a closure runs.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::api::thread_number;

/// Driver calls by name. Every call of a driver function is counted, those on the thread's context stack too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls of the thread that counts.
    pub own: BTreeMap<&'static str, u64>,
    /// Calls of all other threads.
    pub others: BTreeMap<&'static str, u64>,
}

/// Number of the thread that counts; 0 if none does.
static COUNTER: AtomicU64 = AtomicU64::new(0);
static COUNTS: Mutex<CallCounts> = Mutex::new(CallCounts { own: BTreeMap::new(), others: BTreeMap::new() });

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Counts the driver calls of the process, on all devices, while `work` runs. One thread at a time may count.
pub fn count_calls<T>(work: impl FnOnce() -> T) -> (T, CallCounts) {
    drop(std::mem::take(&mut *COUNTS.lock()));
    COUNTER.store(thread_number(), Ordering::SeqCst);
    let outcome = work();
    COUNTER.store(0, Ordering::SeqCst);
    (outcome, std::mem::take(&mut *COUNTS.lock()))
}

/// Returns whether the calling thread is inside a function of this driver. What it allocates there, a real driver would not
/// allocate from Rust's global allocator.
#[must_use]
pub fn is_in_call() -> bool {
    IN_CALL.try_with(Cell::get).unwrap_or(false)
}

/// A call under way; ends when dropped.
pub(crate) struct Call(bool);

impl Call {
    pub(crate) fn begin(name: &'static str) -> Self {
        let call = Self(IN_CALL.replace(true));
        let counter = COUNTER.load(Ordering::Relaxed);
        if counter != 0 {
            let mut counts = COUNTS.lock();
            let CallCounts { own, others } = &mut *counts;
            *if counter == thread_number() { own } else { others }.entry(name).or_default() += 1;
        }
        call
    }

    /// The caller's own code runs, called by the driver.
    pub(crate) fn leave() -> Self {
        Self(IN_CALL.replace(false))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        IN_CALL.set(self.0);
    }
}
