//! Copies whose thread waits for them at once, to which the first step of a staged one is left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use transload_core::{ErrorKind, Fence, Observer, TransferEvent};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::{stage, staged},
    watchdog::within,
    with,
};

const MIB: usize = 1 << 20;
/// Of one and of several staging buffers.
const LENGTHS: [usize; 3] = [100_000, 3 * MIB + 5, 9 * MIB];

#[test]
fn waited_copies_both_ways_are_in_place() {
    within("copies that are waited for at once", || {
        let (manager, _backend) = with(Mock::default());
        for length in LENGTHS {
            let (src, dst) = pair(&manager, length);
            for value in [1, 2] {
                set_bytes(&src, value);
                manager.copy(&src, &dst).options(staged()).wait().unwrap();
                assert!(bytes(&dst) == vec![value; length]);
                set_bytes(&src, 0);
                manager.copy(&dst, &src).options(staged()).wait().unwrap();
                assert!(bytes(&src) == vec![value; length]);
            }
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn waited_copies_that_fail_tell_it_and_leave_nothing() {
    within("copies that are waited for at once, and fail", || {
        let (manager, backend) = with(Mock::default());
        for length in LENGTHS {
            let (src, dst) = pair(&manager, length);
            stage(&manager, &src, &dst).wait().unwrap();
            for (from, to) in [(&src, &dst), (&dst, &src)] {
                backend.refuse_next(ErrorKind::Device);
                let error = manager.copy(from, to).options(staged()).wait().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                backend.fail_next(ErrorKind::Device);
                let error = manager.copy(from, to).options(staged()).wait().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                to.assume_written(..).unwrap();
            }
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn waited_copy_after_work_in_flight_waits_for_it() {
    within("copies behind others", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 9 * MIB);
        let (back, _) = pair(&manager, 9 * MIB);
        for value in 1..20 {
            set_bytes(&src, value);
            let up = stage(&manager, &src, &dst);
            manager.copy(&dst, &back).options(staged()).wait().unwrap();
            assert!(bytes(&back) == vec![value; 9 * MIB]);
            up.wait().unwrap();
        }
    });
}

/// Looks for the end of each copy before the thread that submits does.
#[derive(Default)]
struct Impatient {
    seen: AtomicU32,
    waits: bool,
}

impl Impatient {
    fn look(&self, end: &Fence) {
        if self.waits {
            end.wait().unwrap();
        }
        while !end.is_complete() {
            thread::yield_now();
        }
        self.seen.fetch_add(1, Ordering::Relaxed);
    }
}

impl Observer for Impatient {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { end: Some(end), .. } = event {
            self.look(end);
        }
    }
}

#[test]
fn copy_left_to_its_waiter_begins_for_who_looks_first() {
    within("copies whose end another looks for first", || {
        for waits in [false, true] {
            let observer = Arc::new(Impatient { waits, ..Impatient::default() });
            let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&observer) as _).build();
            manager.register_backend(Mock::default().build() as _).unwrap();
            let (src, dst) = pair(&manager, 3 * MIB);
            for value in [1, 2, 3] {
                set_bytes(&src, value);
                manager.copy(&src, &dst).options(staged()).wait().unwrap();
                assert!(bytes(&dst) == vec![value; 3 * MIB]);
            }
            assert_eq!(observer.seen.load(Ordering::Relaxed), 3);
        }
    });
}
