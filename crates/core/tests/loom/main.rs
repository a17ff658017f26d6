//! Every interleaving of the lock of a buffer's table, and of waiting for another's claim, that loom finds with two
//! preemptions. The file under test is included as it is, with loom's primitives for std's.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use crate::brief_lock::{Bell, BriefLock};

mod sync;

#[allow(unreachable_pub, reason = "it is public within the library")]
#[path = "../../src/brief_lock.rs"]
mod brief_lock;

/// Runs a model with at most two preemptions.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

#[test]
fn one_at_a_time_has_the_lock_and_sees_what_was_done_before() {
    model(|| {
        let shared = Arc::new((BriefLock::new(0_u32), AtomicUsize::new(0)));
        let add = |shared: &(BriefLock<u32>, AtomicUsize)| {
            let mut value = shared.0.lock();
            assert_eq!(shared.1.fetch_add(1, Ordering::Relaxed), 0, "two have it");
            *value += 1;
            shared.1.fetch_sub(1, Ordering::Relaxed);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || add(&shared))
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        add(&shared);
        assert_eq!(*shared.0.lock(), 3);
    });
}

/// The part of a table that waiting is about.
#[derive(Default)]
struct Table {
    claimed: bool,
    awaited: bool,
    /// Operations that were committed.
    committed: u32,
}

struct Buffer {
    table: BriefLock<Table>,
    resolved: Bell,
    /// Whether some submitter is between its claim and its commit.
    enqueueing: AtomicBool,
}

impl Buffer {
    /// As `Hazards::claim`, the call into the driver, and `Hazards::commit`.
    fn submit(&self) {
        loop {
            let mut table = self.table.lock();
            if !table.claimed {
                table.claimed = true;
                break;
            }
            drop(table);
            self.resolved.sleep_while(|| {
                let mut table = self.table.lock();
                let pending = table.claimed;
                table.awaited |= pending;
                pending
            });
        }
        assert!(
            !self.enqueueing.swap(true, Ordering::Relaxed),
            "another claim of the range was not committed"
        );
        assert!(self.enqueueing.swap(false, Ordering::Relaxed));
        let mut table = self.table.lock();
        table.claimed = false;
        table.committed += 1;
        let awaited = std::mem::take(&mut table.awaited);
        drop(table);
        if awaited {
            self.resolved.ring();
        }
    }
}

#[test]
fn a_claim_waits_for_the_commit_before_it_and_never_sleeps_through_it() {
    model(|| {
        let buffer = Arc::new(Buffer {
            table: BriefLock::new(Table::default()),
            resolved: Bell::default(),
            enqueueing: AtomicBool::new(false),
        });
        let other = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || buffer.submit())
        };
        buffer.submit();
        other.join().unwrap();
        assert_eq!(buffer.table.lock().committed, 2);
    });
}
