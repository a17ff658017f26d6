//! Every interleaving, at two preemptions, of registering memory and ending registrations: the table is the library's,
//! its lock is loom's.
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a model uses part of what it includes, and fails by panicking"
)]

#[path = "../../src/resource/registration/table.rs"]
mod table;

mod sync {
    pub(crate) use loom::sync::Arc;
}

use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex},
    thread,
};
use table::{Evicted, Plan, Request, Table};

/// Whether it is registered. loom detects any use concurrent with its end.
type Registration = UnsafeCell<bool>;
type Shared = Arc<Mutex<Table<Registration>>>;

fn model(work: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(work);
}

/// Uses a range; returns `false` if it is busy or in use.
fn use_range(shared: &Shared, range: std::ops::Range<usize>) -> bool {
    loop {
        let plan = shared.lock().unwrap().plan(&Request { range: range.clone(), writable: true }, &[]);
        match plan {
            Plan::Covered(registration) => {
                // SAFETY: registrations in use are not ended, which is what this checks.
                assert!(registration.with(|live| unsafe { *live }), "it was ended");
                return true;
            }
            Plan::Register => {
                let made = Arc::new(UnsafeCell::new(true));
                shared.lock().unwrap().ready(range.start, &made);
                // SAFETY: as above.
                assert!(made.with(|live| unsafe { *live }));
                return true;
            }
            Plan::Evict { joined, others } => {
                joined.into_iter().chain(others).for_each(|evicted| end(shared, &evicted));
            }
            Plan::Wait | Plan::InUse(_) | Plan::LimitExceeded(_) => return false,
        }
    }
}

fn end(shared: &Shared, evicted: &Evicted<Registration>) {
    // SAFETY: a busy entry is exclusive, which is what this test checks.
    evicted.payload.with_mut(|live| unsafe { *live = false });
    shared.lock().unwrap().remove(evicted.range.start);
}

#[test]
fn no_registration_ends_while_it_is_used() {
    model(|| {
        let shared: Shared = Arc::new(Mutex::new(Table::new(u64::MAX)));
        assert!(use_range(&shared, 0..10));
        let theirs = Arc::clone(&shared);
        let user = thread::spawn(move || use_range(&theirs, 2..5));
        let taken = shared.lock().unwrap().take_idle();
        taken.iter().for_each(|evicted| end(&shared, evicted));
        user.join().unwrap();
    });
}

#[test]
fn overlapping_ranges_are_never_registered_at_a_time() {
    model(|| {
        let shared: Shared = Arc::new(Mutex::new(Table::new(12)));
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || use_range(&theirs, 5..15));
        let own = use_range(&shared, 0..10);
        let theirs = other.join().unwrap();
        assert!(own || theirs, "one of two comes first");
        let table = shared.lock().unwrap();
        assert!(table.len() == 1 && table.bytes() == 10);
    });
}
