//! Foreign streams: cust's, default streams, per-thread ones, and those that are refused.

use std::{ptr, thread};

use transload_core::{ErrorKind, MemoryKind, Pattern, StreamPriority};
use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, cust};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaEvent, CudaStream};

use crate::support::setup::{Setup, noise};

fn round_trip(setup: &Setup, stream: &CudaStream, seed: u64) {
    let content = noise(70_000, seed);
    let (host, there, back) = (setup.pinned(&content), setup.device(70_000), setup.pinned(&vec![0; 70_000]));
    drop(stream.copy_from_host_async(&host, &there));
    pollster::block_on(stream.copy_to_host_async(&there, &back)).unwrap();
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn cust_stream_is_used_and_not_destroyed() {
    let setup = Setup::new();
    let _bound = setup.device.context().unwrap().enter().unwrap();
    let theirs = cust::stream::Stream::new(cust::stream::StreamFlags::NON_BLOCKING, None).unwrap();
    // SAFETY: the stream belongs to the current, primary context, and outlives the wrapper and its work.
    let ours =
        unsafe { CudaStream::from_raw(&setup.device, theirs.as_inner(), StreamPriority::Normal) }.unwrap();
    assert_eq!(ours.as_raw(), theirs.as_inner());
    round_trip(&setup, &ours, 1);
    drop(ours);
    theirs.synchronize().unwrap();
}

#[test]
fn legacy_default_stream_orders_blocking_streams() {
    let setup = Setup::new();
    let legacy = CudaStream::legacy_default(&setup.device).unwrap();
    round_trip(&setup, &legacy, 2);
    for handle in [0, 1] {
        // SAFETY: both are handles of the legacy default stream.
        let raw = unsafe {
            CudaStream::from_raw(&setup.device, ptr::without_provenance_mut(handle), StreamPriority::Normal)
        };
        round_trip(&setup, &raw.unwrap(), 3);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    legacy.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
    legacy.synchronize().unwrap();
    receiver.try_recv().unwrap().unwrap();
    drop(legacy);
    setup.finish();
}

#[test]
fn per_thread_default_stream_is_refused_to_other_threads() {
    let setup = Setup::new();
    let stream = CudaStream::per_thread_default(&setup.device).unwrap();
    round_trip(&setup, &stream, 4);
    let (there, back) = (setup.device(1 << 20), setup.pinned(&vec![0; 1 << 20]));
    let fill = stream.memset_async(&there, Pattern::U8(6));
    let event = CudaEvent::new(&setup.device).unwrap();
    let other = CudaStream::new(&setup.device).unwrap();
    thread::scope(|scope| {
        scope
            .spawn(|| {
                let refusals = [
                    stream.memset_async(&there, Pattern::U8(7)).wait().map(drop),
                    stream.fence().map(drop),
                    stream.synchronize(),
                    stream.add_callback(|_| ()),
                    stream.wait_event(&event),
                    stream.is_ready().map(drop),
                    stream.driver_priority().map(drop),
                    event.record(&stream),
                    // SAFETY: it is refused before any memory is used.
                    unsafe { stream.copy_raw_async(1, 2, 3) },
                ];
                for (n, refusal) in refusals.into_iter().enumerate() {
                    let error = refusal.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{n}: {error}");
                    assert!(error.to_string().contains("per-thread default stream"), "{n}: {error}");
                }
                // Its fences can be waited for by the host and by other streams.
                drop(other.copy_to_host_async(&there, &back));
                pollster::block_on(fill).unwrap();
            })
            .join()
            .unwrap();
    });
    assert!(back.read().unwrap().iter().all(|byte| *byte == 6));
    // Dropped on another thread, it is not queried, since the handle would name that thread's stream.
    thread::spawn(move || drop(stream)).join().unwrap();
    drop((there, back, other, event));
    setup.finish();
}

#[test]
fn work_of_a_thread_that_has_ended_completes() {
    let setup = Setup::new();
    let (there, back) = (setup.device(1 << 20), setup.pinned(&vec![0; 1 << 20]));
    let fill = thread::scope(|scope| {
        scope
            .spawn(|| {
                let stream = CudaStream::per_thread_default(&setup.device).unwrap();
                stream.memset_async(&there, Pattern::U8(5))
            })
            .join()
            .unwrap()
    });
    let stream = CudaStream::new(&setup.device).unwrap();
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    fill.wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 5));
    drop((there, back, stream));
    setup.finish();
}

#[test]
fn events_of_another_device_are_waited_for() {
    let Some(tests) = harness::devices(2) else { return };
    let devices: Vec<_> = tests.iter().map(|test| CudaDevice::new(test.ordinal()).unwrap()).collect();
    let memories: Vec<_> = devices.iter().map(|device| CudaMemoryManager::new(device).unwrap()).collect();
    let streams: Vec<_> = devices.iter().map(|device| CudaStream::new(device).unwrap()).collect();
    // SAFETY: it is refused; nothing is enqueued.
    let refused = unsafe { CudaStream::from_raw(&devices[1], streams[0].as_raw(), StreamPriority::Normal) };
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("another context than cuda:"), "{error}");

    let event = CudaEvent::new(&devices[0]).unwrap();
    assert_eq!(event.record(&streams[1]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let bytes = 1 << 20;
    let there = memories[0].allocate(MemoryKind::Device, bytes).unwrap();
    let host = memories[0].allocate(MemoryKind::Pinned, bytes).unwrap();
    let on_second = memories[1].allocate(MemoryKind::Device, bytes).unwrap();
    let address = host.host_address().unwrap().as_ptr();
    // SAFETY: all memory lives to the end of the test and is accessible to the device; the event orders the two copies.
    unsafe {
        streams[0].memset_raw_async(there.device_address().unwrap(), Pattern::U8(3), bytes).unwrap();
        streams[0].copy_to_host_raw_async(address, there.device_address().unwrap(), bytes).unwrap();
        event.record(&streams[0]).unwrap();
        streams[1].wait_event(&event).unwrap();
        streams[1].copy_from_host_raw_async(on_second.device_address().unwrap(), address, bytes).unwrap();
    }
    streams[1].synchronize().unwrap();
    assert!(event.is_done().unwrap(), "the second device waited for the first");
    let back = memories[1].allocate(MemoryKind::Pinned, bytes).unwrap();
    streams[1].copy_to_host_async(&on_second, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
    drop((there, host, on_second, back, event, streams));
    memories.iter().for_each(|memory| memory.drain().unwrap());
    drop((memories, devices));
    for test in &tests {
        test.assert_no_live_objects();
        test.assert_no_races();
    }
}

#[test]
fn unrecorded_event_is_complete_and_measures_nothing() {
    let setup = Setup::new();
    let (event, recorded) = (CudaEvent::new(&setup.device).unwrap(), CudaEvent::new(&setup.device).unwrap());
    let stream = CudaStream::new(&setup.device).unwrap();
    stream.wait_event(&event).unwrap();
    assert!(stream.is_ready().unwrap() && event.is_done().unwrap());
    event.synchronize().unwrap();
    recorded.record(&stream).unwrap();
    recorded.synchronize().unwrap();
    assert_eq!(recorded.elapsed_since(&event).unwrap_err().kind(), ErrorKind::Device);
    round_trip(&setup, &stream, 8);
}
