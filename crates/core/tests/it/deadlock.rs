//! Submitters that use the same buffers in opposite order do not deadlock.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use transload_core::{Access, ErrorKind, Operation, RawBuffer, Timing, submit, submit_async};

use crate::mock::{MockQueue, buffer};

/// Fails instead of hanging for ever.
fn within_a_minute(what: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let worker = thread::spawn(move || {
        what();
        let _nobody_waits_any_more = done.send(());
    });
    if over.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("a circle: not over after a minute");
    }
    worker.join().unwrap();
}

fn side_by_side(
    rounds: usize,
    each: impl Fn(usize, usize, &MockQueue, &[RawBuffer; 2]) + Send + Sync + 'static,
) {
    within_a_minute(move || {
        let buffers = Arc::new([buffer(100), buffer(100)]);
        let each = &each;
        thread::scope(|scope| {
            for index in 0..2 {
                let buffers = Arc::clone(&buffers);
                scope.spawn(move || {
                    let queue = MockQueue::new();
                    queue.at_once.store(true, Ordering::SeqCst);
                    (0..rounds).for_each(|round| each(index, round, &queue, &buffers));
                    assert_eq!(queue.count(), rounds as u64);
                });
            }
        });
    });
}

#[test]
fn opposite_copies_of_two_threads_do_not_deadlock() {
    side_by_side(10_000, |index, _, queue, [x, y]| {
        let (src, dst) = if index == 0 { (x, y) } else { (y, x) };
        queue.copy(src, dst).unwrap();
    });
}

#[test]
fn interleaved_batches_of_two_threads_do_not_deadlock() {
    side_by_side(5_000, |index, round, queue, [x, y]| {
        let part = |buffer: &RawBuffer, at: usize| buffer.slice(at * 10..at * 10 + 10 + index * 5).unwrap();
        let mut pairs = vec![(part(x, 0), part(y, 6)), (part(y, 2), part(x, 4)), (part(x, 7), part(y, 0))];
        pairs.rotate_left(round % 3);
        if index == 1 {
            pairs.iter_mut().for_each(|(src, dst)| std::mem::swap(src, dst));
        }
        submit(queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    });
}

#[test]
fn four_threads_of_mixed_uses_do_not_deadlock() {
    within_a_minute(|| {
        let buffers = [buffer(100), buffer(100), buffer(100)];
        thread::scope(|scope| {
            for index in 0..4_usize {
                let buffers = &buffers;
                scope.spawn(move || {
                    let queue = MockQueue::new();
                    queue.at_once.store(true, Ordering::SeqCst);
                    for round in 0..2_000_usize {
                        let part = |at: usize| {
                            let from = (round * 7 + at * 30) % 60;
                            buffers[(index + round + at) % 3].slice(from..from + 40).unwrap()
                        };
                        let (one, two) = (part(0), part(1));
                        let copy = Operation::Copy { src: &one, dst: &two };
                        // A view or a loan of another thread refuses what is in conflict, and only that.
                        let refused = match (round + index) % 5 {
                            0 => one.read().map(drop),
                            1 => one.write().map(drop),
                            2 => two.lend(Access::Write).map(drop),
                            3 => pollster::block_on(submit_async(&queue, &copy, Timing::Off)).map(drop),
                            _ => submit(&queue, &copy, Timing::Off).map(drop),
                        };
                        assert!(
                            refused.as_ref().map_or_else(|error| error.kind() == ErrorKind::Busy, |()| true),
                            "round {round}: {refused:?}"
                        );
                    }
                });
            }
        });
        for buffer in &buffers {
            drop(buffer.write().unwrap());
        }
    });
}
