//! An operation comes after exactly those that conflict with it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use transload_core::{
    Access, Claims, ErrorKind, Fence, MemoryKind, Operation, Pitched, Queue, RawBuffer, Timing, submit,
};

use crate::mock::{MockQueue, buffer, host_buffer, key};

#[test]
fn write_waits_for_earlier_reads_and_write() {
    let (first, second, third) = (MockQueue::new(), MockQueue::new(), MockQueue::new());
    let (shared, a, b) = (buffer(100), buffer(100), buffer(100));
    let write = first.write(&shared).unwrap();
    let read_a = second.copy(&shared, &a).unwrap();
    assert_eq!(second.last_after(), [key(&write)], "read after write");
    let read_b = third.copy(&shared, &b).unwrap();
    assert_eq!(third.last_after(), [key(&write)], "a read does not wait for a read");
    let overwrite = first.write(&shared).unwrap();
    let mut expected = [key(&read_a), key(&read_b)];
    expected.sort();
    assert_eq!(
        first.last_after(),
        expected,
        "write after reads; after its own write it is by its place in the queue"
    );
    let fourth = MockQueue::new();
    fourth.copy(&shared, &a).unwrap();
    let mut expected = [key(&overwrite), key(&read_a)];
    expected.sort();
    assert_eq!(fourth.last_after(), expected, "after the last write only, and what used the destination");
    assert_ne!(key(&write), key(&overwrite));
}

#[test]
fn reads_do_not_wait_for_reads() {
    let (first, second) = (MockQueue::new(), MockQueue::new());
    let (shared, a, b) = (buffer(100), buffer(100), buffer(100));
    first.copy(&shared, &a).unwrap();
    second.copy(&shared, &b).unwrap();
    assert_eq!(second.last_after(), []);
}

#[test]
fn pieces_that_adjoin_are_claimed_as_one() {
    let (src, dst) = (buffer(1_000), buffer(1_000));
    let piece = |of: &RawBuffer, index: usize| of.slice(10 * index..10 * index + 10).unwrap();
    let pieces: Vec<_> = (0..100).map(|index| (piece(&src, index * 77 % 100), piece(&dst, index))).collect();
    let uses = pieces.iter().flat_map(|(src, dst)| [(src, Access::Read), (dst, Access::Write)]);
    let claims = Claims::acquire(&mut uses.collect::<Vec<_>>()).unwrap();
    assert!(format!("{claims:?}").contains("held: 2,"), "{claims:?}");
}

#[test]
fn pitched_copy_hides_no_write_of_its_source() {
    let [first, second, third] = [(); 3].map(|()| MockQueue::new());
    let (src, a, b) = (buffer(64), buffer(64), buffer(64));
    let write = first.write(&src).unwrap();
    let rows = Pitched::new(8, 2, 32, 32);
    submit(&second, &Operation::CopyPitched { src: &src, dst: &a, rows }, Timing::Off).unwrap();
    third.copy(&src, &b).unwrap();
    assert_eq!(third.last_after(), [key(&write)]);
}

#[test]
fn disjoint_ranges_do_not_conflict_and_touching_ones_do() {
    let (first, second) = (MockQueue::new(), MockQueue::new());
    let shared = buffer(100);
    let part = |range: std::ops::Range<usize>| shared.slice(range).unwrap();
    let write = first.write(&part(10..50)).unwrap();
    for apart in [0..10, 50..100, 10..10, 30..30] {
        second.write(&part(apart.clone())).unwrap();
        assert_eq!(second.last_after(), [], "{apart:?}");
    }
    let touching = MockQueue::new();
    touching.copy(&part(49..50), &buffer(1)).unwrap();
    assert_eq!(touching.last_after(), [key(&write)]);
}

#[test]
fn what_is_known_to_be_over_is_not_waited_for() {
    let (first, second) = (MockQueue::new(), MockQueue::new());
    let shared = buffer(100);
    let write = first.write(&shared).unwrap();
    first.complete(write.point());
    second.write(&shared).unwrap();
    assert_eq!(second.last_after(), []);
}

#[test]
fn table_stays_small_without_polls() {
    let queues = [MockQueue::new(), MockQueue::new(), MockQueue::new()];
    let (shared, other) = (buffer(100), buffer(100));
    for round in 0..10_000_usize {
        let queue = &queues[round % 3];
        let part = if round % 5 == 0 { shared.slice(20..80).unwrap() } else { shared.clone() };
        match round % 2 {
            0 => queue.write(&part).map(|_| ()).unwrap(),
            _ => queue.copy(&shared, &other).map(|_| ()).unwrap(),
        }
        // Dependencies are the entries of the table that conflict: here all of both tables.
        assert!(queue.last_after().len() <= 8, "round {round}: {:?}", queue.last_after());
    }
    let others = [buffer(100), buffer(100), buffer(100)];
    for round in 0..10_000_usize {
        queues[round % 3].copy(&shared, &others[round % 3]).unwrap();
    }
    queues[0].write(&shared).unwrap();
    assert!(queues[0].last_after().len() <= 8, "one entry for the reads of a queue");
    assert_eq!(queues[0].line().polls.load(Ordering::SeqCst), 0);
}

#[test]
fn a_refused_operation_leaves_no_trace() {
    let (queue, other) = (MockQueue::new(), MockQueue::new());
    let (a, b) = (buffer(100), buffer(100));
    queue.refuse.store(true, Ordering::SeqCst);
    for _ in 0..1000 {
        assert_eq!(queue.copy(&a, &b).unwrap_err().kind(), ErrorKind::Device);
    }
    other.copy(&b, &a).unwrap();
    assert_eq!(other.last_after(), []);
    other.complete(1);
    assert!(a.try_write().is_ok() && b.try_write().is_ok());

    // Refused by the second buffer, after the first was claimed.
    let view = b.write().unwrap();
    assert_eq!(other.copy(&a, &b).unwrap_err().kind(), ErrorKind::Busy);
    assert!(a.try_write().is_ok());
    drop(view);
}

#[test]
fn batch_with_empty_pair_does_not_wait_for_itself() {
    let (a, b) = (buffer(100), buffer(100));
    let queue = MockQueue::new();
    let pair = |at: std::ops::Range<usize>| (b.slice(at.clone()).unwrap(), a.slice(at).unwrap());
    let pairs = [pair(50..50), pair(0..100)];
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let fence = submit(&queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off);
        let _test_is_over = done.send(fence.map(|_| ()));
    });
    let begun = Instant::now();
    let outcome = outcome.recv_timeout(Duration::from_secs(60));
    outcome.unwrap_or_else(|_| panic!("not submitted after {:?}", begun.elapsed())).unwrap();
}

/// Source and destination, the source made first or last: claims are made in the order of identities.
fn source_and_destination(source_first: bool) -> (transload_core::RawBuffer, transload_core::RawBuffer) {
    let (older, newer) = (host_buffer(MemoryKind::Pinned, 100), host_buffer(MemoryKind::Pinned, 100));
    if source_first { (older, newer) } else { (newer, older) }
}

#[test]
fn copy_follows_other_queues_work_on_both_buffers() {
    for (source_first, with_source) in [(true, true), (true, false), (false, true), (false, false)] {
        let (own, foreign) = (MockQueue::new(), MockQueue::new());
        let (src, dst) = source_and_destination(source_first);
        own.copy(&src, &dst).unwrap();
        let write = foreign.write(if with_source { &src } else { &dst }).unwrap();
        let uses = (src.uses(), dst.uses());
        own.copy(&src, &dst).unwrap();
        assert_eq!(
            own.last_after(),
            [key(&write)],
            "source first: {source_first}, its source: {with_source}"
        );
        assert_eq!((src.uses(), dst.uses()), (uses.0 + 1, uses.1 + 1));
        foreign.complete(write.point());
        own.copy(&src, &dst).unwrap();
        assert_eq!(own.last_after(), [], "what is left is its own");
    }
}

#[test]
fn copy_blocked_on_one_buffer_holds_neither() {
    for (source_first, views_source) in [(true, true), (true, false), (false, true), (false, false)] {
        let queue = MockQueue::new();
        let (src, dst) = source_and_destination(source_first);
        let (viewed, free) = if views_source { (&src, &dst) } else { (&dst, &src) };
        let view = viewed.write().unwrap();
        assert_eq!(queue.copy(&src, &dst).unwrap_err().kind(), ErrorKind::Busy);
        drop(free.try_write().unwrap());
        drop(view);
        drop(viewed.try_write().unwrap());
        queue.copy(&src, &dst).unwrap();
    }
}

#[test]
fn refused_copy_holds_nothing() {
    let queue = MockQueue::new();
    let (src, dst) = source_and_destination(true);
    let first = queue.copy(&src, &dst).unwrap();
    queue.refuse.store(true, Ordering::SeqCst);
    assert_eq!(queue.copy(&src, &dst).unwrap_err().kind(), ErrorKind::Device);
    queue.refuse.store(false, Ordering::SeqCst);
    let other = MockQueue::new();
    other.write(&dst).unwrap();
    assert_eq!(other.last_after(), [key(&first)], "what was refused is no use");
    queue.complete(first.point());
    drop(src.try_write().unwrap());
}

#[test]
fn reads_of_one_list_may_be_committed_in_any_order() {
    for (count, newest_first) in [(4, false), (4, true), (10, false), (10, true)] {
        let (queue, other, source) = (MockQueue::new(), MockQueue::new(), buffer(1000));
        let parts: Vec<_> = (0..count).map(|at| source.slice(20 * at..20 * at + 10).unwrap()).collect();
        let claim = || {
            let mut uses: Vec<_> = parts.iter().map(|part| (part, Access::Read)).collect();
            Claims::acquire(&mut uses).unwrap()
        };
        let (one, two) = (claim(), claim());
        (0..2).for_each(|_| drop(queue.write(&buffer(8)).unwrap()));
        let at = |point| Fence::new(Arc::clone(queue.timeline()), point);
        let (first, second) = if newest_first { (at(2), at(1)) } else { (at(1), at(2)) };
        // SAFETY: nothing runs, and nothing was in flight before.
        unsafe {
            one.commit(&first);
            two.commit(&second);
        }
        other.write(&source).unwrap();
        assert_eq!(other.last_after(), [key(&at(2))], "{count} pieces");
    }
}
