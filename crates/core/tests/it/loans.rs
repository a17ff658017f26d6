//! A loan excludes conflicting work until it ends, and its end orders later work after the borrower's.

use std::{
    future::Future as _,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use transload_core::{
    Access, ErrorKind, Fence, MemoryKind, Operation, Pattern, Place, Queue, RawBuffer, Reclaimer, Timing,
    Turns, submit_after, try_submit_after,
};

use crate::{
    failures::{assert_source_failed, damaged},
    mock::{DEVICE, MockQueue, buffer, key, memory, storage_at},
};

#[test]
fn loan_for_writing_excludes_conflicts_on_its_range_only() {
    let queue = MockQueue::new();
    let (shared, other) = (buffer(100), buffer(50));
    let (lent, rest) = (shared.slice(..50).unwrap(), shared.slice(50..).unwrap());
    let loan = lent.lend(Access::Write).unwrap();
    for error in [
        queue.copy(&lent, &other).unwrap_err(),
        queue.write(&shared).unwrap_err(),
        lent.read().unwrap_err(),
        shared.try_write().unwrap_err(),
        shared.lend(Access::Read).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Busy);
        for words in ["in use by other code, for writing", "end the `StreamUse`", "`Loan`"] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    queue.write(&rest).unwrap();
    drop(rest.lend(Access::Read).unwrap());
    assert_eq!((loan.buffer().len(), loan.after().len()), (50, 0));
    drop(loan);
    queue.write(&lent).unwrap();
}

#[test]
fn loan_for_reading_allows_readers() {
    let queue = MockQueue::new();
    let (shared, other) = (buffer(100), buffer(100));
    let loans = [(); 2].map(|()| shared.lend(Access::Read).unwrap());
    queue.copy(&shared, &other).unwrap();
    drop(shared.read().unwrap());
    let error = queue.write(&shared).unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("for reading"), "{error}");
    drop(loans);
    queue.write(&shared).unwrap();
}

#[test]
fn loan_returns_earlier_work_and_keeps_it() {
    let (first, second) = (MockQueue::new(), MockQueue::new());
    let shared = buffer(100);
    let write = first.write(&shared).unwrap();
    let loan = shared.lend(Access::Read).unwrap();
    assert_eq!(loan.after().iter().map(key).collect::<Vec<_>>(), [key(&write)]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| loan.wait_for_earlier_work());
        first.complete(1);
        waiting.join().unwrap().unwrap();
    });
    let again = first.write(&buffer(8)).unwrap();
    drop(loan);
    let write = first.write(&shared).unwrap();
    drop(shared.lend(Access::Write).unwrap());
    second.write(&shared).unwrap();
    assert_eq!(second.last_after(), [key(&write)], "what was in flight before a loan stays so");
    assert_ne!(key(&again), key(&write));
}

#[test]
fn loan_ended_after_fence_is_waited_for_and_kept_alive() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (borrower, ours) = (MockQueue::new(), MockQueue::new());
    let (shared, freed) = memory(&reclaimer, MemoryKind::Pageable, 100, true);
    let mut loan = shared.lend(Access::Write).unwrap();
    let end = borrower.write(&buffer(8)).unwrap();
    loan.end_after(std::slice::from_ref(&end));
    drop(loan);
    ours.copy(&shared, &buffer(100)).unwrap();
    assert_eq!(ours.last_after(), [key(&end)]);
    assert_eq!(shared.try_write().unwrap_err().kind(), ErrorKind::Busy);
    ours.complete(1);
    drop(shared);
    assert_eq!((reclaimer.len(), freed.load(std::sync::atomic::Ordering::SeqCst)), (1, false));
    borrower.complete(1);
    assert_eq!(reclaimer.sweep(), 1);
}

#[test]
fn a_loan_keeps_the_memory_and_ends_on_any_thread() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (shared, freed) = memory(&reclaimer, MemoryKind::Device, 100, true);
    let loan = shared.lend(Access::Write).unwrap();
    drop(shared);
    let freed_yet = || freed.load(std::sync::atomic::Ordering::SeqCst);
    assert!(!freed_yet());
    thread::scope(|scope| scope.spawn(|| drop(loan)).join().unwrap());
    assert!(freed_yet());
}

#[test]
fn next_use_follows_borrowers_work_in_flight() {
    let (whole, theirs, own) = (buffer(100), MockQueue::new(), MockQueue::new());
    let mut loan = whole.lend(Access::Write).unwrap();
    let fences = [theirs.write(&buffer(1)).unwrap(), theirs.write(&buffer(1)).unwrap()];
    loan.end_after(&fences);
    assert_eq!(whole.try_read().unwrap_err().kind(), ErrorKind::Busy, "it would have to wait");
    own.write(&whole).unwrap();
    assert_eq!(own.last_after(), [key(&fences[1])], "the last of the timeline implies the first");
    // The second time it does nothing.
    loan.end_after(&fences);
    drop(loan);
    theirs.complete(2);
    own.complete(1);
    assert!(whole.try_write().is_ok());
}

#[test]
fn concurrent_lends_and_submissions_never_hang() {
    let shared = buffer(100);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let queue = MockQueue::new();
                queue.at_once.store(true, std::sync::atomic::Ordering::SeqCst);
                for _ in 0..500 {
                    for outcome in [shared.lend(Access::Write).map(drop), queue.write(&shared).map(drop)] {
                        assert!(outcome.err().is_none_or(|error| error.kind() == ErrorKind::Busy));
                    }
                }
            });
        }
    });
    shared.try_write().unwrap().fill(1);
}

#[test]
fn loan_of_damaged_bytes_is_refused_until_assumed_written() {
    for access in [Access::Read, Access::Write] {
        // The first loan notices the failure, the second one meets the mark.
        let (_, lent) = damaged();
        for _ in 0..2 {
            assert_source_failed(lent.lend(access), "disk on fire");
        }
        lent.assume_written(..).unwrap();
        drop(lent.lend(access).unwrap());
    }
}

#[test]
fn loan_tells_the_failure_of_work_that_was_in_flight() {
    for access in [Access::Read, Access::Write] {
        let (host, stream) = (Arc::new(MockQueue::failing()), MockQueue::new());
        let [written, read, copied] = [(); 3].map(|()| buffer(64));
        [&written, &read].into_iter().for_each(|dst| drop(host.write(dst).unwrap()));
        stream.copy(&read, &copied).unwrap();
        let loans = [&written, &copied].map(|lent| lent.lend(access).unwrap());
        let failing = Arc::clone(&host);
        *host.line().on_wait.lock() = Some(Box::new(move || {
            failing.fail(1, "disk on fire");
            failing.fail(2, "disk on fire");
        }));
        assert_source_failed(loans[0].wait_for_earlier_work(), "disk on fire");
        // The copy is not complete yet, but what it read is damaged.
        assert_source_failed(loans[1].check_sources(), "disk on fire");
        drop(loans);
        stream.complete(1);
        [&written, &copied]
            .into_iter()
            .for_each(|lent| assert_source_failed(lent.lend(access), "disk on fire"));
    }
}

#[test]
fn points_not_enqueued_yet_hide_no_work_in_flight() {
    for way in ["loan", "new buffer", "submission", "attempt"] {
        let (first, second) = (MockQueue::new(), MockQueue::new());
        let never = [Fence::new(Arc::clone(first.timeline()), 1000)];
        let (storage, _) = storage_at(Place::new(DEVICE, MemoryKind::Device), 8, true);
        let behind = if way == "new buffer" { &never[..] } else { &[] };
        let shared = RawBuffer::new_after(Box::new(storage), &Arc::default(), behind);
        let read = first.copy(&shared, &buffer(8)).unwrap();
        if way == "loan" {
            shared.lend(Access::Read).unwrap().end_after(&never);
        }
        let write = Operation::Fill { dst: &shared, pattern: Pattern::U8(1) };
        match way {
            "submission" => drop(submit_after(&second, &write, &never, Timing::Off).unwrap()),
            "attempt" => {
                drop(try_submit_after(&second, &write, &never, Timing::Off, &Turns::default()).unwrap());
            }
            _ => drop(second.write(&shared).unwrap()),
        }
        assert_eq!(second.last_after(), [key(&read)], "{way}");
    }
}

#[test]
fn fence_of_a_point_not_enqueued_yet_is_one_of_the_last_that_is() {
    let queue = MockQueue::new();
    let fence = || Fence::new(Arc::clone(queue.timeline()), 1000);
    assert!(fence().is_known_complete() && fence().is_complete(), "nothing is in flight");
    let last = queue.write(&buffer(8)).unwrap();
    let fence = fence();
    assert_eq!(key(&fence), key(&last));
    assert!(!fence.is_known_complete() && !fence.is_complete());
    let mut done = pin!(fence.done());
    let mut context = Context::from_waker(Waker::noop());
    assert!(done.as_mut().poll(&mut context).is_pending());
    queue.complete(1);
    assert!(fence.is_known_complete() && fence.is_complete());
    assert!(matches!(done.poll(&mut context), Poll::Ready(Ok(()))));
    fence.wait().unwrap();
}
