//! A failure reaches all readers of the bytes that the failed work should have written, and no other work.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Waker},
};

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, HostBytes, MemoryKind, Operation, Pitched, Queue,
    RawBuffer, Reclaimer, Recording, Result, Timing, Transfer, TransferMethod, TryLockResult, Turns, submit,
    try_submit,
};

use crate::mock::{MockQueue, buffer, host_buffer, key, memory};

fn cause(error: &Error) -> &Error {
    error.cause().and_then(|cause| cause.downcast_ref()).unwrap_or(error)
}

/// The failure of a source, by the failure `text`.
pub(crate) fn assert_source_failed<T: std::fmt::Debug>(outcome: Result<T>, text: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SourceFailed, "{error}");
    assert_eq!(
        (cause(&error).kind(), cause(&error).to_string().as_str()),
        (ErrorKind::Device, text),
        "{error}"
    );
}

pub(crate) fn part(whole: &RawBuffer, range: std::ops::Range<usize>) -> RawBuffer {
    whole.slice(range).unwrap()
}

/// A buffer whose bytes a failed write may have damaged.
pub(crate) fn damaged() -> (MockQueue, RawBuffer) {
    let (host, dst) = (MockQueue::failing(), buffer(64));
    host.write(&dst).unwrap();
    host.fail(1, "disk on fire");
    (host, dst)
}

#[test]
fn reader_behind_a_failed_write_ends_with_its_cause() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let (src, dst) = (host_buffer(MemoryKind::Pinned, 100), buffer(50));
    let staged = host.write(&src).unwrap();
    let read = stream.copy(&part(&src, 20..70), &dst).unwrap();
    assert!(!read.is_complete());
    host.fail(1, "disk on fire");
    stream.complete(1);
    assert_eq!(staged.wait().unwrap_err().to_string(), "disk on fire");
    assert_source_failed(read.wait(), "disk on fire");
    assert_source_failed(pollster::block_on(read.done()), "disk on fire");
    let text = read.wait().unwrap_err().to_string();
    assert!(text.contains("bytes 20 to 70") && text.contains("pinned"), "{text}");
    assert!(read.is_known_complete() && read.is_complete(), "its memory is free all the same");
}

#[test]
fn chained_readers_report_the_first_cause() {
    let (host, one, two) = (MockQueue::failing(), MockQueue::new(), MockQueue::new());
    let (a, b, c, d) = (buffer(64), buffer(64), buffer(64), buffer(64));
    host.write(&a).unwrap();
    let chain = [one.copy(&a, &b).unwrap(), two.copy(&b, &c).unwrap(), one.copy(&c, &d).unwrap()];
    host.fail(1, "disk on fire");
    one.complete(2);
    two.complete(1);
    chain.into_iter().for_each(|fence| assert_source_failed(fence.wait(), "disk on fire"));
    [&a, &b, &c, &d]
        .into_iter()
        .for_each(|damaged| assert_source_failed(damaged.read().map(drop), "disk on fire"));
}

#[test]
fn readers_of_other_bytes_and_overwrites_report_nothing() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let (whole, elsewhere) = (buffer(100), buffer(50));
    host.write(&part(&whole, 0..50)).unwrap();
    let apart = stream.copy(&part(&whole, 50..100), &elsewhere).unwrap();
    let over = stream.write(&part(&whole, 0..50)).unwrap();
    let behind = stream.copy(&part(&whole, 0..50), &elsewhere).unwrap();
    host.fail(1, "disk on fire");
    stream.complete(3);
    for fence in [apart, over, behind] {
        fence.wait().unwrap();
    }
    drop(whole.read().unwrap());
}

#[test]
fn write_that_inherits_a_failure_keeps_the_reads_of_other_devices() {
    let (host, worker, gpu) =
        (MockQueue::failing(), MockQueue::new(), MockQueue::on(DeviceId::Other("gpu", 0)));
    let (pinned, there, read, elsewhere) = (buffer(64), buffer(64), buffer(64), buffer(64));
    worker.copy(&read, &elsewhere).unwrap();
    host.write(&pinned).unwrap();
    gpu.copy(&pinned, &there).unwrap();
    gpu.copy(&there, &read).unwrap();
    // Its device is lost: all of it counts as complete, and the worker goes on.
    gpu.complete(2);
    assert_eq!(read.try_write().map(drop).unwrap_err().kind(), ErrorKind::Busy);
    worker.complete(1);
    host.complete(1);
    drop(read.try_write().unwrap());
}

/// Such a write hides those before it, but for what another device still does.
#[test]
fn write_that_inherits_a_failure_keeps_the_writes_of_other_devices() {
    for writes in [false, true] {
        let (host, worker, gpu) =
            (MockQueue::failing(), MockQueue::new(), MockQueue::on(DeviceId::Other("gpu", 0)));
        let (pinned, there, written, elsewhere) = (buffer(64), buffer(64), buffer(64), buffer(64));
        let in_flight = worker.write(&written).unwrap();
        host.write(&pinned).unwrap();
        gpu.copy(&pinned, &there).unwrap();
        gpu.copy(&there, &written).unwrap();
        // Its device is lost: all of it counts as complete, and the worker goes on.
        gpu.complete(2);
        let third = MockQueue::on(DeviceId::Other("gpu", 1));
        if writes { third.write(&written) } else { third.copy(&written, &elsewhere) }.unwrap();
        assert_eq!(third.last_after(), [key(&in_flight)], "{writes}");
        [&worker, &host, &third].into_iter().for_each(|queue| queue.complete(1));
        drop(written.try_write().unwrap());
    }
}

/// Reads and writes a range, as a kernel may.
#[derive(Debug)]
struct Increment([(RawBuffer, Access); 1]);

/// Writes rows of a range.
#[derive(Debug)]
struct Rows([(RawBuffer, Access); 1]);

// SAFETY: what a mock replays touches no memory.
unsafe impl Recording for Rows {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn uses(&self) -> &[(RawBuffer, Access)] {
        &self.0
    }

    fn keeps_bytes(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn replay_that_keeps_bytes_keeps_their_damage() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let [whole, rows] = [(); 2].map(|()| buffer(64));
    for dst in [&whole, &rows] {
        host.write(dst).unwrap();
    }
    [1, 2].into_iter().for_each(|point| host.fail(point, "disk on fire"));
    [&whole, &rows].into_iter().for_each(|dst| assert_source_failed(dst.read().map(drop), "disk on fire"));
    let replay = |recorded: &dyn Recording| {
        submit(&stream, &Operation::Replay { recorded }, Timing::Off).unwrap();
    };
    replay(&Increment([(whole.clone(), Access::Write)]));
    replay(&Rows([(rows.clone(), Access::Write)]));
    stream.complete(2);
    drop(whole.read().unwrap());
    assert_source_failed(rows.read().map(drop), "disk on fire");
}

// SAFETY: what a mock replays touches no memory.
unsafe impl Recording for Increment {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn uses(&self) -> &[(RawBuffer, Access)] {
        &self.0
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn updating_work_inherits_failure_of_its_bytes() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let [a, b] = [(); 2].map(|()| buffer(64));
    for dst in [&a, &b] {
        host.write(dst).unwrap();
    }
    let recorded = Increment([(a.clone(), Access::Write)]);
    let replay = submit(&stream, &Operation::Replay { recorded: &recorded }, Timing::Off).unwrap();
    // As a launch does it.
    let claims = Claims::updating(&mut [(&b, Access::Write)]).unwrap();
    assert_eq!(claims.after().len(), 1);
    let launch = claims.inherit(Fence::new(Arc::clone(stream.timeline()), 2));
    // SAFETY: it stands for no work.
    unsafe { claims.commit(&launch) };
    host.fail(1, "disk on fire");
    host.fail(2, "disk on fire");
    stream.complete(2);
    for (fence, written) in [(replay, &a), (launch, &b)] {
        assert_source_failed(fence.wait(), "disk on fire");
        assert_source_failed(written.read().map(drop), "disk on fire");
        // To write behind what is known to have failed makes it good.
        let claims = Claims::updating(&mut [(written, Access::Write)]).unwrap();
        // SAFETY: it stands for no work.
        unsafe { claims.commit(&Fence::new(Arc::clone(stream.timeline()), 2)) };
        drop(written.read().unwrap());
    }
}

#[test]
fn reader_behind_a_write_that_succeeds_succeeds() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let (src, dst) = (buffer(64), buffer(64));
    host.write(&src).unwrap();
    let read = stream.copy(&src, &dst).unwrap();
    host.complete(1);
    stream.complete(1);
    read.wait().unwrap();
    drop((src.read().unwrap(), dst.read().unwrap()));
}

#[test]
fn work_inherits_from_its_own_queue() {
    let host = MockQueue::failing();
    let (a, b, c) = (buffer(64), buffer(64), buffer(64));
    let [first, second, third] =
        [host.copy(&a, &b).unwrap(), host.copy(&b, &c).unwrap(), host.copy(&a, &c).unwrap()];
    host.fail(1, "disk on fire");
    host.complete(3);
    assert_eq!(first.wait().unwrap_err().kind(), ErrorKind::Device);
    assert_source_failed(second.wait(), "disk on fire");
    third.wait().unwrap();
    assert_source_failed(b.read().map(drop), "disk on fire");
    drop(c.read().unwrap());
}

#[test]
fn transfer_of_a_failed_source_is_refused_or_ends_with_it() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let (src, dst) = (buffer(64), buffer(64));
    host.write(&src).unwrap();
    let fence = stream.copy(&src, &dst).unwrap();
    let transfer = Transfer::direct(fence, TransferMethod::DirectCopy, src.place(), dst.place(), 64);
    host.fail(1, "disk on fire");
    stream.complete(1);
    assert_source_failed(transfer.wait(), "disk on fire");
    // From here on nothing is moved at all.
    let moved = stream.count();
    // The first one finds out, the second one meets the mark.
    for _ in 0..2 {
        assert_source_failed(stream.copy(&src, &buffer(64)), "disk on fire");
    }
    let refused =
        try_submit(&stream, &Operation::Copy { src: &dst, dst: &buffer(64) }, Timing::Off, &Turns::default());
    assert!(format!("{refused:?}").contains("disk on fire"), "{refused:?}");
    assert_eq!(stream.count(), moved);
}

#[test]
fn view_of_damaged_bytes_fails_until_assumed_written() {
    let (host, dst) = damaged();
    assert_source_failed(dst.read().map(drop), "disk on fire");
    assert_source_failed(dst.try_read().map(drop), "disk on fire");
    assert_source_failed(dst.write().map(drop), "disk on fire");
    assert_source_failed(dst.try_write().map(drop), "disk on fire");
    assert_source_failed(pollster::block_on(dst.read_async()).map(drop), "disk on fire");
    assert_source_failed(pollster::block_on(dst.write_async()).map(drop), "disk on fire");
    assert_source_failed(dst.try_lock_range(Access::Read), "disk on fire");
    dst.assume_written(16..32).unwrap();
    drop(part(&dst, 16..32).write().unwrap());
    assert_source_failed(part(&dst, 15..17).read().map(drop), "disk on fire");
    assert_source_failed(part(&dst, 31..33).read().map(drop), "disk on fire");
    assert_eq!(dst.assume_written(60..70).unwrap_err().kind(), ErrorKind::OutOfRange);
    dst.assume_written(..).unwrap();
    drop(dst.read().unwrap());
    assert_eq!(host.count(), 1);
}

#[test]
fn view_that_waits_for_the_failing_write_tells_it() {
    let (host, dst) = (MockQueue::failing(), buffer(64));
    host.write(&dst).unwrap();
    let mut read = pin!(dst.read_async());
    let mut context = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut context).is_pending());
    host.fail(1, "disk on fire");
    assert_source_failed(pollster::block_on(read).map(drop), "disk on fire");
}

#[test]
fn mark_covers_no_bytes_that_were_claimed_for_writing_later() {
    let (host, stream, dst) = (MockQueue::failing(), MockQueue::new(), buffer(64));
    host.write(&dst).unwrap();
    stream.write(&part(&dst, 10..20)).unwrap();
    host.fail(1, "disk on fire");
    stream.complete(1);
    drop(part(&dst, 10..20).read().unwrap());
    assert_source_failed(part(&dst, 0..10).read().map(drop), "disk on fire");
    assert_source_failed(part(&dst, 20..64).read().map(drop), "disk on fire");
    assert_source_failed(part(&dst, 9..11).read().map(drop), "disk on fire");
}

#[test]
fn successful_write_ends_mark_failed_write_replaces_it() {
    let (host, dst) = damaged();
    assert_source_failed(dst.read().map(drop), "disk on fire");
    let stream = MockQueue::new();
    stream.write(&part(&dst, 0..32)).unwrap();
    stream.complete(1);
    drop(part(&dst, 0..32).read().unwrap());
    host.write(&part(&dst, 32..64)).unwrap();
    host.fail(2, "disk still on fire");
    assert_source_failed(part(&dst, 32..64).read().map(drop), "disk still on fire");
    drop(dst.overwrite().unwrap());
    drop(dst.read().unwrap());
}

#[test]
fn overwrite_keeps_marks_until_it_holds_the_bytes() {
    let (host, stream, dst) = (MockQueue::failing(), Arc::new(MockQueue::new()), buffer(64));
    let damaged = part(&dst, 0..32);
    host.write(&damaged).unwrap();
    host.fail(1, "disk on fire");
    assert_source_failed(damaged.read().map(drop), "disk on fire");
    stream.write(&part(&dst, 32..64)).unwrap();
    // While the overwrite waits for the second half, others use both.
    let (seen, others) = mpsc::channel();
    let (line, first, second) = (Arc::clone(&stream), damaged.clone(), part(&dst, 32..64));
    *stream.line().on_wait.lock() = Some(Box::new(move || {
        line.complete(1);
        seen.send((first.read().map(drop), second.lend(Access::Read))).unwrap();
    }));
    assert_eq!(dst.overwrite().unwrap_err().kind(), ErrorKind::Busy);
    let (read, loan) = others.recv().unwrap();
    assert_source_failed(read, "disk on fire");
    drop(loan.unwrap());
    assert_source_failed(damaged.read().map(drop), "disk on fire");
    drop(dst.overwrite().unwrap());
    drop(dst.read().unwrap());
}

#[test]
fn refused_writes_neither_add_nor_remove_marks() {
    let (host, fresh) = (MockQueue::failing(), buffer(64));
    host.refuse.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(host.write(&fresh).is_err());
    drop(Claims::acquire(&mut [(&fresh, Access::Write)]).unwrap());
    drop(fresh.read().unwrap());
    let (_, dst) = damaged();
    assert!(host.write(&dst).is_err());
    drop(Claims::acquire(&mut [(&dst, Access::Write)]).unwrap());
    assert_source_failed(dst.read().map(drop), "disk on fire");
}

#[test]
fn device_loss_marks_nothing() {
    let (host, stream, dst) = (MockQueue::failing(), MockQueue::new(), buffer(64));
    host.write(&dst).unwrap();
    host.fail_as(1, ErrorKind::DeviceLost, "fell off the bus");
    drop(dst.read().unwrap());
    stream.copy(&dst, &buffer(64)).unwrap();
}

#[test]
fn what_keeps_the_content_keeps_the_damage() {
    let (_, dst) = damaged();
    let stream = MockQueue::new();
    submit(&stream, &Operation::Prefetch { buffer: &dst, to: DeviceId::Cpu }, Timing::Off).unwrap();
    let rows = Pitched::new(1, 2, 1, 32);
    submit(&stream, &Operation::CopyPitched { src: &buffer(2), dst: &dst, rows }, Timing::Off).unwrap();
    stream.complete(2);
    assert_source_failed(dst.read().map(drop), "disk on fire");
    // Prefetched while it is not known yet.
    let (host, dst) = (MockQueue::failing(), buffer(64));
    host.write(&dst).unwrap();
    submit(&stream, &Operation::Prefetch { buffer: &dst, to: DeviceId::Cpu }, Timing::Off).unwrap();
    host.fail(1, "disk on fire");
    stream.complete(3);
    assert_source_failed(dst.read().map(drop), "disk on fire");
    drop(dst.overwrite().unwrap());
}

#[test]
fn new_allocation_over_failed_work_is_not_marked() {
    let (host, stream) = (MockQueue::failing(), MockQueue::new());
    let reclaimer = Arc::new(Reclaimer::new());
    let fence = host.write(&buffer(64)).unwrap();
    let (memory, _) = memory(&reclaimer, MemoryKind::Pageable, 64, true);
    let address = memory.host_address().unwrap();
    // SAFETY: the buffer owns its bytes, without another user.
    let storage = unsafe { HostBytes::new(memory, address, 64, MemoryKind::Pageable, true) };
    let fresh = RawBuffer::new_after(Box::new(storage), &reclaimer, std::slice::from_ref(&fence));
    let read = stream.copy(&fresh, &buffer(64)).unwrap();
    host.fail(1, "disk on fire");
    stream.complete(1);
    read.wait().unwrap();
    drop(fresh.read().unwrap());
}

#[test]
fn fill_of_several_operations_reports_any_failure() {
    // Written once, then 3, 6, 12, and 3 bytes copied: the last one reads the first alone.
    for failing in 1..=5 {
        let (host, dst) = (MockQueue::failing(), buffer(27));
        let fence = transload_core::fill(&host, &dst, &[1, 2, 3]).unwrap();
        assert_eq!(fence.point(), 5);
        host.fail(failing, "disk on fire");
        host.complete(5);
        assert!(fence.wait().unwrap_err().to_string().contains("disk on fire"), "operation {failing}");
    }
}

#[test]
fn damage_in_thousand_pieces_is_known_by_the_piece() {
    let (host, whole) = (MockQueue::failing(), buffer(4000));
    let fences: Vec<Fence> =
        (0..1000).map(|index| host.write(&part(&whole, index * 4..index * 4 + 4)).unwrap()).collect();
    for fence in fences.iter().filter(|fence| fence.point() % 10 == 0) {
        host.fail(fence.point(), "disk on fire");
    }
    host.complete(1000);
    for index in 0..1000 {
        let view = part(&whole, index * 4..index * 4 + 4).read().map(drop);
        assert_eq!(view.is_err(), (index + 1) % 10 == 0, "{index}");
    }
    assert_source_failed(whole.read().map(drop), "disk on fire");
    whole.assume_written(..).unwrap();
    drop(whole.write().unwrap());
}

#[test]
fn range_guard_after_failed_write_is_refused_once_known() {
    let (_, dst) = damaged();
    let TryLockResult::Blocked(blocked) = dst.try_lock_range(Access::Write).unwrap() else {
        panic!("it is not known yet")
    };
    blocked.check().unwrap();
    assert_source_failed(dst.try_lock_range(Access::Write), "disk on fire");
}

#[test]
fn infallible_queue_is_never_polled_for_outcomes() {
    let (stream, src, dst) = (MockQueue::new(), buffer(64), buffer(64));
    for _ in 0..100 {
        stream.copy(&src, &dst).unwrap();
        stream.complete(stream.count());
        let other = MockQueue::new();
        other.copy(&dst, &src).unwrap();
        other.complete(1);
    }
    assert_eq!(stream.line().polls.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert!(!stream.timeline().can_fail());
}

#[test]
fn failure_before_anything_was_written_marks_nothing() {
    let (host, stream, dst) = (MockQueue::failing(), MockQueue::new(), buffer(64));
    host.write(&dst).unwrap();
    let read = stream.copy(&dst, &buffer(64)).unwrap();
    host.fail_untouched(1, "disk on fire");
    stream.complete(1);
    assert_source_failed(read.wait(), "disk on fire");
    drop(dst.read().unwrap());
    stream.copy(&dst, &buffer(64)).unwrap();
}

/// A lost device may have waited for work of another one, which goes on.
#[test]
fn partial_failure_marks_bytes_unless_its_device_is_lost() {
    let (other, reader) = (MockQueue::on(DeviceId::Cuda(1)), MockQueue::new());
    let (bytes, back) = (buffer(8), buffer(8));
    let write = other.write(&bytes).unwrap();
    let fail = |kind| {
        let mut claims = Claims::acquire(&mut [(&bytes, Access::Write)]).unwrap();
        // SAFETY: nothing was done, and what came before is complete, or the device is lost.
        unsafe { claims.fail(&Error::new(kind, "failed midway").of_part()) };
    };
    fail(ErrorKind::DeviceLost);
    drop(reader.copy(&bytes, &back).unwrap());
    assert!(reader.last_after().contains(&key(&write)), "it is still waited for");
    other.complete(1);
    reader.complete(1);
    fail(ErrorKind::Device);
    assert_eq!(reader.copy(&bytes, &back).unwrap_err().kind(), ErrorKind::SourceFailed);
}
