//! Batches: only small operations share an event, and a waiter waits for at most a few of them.

use transload_core::{Operation, Pattern, Queue, StreamPriority, Timing, submit};
use transload_cuda_sys::{AsStream, trace::Call};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

/// Driver calls that enqueue device work, by name.
fn enqueued(calls: &[Call]) -> Vec<&'static str> {
    let names = calls.iter().map(|call| call.name);
    names
        .filter(|name| name.starts_with("cuMem") || name.contains("Record") || name.contains("WaitEvent"))
        .collect()
}

fn count(names: &[&str], name: &str) -> usize {
    names.iter().filter(|one| **one == name).count()
}

#[test]
fn sixty_four_small_copies_record_four_events() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(64 * 100, 1);
    let (host, there, back) = (setup.pinned(&content), setup.device(6400), setup.pinned(&[0; 6400]));
    let part = |buffer: &transload_core::RawBuffer, n: usize| buffer.slice(n * 100..(n + 1) * 100).unwrap();
    let trace = transload_cuda_sys::trace::start();
    let transfers: Vec<_> =
        (0..64).map(|n| stream.copy_from_host_async(&part(&host, n), &part(&there, n))).collect();
    let last = transfers.last().unwrap().fence().unwrap().clone();
    last.wait().unwrap();
    let names = enqueued(&trace.calls_of_this_thread());
    assert_eq!(count(&names, "cuMemcpyHtoDAsync_v2"), 64);
    assert_eq!(count(&names, "cuEventRecord"), 4, "one for sixteen: {names:?}");
    for (n, transfer) in transfers.iter().enumerate() {
        assert!(transfer.fence().unwrap().is_known_complete(), "{n} is known to be over with the last");
    }
    drop((trace, transfers));
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, stream, last));
    setup.finish();
}

#[test]
fn first_wait_records_the_only_event_of_a_batch() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(5 * 64);
    let trace = transload_cuda_sys::trace::start();
    let fills: Vec<_> = (0..5)
        .map(|n| stream.memset_async(&there.slice(n * 64..(n + 1) * 64).unwrap(), Pattern::U8(n as u8)))
        .collect();
    assert_eq!(enqueued(&trace.calls_of_this_thread()), ["cuMemsetD8Async"; 5]);
    assert_eq!(stream.outstanding(), 5);
    fills[1].fence().unwrap().wait().unwrap();
    assert_eq!(stream.outstanding(), 0, "the event covers the whole run");
    fills.into_iter().for_each(|fill| drop(fill.wait().unwrap()));
    assert_eq!(count(&enqueued(&trace.calls_of_this_thread()), "cuEventRecord"), 1);
}

#[test]
fn each_large_copy_records_one_event() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20));
    let part = |buffer: &transload_core::RawBuffer, n: usize| buffer.slice(n << 17..(n + 1) << 17).unwrap();
    let trace = transload_cuda_sys::trace::start();
    let transfers: Vec<_> =
        (0..8).map(|n| stream.copy_from_host_async(&part(&host, n), &part(&there, n))).collect();
    let names = enqueued(&trace.calls_of_this_thread());
    assert_eq!(names, ["cuMemcpyHtoDAsync_v2", "cuEventRecord"].repeat(8));
    transfers.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
}

#[test]
fn large_measured_and_waiting_operations_end_a_batch() {
    let setup = Setup::new();
    let (stream, other) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (small, large, elsewhere) = (setup.device(64), setup.device(2 << 20), setup.device(1 << 20));
    let event = transload_streams::CudaEvent::new(&setup.device).unwrap();
    let trace = transload_cuda_sys::trace::start();
    let next = |what: &dyn Fn()| {
        let before = trace.calls_of_this_thread().len();
        drop(stream.memset_async(&small, Pattern::U8(1)));
        what();
        enqueued(&trace.calls_of_this_thread()[before..])
    };
    let (fill, record) = ("cuMemsetD8Async", "cuEventRecord");
    assert_eq!(next(&|| drop(stream.memset_async(&large, Pattern::U8(2)))), [fill, record, fill, record]);
    let fill_small = Operation::Fill { dst: &small, pattern: Pattern::U8(3) };
    let measured = || drop(submit(&stream, &fill_small, Timing::Measured).unwrap());
    assert_eq!(next(&measured), [fill, record, record, fill, record], "start and end of the measured one");
    // Both sides of the wait: the other stream's batch records its event, and this one's batch ends before the wait.
    let part = elsewhere.slice(..64).unwrap();
    drop(other.memset_async(&part, Pattern::U8(4)));
    assert_eq!(
        next(&|| drop(stream.copy_device_to_device_async(&part, &large.slice(..64).unwrap()))),
        [fill, record, record, "cuStreamWaitEvent", "cuMemcpyDtoDAsync_v2", record]
    );
    assert_eq!(next(&|| stream.wait_event(&event).unwrap()), [fill, record, "cuStreamWaitEvent"]);
    assert_eq!(next(&|| drop(stream.fence().unwrap())), [fill, record], "a fence needs one event, not two");
    stream.synchronize().unwrap();
}

#[test]
fn stream_with_an_exposed_handle_records_every_operation() {
    let setup = Setup::new();
    let there = setup.device(64);
    let record_each = |stream: &CudaStream, name: &str| {
        let trace = transload_cuda_sys::trace::start();
        for _ in 0..3 {
            drop(stream.memset_async(&there, Pattern::U8(1)));
        }
        let names = enqueued(&trace.calls_of_this_thread());
        assert_eq!(names, ["cuMemsetD8Async", "cuEventRecord"].repeat(3), "{name}");
        stream.synchronize().unwrap();
    };
    type GiveOut = fn(&CudaStream);
    let as_raw: GiveOut = |stream| {
        let _handle = stream.as_raw();
    };
    let raw_handle: GiveOut = |stream| {
        let _handle = stream.raw_handle();
    };
    let driver: GiveOut = |stream| {
        let _driver = stream.driver();
    };
    let ways = [("as_raw", as_raw), ("raw_handle", raw_handle), ("driver", driver)];
    for (name, give_out) in ways {
        let stream = CudaStream::new(&setup.device).unwrap();
        let trace = transload_cuda_sys::trace::start();
        drop(stream.memset_async(&there, Pattern::U8(1)));
        give_out(&stream);
        give_out(&stream);
        let names = enqueued(&trace.calls_of_this_thread());
        assert_eq!(names, ["cuMemsetD8Async", "cuEventRecord"], "{name} ends the run, once");
        record_each(&stream, name);
    }
    let owner = CudaStream::new(&setup.device).unwrap();
    // SAFETY: the stream belongs to this context and outlives the second handle's work.
    let foreign =
        unsafe { CudaStream::from_raw(&setup.device, owner.as_raw(), StreamPriority::Normal) }.unwrap();
    record_each(&foreign, "from_raw");
    drop((foreign, owner, there));
    setup.finish();
}

#[test]
fn memory_of_an_open_batch_is_freed_after_its_last_handle() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(4096, 3);
    let (host, there, back) = (setup.pinned(&content), setup.device(4096), setup.pinned(&[0; 4096]));
    drop(stream.copy_from_host_async(&host, &there));
    drop(stream.copy_to_host_async(&there, &back));
    drop((host, there, stream));
    assert!(*back.read().unwrap() == content[..], "the view waits for a batch of a dropped stream");
    drop(back);
    setup.finish();
}

#[test]
fn concurrent_enqueue_and_poll_complete_every_fence() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let (setup, stream) = (&setup, &stream);
            scope.spawn(move || {
                let (there, back) = (setup.device(256), setup.pinned(&[0; 256]));
                for round in 0..60_u8 {
                    let value = round.wrapping_mul(6).wrapping_add(thread);
                    let fill = stream.memset_async(&there, Pattern::U8(value));
                    let down = stream.copy_to_host_async(&there, &back);
                    match round % 3 {
                        0 => drop(down.wait().unwrap()),
                        1 => drop(pollster::block_on(down).unwrap()),
                        _ => while !down.is_complete() {},
                    }
                    assert!(fill.is_complete());
                    assert!(back.try_read().unwrap().iter().all(|byte| *byte == value));
                }
            });
        }
    });
    assert_eq!(stream.outstanding(), 0);
    drop(stream);
    setup.finish();
}
