//! Copies whose thread waits for them at once, to which the first step of a staged one is left.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use transload_core::ErrorKind;

use crate::{
    Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::{stage, staged},
    watchdog::within,
    with,
};

const MIB: usize = 1 << 20;
/// Of one part, of one and of several staging buffers.
const LENGTHS: [usize; 4] = [60_000, 100_000, 3 * MIB + 5, 9 * MIB];

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

/// The copy of a `wait` begins within it, unless another thread looks for its end before.
#[test]
fn copy_left_to_its_waiter_begins_for_who_looks_first() {
    within("copies whose end another looks for", || {
        for waits in [false, true] {
            let (manager, _backend) = with(Mock::default());
            let (src, dst) = pair(&manager, 3 * MIB);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        for end in dst.in_flight().unwrap_or_default() {
                            if waits {
                                end.wait().unwrap();
                            } else {
                                std::hint::black_box(end.is_complete());
                            }
                        }
                    }
                });
                for value in 1..100 {
                    set_bytes(&src, value);
                    manager.copy(&src, &dst).options(staged()).wait().unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            assert!(bytes(&dst) == vec![99; 3 * MIB]);
        }
    });
}
