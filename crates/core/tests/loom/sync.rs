//! What `src/sync/mod.rs` gives the crate, of loom.

pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering, fence},
    thread::yield_now,
};

#[allow(unreachable_pub, reason = "it is public within the library")]
#[path = "../../src/sync/spin_lock.rs"]
#[allow(dead_code, reason = "a model uses part of what it includes")]
pub(crate) mod spin_lock;

pub(crate) const MAX_SPINS: u32 = 1;

pub(crate) fn spin_loop() {
    yield_now();
}

pub(crate) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;

/// Like parking_lot's: locking returns no error.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
        self.0.wait(guard).unwrap()
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Like std's, with the methods that are used.
#[derive(Debug, Default)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    pub(crate) fn update(&self, set: Ordering, fetch: Ordering, update: impl Fn(u64) -> u64) -> u64 {
        self.0.fetch_update(set, fetch, |before| Some(update(before))).unwrap()
    }
}
