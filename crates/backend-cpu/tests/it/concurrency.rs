//! Concurrent submission by many threads.

use std::thread;

use transload_core::{Backend, Operation, Timing, submit};

use crate::{allocate, backend, lease, noise};

#[test]
fn concurrent_copies_between_shared_buffers_complete() {
    const THREADS: usize = 12;
    const ROUNDS: usize = 100;
    const PART: usize = 90_001;
    let backend = backend(3, 1 << 20);
    let content = noise(7, THREADS * PART);
    let src = backend.wrap_readonly(content.clone());
    let (there, back) = (allocate(&backend, content.len()), allocate(&backend, content.len()));
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (backend, src, there, back) = (&backend, &src, &there, &back);
            scope.spawn(move || {
                let own = index * PART..(index + 1) * PART;
                let queues = [lease(backend), lease(backend)];
                for round in 0..ROUNDS {
                    // Sometimes inline, sometimes by a worker; each on the other queue than the one before.
                    let bytes = if round % 3 == 0 { 1000 + round } else { PART };
                    let part = own.start..own.start + bytes;
                    let [src, there, back] =
                        [src, there, back].map(|buffer| buffer.slice(part.clone()).unwrap());
                    let there_copy = Operation::Copy { src: &src, dst: &there };
                    let back_copy = Operation::Copy { src: &there, dst: &back };
                    submit(&*queues[round % 2], &there_copy, Timing::Off).unwrap();
                    let fence = submit(&*queues[(round + 1) % 2], &back_copy, Timing::Off).unwrap();
                    if round % 10 == 0 {
                        fence.wait().unwrap();
                    }
                }
            });
        }
    });
    assert!(*back.read().unwrap() == content[..]);
    drop((src, there, back));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn concurrent_writes_leave_one_writers_bytes() {
    let backend = backend(2, 200_000);
    let dst = allocate(&backend, 300_000);
    let sources: Vec<_> = (1..=6_u8).map(|value| backend.wrap_readonly(vec![value; 300_000])).collect();
    thread::scope(|scope| {
        for src in &sources {
            let (backend, dst) = (&backend, &dst);
            scope.spawn(move || {
                let queue = lease(backend);
                for _ in 0..50 {
                    submit(&*queue, &Operation::Copy { src, dst }, Timing::Off).unwrap();
                }
            });
        }
    });
    let view = dst.read().unwrap();
    assert!((1..=6).contains(&view[0]) && view.iter().all(|byte| *byte == view[0]));
}

/// Inline copies and copies on workers share one queue, whose idle state is acquired without a lock.
#[test]
fn threads_that_share_one_queue_lose_no_wake() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 3000;
    let (ended, end) = std::sync::mpsc::channel();
    let test = thread::spawn(move || {
        let backend = backend(2, usize::MAX);
        let queue = lease(&backend);
        thread::scope(|scope| {
            for index in 0..THREADS {
                let (backend, queue) = (&backend, &queue);
                scope.spawn(move || {
                    let (src, dst) = (backend.wrap_vec(vec![index as u8; 256]), allocate(backend, 256));
                    for round in 0..ROUNDS {
                        let copy = Operation::Copy { src: &src, dst: &dst };
                        let fence = submit(&**queue, &copy, Timing::Off).unwrap();
                        match (round + index) % 3 {
                            0 => fence.wait().unwrap(),
                            1 => pollster::block_on(fence.done()).unwrap(),
                            _ => {}
                        }
                    }
                    assert!(dst.read().unwrap().iter().all(|byte| *byte == index as u8));
                });
            }
        });
        assert_eq!(queue.outstanding(), 0);
        backend.drain().unwrap();
        ended.send(()).unwrap();
    });
    let limit = std::time::Duration::from_secs(60);
    let outcome = end.recv_timeout(limit);
    assert!(
        outcome != Err(std::sync::mpsc::RecvTimeoutError::Timeout),
        "a thread waits for a wake that was lost"
    );
    test.join().unwrap();
}
