//! Short copies that are complete when they return. A process of its own, since a hook of the host's accesses stays installed,
//! and has all copies make claims.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use transload_core::{
    Access, Claims, ErrorKind, HostBytes, MemoryKind, RawBuffer, Result, Timing, TrySubmitError, Turns,
    copy_on_host, try_submit,
};

use crate::mock::{MockQueue, host_buffer};

#[path = "../it/mock.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod mock;

const LIMIT: Duration = Duration::from_secs(60);

/// A buffer of bytes that are all different from their neighbours.
fn filled(len: usize, seed: u8) -> RawBuffer {
    let filled = host_buffer(MemoryKind::Pageable, len);
    for (index, byte) in filled.write().unwrap().iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(7).wrapping_add(seed);
    }
    filled
}

fn content(of: &RawBuffer) -> Vec<u8> {
    of.read().unwrap().to_vec()
}

/// Returns whether it was copied.
fn copy(src: &RawBuffer, dst: &RawBuffer) -> Result<bool> {
    copy_on_host(src, dst, Timing::Off).map(|took| took.is_some())
}

fn counts(of: &RawBuffer) -> (u64, u64) {
    (of.uses(), of.writes())
}

#[test]
fn copies_write_only_their_bytes_and_count_once() {
    for len in [1, 2, 63, 64, 65, 4095, 4096, 4097, 10_000] {
        for timing in [Timing::Off, Timing::Measured] {
            let (src, dst) = (filled(len + 20, 1), filled(len + 20, 100));
            let (from, mut expected) = (content(&src), content(&dst));
            expected[3..3 + len].copy_from_slice(&from[11..11 + len]);
            let before = (counts(&src), counts(&dst));
            let (part, target) = (src.slice(11..11 + len).unwrap(), dst.slice(3..3 + len).unwrap());
            let took = copy_on_host(&part, &target, timing).unwrap();
            assert_eq!(took.unwrap().is_zero(), timing == Timing::Off, "{len} bytes");
            let ((uses, writes), (target_uses, target_writes)) = before;
            assert_eq!(
                (counts(&src), counts(&dst)),
                ((uses + 1, writes), (target_uses + 1, target_writes + 1))
            );
            assert_eq!((content(&src), content(&dst)), (from, expected), "{len} bytes");
            assert!(dst.try_write().is_ok() && dst.in_flight().unwrap().is_empty());
        }
    }
}

#[test]
fn memory_of_every_kind_of_the_host_is_copied() {
    let kinds = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified];
    for (from, to) in kinds.iter().flat_map(|from| kinds.map(|to| (*from, to))) {
        let (src, dst) = (host_buffer(from, 64), host_buffer(to, 64));
        src.write().unwrap().fill(7);
        assert!(copy(&src, &dst).unwrap());
        assert_eq!(content(&dst), [7; 64], "{from} to {to}");
    }
}

#[test]
fn host_copy_during_work_in_flight_is_left_to_a_queue() {
    let queue = MockQueue::new();
    let (src, dst) = (filled(128, 1), filled(128, 2));
    let half = |of: &RawBuffer| of.slice(..64).unwrap();
    let before = content(&dst);
    // What is at the same place of the other buffer does not count.
    let (low, high) = (filled(128, 4), filled(128, 5));
    queue.write(&half(&low)).unwrap();
    assert!(!copy(&half(&low), &high.slice(64..).unwrap()).unwrap(), "of bytes to come");
    assert!(!copy(&high.slice(64..).unwrap(), &half(&low)).unwrap(), "over bytes to come");
    assert!(copy(&low.slice(64..).unwrap(), &half(&high)).unwrap());
    // Earlier reads of the source stay beside it; those of the target do not.
    queue.copy(&half(&src), &half(&filled(128, 3))).unwrap();
    assert!(copy(&half(&src), &dst.slice(64..).unwrap()).unwrap());
    queue.copy(&half(&dst), &half(&filled(128, 3))).unwrap();
    queue.write(&src.slice(64..).unwrap()).unwrap();
    assert!(!copy(&half(&src), &half(&dst)).unwrap(), "over bytes that are still read");
    assert!(!copy(&src.slice(32..96).unwrap(), &dst.slice(64..).unwrap()).unwrap(), "of bytes to come");
    assert_eq!(content(&dst)[..64], before[..64]);
    queue.complete(queue.count());
    for _ in 0..2 {
        assert!(copy(&half(&src), &half(&dst)).unwrap());
        assert_eq!(content(&dst)[..64], content(&src)[..64]);
    }
}

#[test]
fn refused_host_copy_leaves_its_source_free() {
    let queue = MockQueue::new();
    let (src, dst) = (filled(10_000, 1), filled(10_000, 2));
    queue.write(&dst).unwrap();
    assert!(!copy(&src, &dst).unwrap(), "over bytes to come");
    assert!(src.try_write().is_ok(), "nothing uses the source");
    queue.complete(queue.count());
    assert!(copy(&src, &dst).unwrap());
    assert!(copy(&dst.slice(..5000).unwrap(), &dst.slice(5000..).unwrap()).unwrap(), "within one allocation");
    let copied = content(&dst);
    assert!(copied[..5000] == content(&src)[..5000] && copied[5000..] == copied[..5000]);
    assert!(src.try_write().is_ok() && dst.try_write().is_ok());
}

#[test]
fn host_copy_during_conflicting_claim_returns_none() {
    let (src, dst) = (filled(128, 1), filled(128, 2));
    let before = content(&dst);
    for (of, access) in [(&src, Access::Write), (&dst, Access::Read), (&dst, Access::Write)] {
        let part = of.slice(..64).unwrap();
        let claims = Claims::acquire(&mut [(&part, access)]).unwrap();
        assert!(!copy(&src, &dst).unwrap(), "{access:?}");
        drop(claims);
        assert_eq!(content(&dst), before);
        let claims = Claims::acquire(&mut [(&part, access)]).unwrap();
        let rest = 64..;
        assert!(copy(&src.slice(rest.clone()).unwrap(), &dst.slice(rest).unwrap()).unwrap(), "{access:?}");
        drop(claims);
        assert_eq!((&content(&dst)[..64], &content(&dst)[64..]), (&before[..64], &content(&src)[64..]));
        dst.write().unwrap().copy_from_slice(&before);
    }
}

#[test]
fn copy_beside_an_open_view_in_conflict_is_busy() {
    let (src, dst) = (filled(64, 1), filled(64, 2));
    let read = src.read().unwrap();
    assert!(copy(&src, &dst).unwrap(), "both read the source");
    drop(read);
    for (of, writes) in [(&src, true), (&dst, false), (&dst, true)] {
        let views = (writes.then(|| of.write().unwrap()), (!writes).then(|| of.read().unwrap()));
        assert_eq!(copy(&src, &dst).unwrap_err().kind(), ErrorKind::Busy);
        drop(views);
        assert!(copy(&src, &dst).unwrap());
    }
}

#[test]
fn host_copy_does_not_pass_overtaken_waiter() {
    let (src, dst, queue) = (filled(64, 1), filled(64, 2), MockQueue::new());
    queue.waits_for_own_only.store(true, Ordering::SeqCst);
    let (turns, reader) = (Turns::default(), MockQueue::new());
    reader.copy(&src, &host_buffer(MemoryKind::Pageable, 64)).unwrap();
    // It waits to write the source, which others go on reading.
    let write = transload_core::Operation::Fill { dst: &src, pattern: transload_core::Pattern::U8(0) };
    let try_again = || try_submit(&queue, &write, Timing::Off, &turns);
    assert!(matches!(try_again(), Err(TrySubmitError::WouldBlock(_))));
    for overtakes in 0..16 {
        assert!(copy(&src, &dst).unwrap(), "after {overtakes}");
    }
    assert!(!copy(&src, &dst).unwrap(), "the waiter would never come");
    reader.complete(1);
    try_again().unwrap();
    queue.complete(1);
    drop(turns);
    assert!(copy(&src, &dst).unwrap());
}

#[test]
fn copy_within_allocation_or_aliased_bytes_is_whole() {
    let whole = filled(128, 1);
    let before = content(&whole);
    assert!(copy(&whole.slice(..64).unwrap(), &whole.slice(64..).unwrap()).unwrap());
    assert_eq!(content(&whole)[64..], before[..64]);
    let overlapping = copy(&whole.slice(..64).unwrap(), &whole.slice(32..96).unwrap());
    assert_eq!(overlapping.unwrap_err().kind(), ErrorKind::Overlap);
    let mut owner: Vec<u8> = (0..128).collect();
    let address = NonNull::from(owner.as_mut_slice()).cast::<u8>();
    let owner = Arc::new(owner);
    let wrap = |at: usize| {
        // SAFETY: the vector owns the bytes, lives as long as both wraps, and is not looked at otherwise.
        let storage =
            unsafe { HostBytes::new(Arc::clone(&owner), address.add(at), 96, MemoryKind::Pageable, true) };
        RawBuffer::new(Box::new(storage), &Arc::default())
    };
    let (low, high) = (wrap(0), wrap(32));
    assert!(copy(&low, &high).unwrap());
    assert_eq!(content(&high), (0..96).collect::<Vec<u8>>());
    assert!(copy(&high, &low).unwrap());
    assert_eq!(content(&low), (0..96).collect::<Vec<u8>>());
}

/// Copies both ways by several threads, each buffer of one byte's repetition: neither a torn copy nor a circle.
#[test]
fn opposite_copies_never_deadlock_or_mix_bytes() {
    let (done, over) = mpsc::channel();
    let worker = thread::spawn(move || {
        let (a, b) = (host_buffer(MemoryKind::Pageable, 4096), host_buffer(MemoryKind::Pageable, 4096));
        b.write().unwrap().fill(1);
        let (is_complete, before) = (AtomicBool::new(false), [counts(&a).0, counts(&b).0]);
        let copied = thread::scope(|scope| {
            let copiers = [(&a, &b), (&b, &a), (&a, &b), (&b, &a)].map(|(src, dst)| {
                scope.spawn(move || {
                    (0..20_000).filter(|_| copy(src, dst).is_ok_and(|is_copied| is_copied)).count() as u64
                })
            });
            let looks = scope.spawn(|| {
                while !is_complete.load(Ordering::SeqCst) {
                    for view in [&a, &b].into_iter().filter_map(|of| of.try_read().ok()) {
                        assert!(view.iter().all(|byte| *byte == view[0]), "bytes of two copies");
                    }
                    thread::yield_now();
                }
            });
            let copied = copiers.map(|copier| copier.join().unwrap()).iter().sum::<u64>();
            is_complete.store(true, Ordering::SeqCst);
            looks.join().unwrap();
            copied
        });
        assert!(copied > 0 && counts(&a).0 - before[0] >= copied && counts(&b).0 - before[1] >= copied);
        done.send(()).unwrap();
    });
    if over.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("a circle: not over after a minute");
    }
    worker.join().unwrap();
}
