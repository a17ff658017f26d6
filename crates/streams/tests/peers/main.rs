//! One coordinator over two devices, on the software driver and, with `TRANSLOAD_TEST_DRIVER=real`, on a machine with two
//! real ones.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[path = "../it/support/gate.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod gate;
#[path = "../it/coordinator/raw.rs"]
mod raw;

use gate::Gate;
use transload_core::{MemoryKind, Pattern, RawBuffer};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaStream, Dependency};

struct TwoDevices {
    tests: Vec<TestDevice>,
    devices: [CudaDevice; 2],
    memories: [CudaMemoryManager; 2],
    streams: [CudaStream; 2],
}

/// `None` if the machine has one device; the test is then skipped.
fn two() -> Option<TwoDevices> {
    let tests = harness::devices(2)?;
    let devices = [0, 1].map(|n| CudaDevice::new(tests[n].ordinal()).unwrap());
    let memories = devices.each_ref().map(|device| CudaMemoryManager::new(device).unwrap());
    let streams = devices.each_ref().map(|device| CudaStream::new(device).unwrap());
    Some(TwoDevices { tests, devices, memories, streams })
}

impl TwoDevices {
    fn device(&self, which: usize, bytes: usize) -> RawBuffer {
        self.memories[which].allocate(MemoryKind::Device, bytes).unwrap()
    }

    fn pinned(&self, bytes: usize, content: u8) -> RawBuffer {
        let buffer = self.memories[0].allocate(MemoryKind::Pinned, bytes).unwrap();
        buffer.write().unwrap().fill(content);
        buffer
    }

    fn finish(self) {
        let Self { tests, devices, memories, streams } = self;
        drop(streams);
        memories.iter().for_each(|memory| memory.drain().unwrap());
        drop((memories, devices));
        for test in tests {
            test.assert_no_live_objects();
            test.assert_no_races();
        }
    }
}

#[test]
fn cross_device_dependency_does_not_block_the_host() {
    let Some(two) = two() else { return };
    let bytes = 400_000;
    let coordinator = raw::over(&two.streams);
    for (index, stream) in two.streams.iter().enumerate() {
        // A device's first fill loads a kernel, which waits for the device: not possible behind a closed gate.
        stream.memset_async(&two.device(index, bytes), Pattern::U8(0)).wait().unwrap();
    }
    for (from, to) in [(0, 1), (1, 0)] {
        for round in 0..10_u8 {
            let (source, there) = (two.device(from, bytes), two.device(to, bytes));
            let (middle, back) = (two.pinned(bytes, 0xEE), two.pinned(bytes, 0));
            let [writer, reader] = [from, to].map(|n| &two.streams[n]);
            // The free thread may wait for the devices to free what the last round dropped, and block others: not possible
            // behind a closed gate.
            two.memories.iter().for_each(|memory| memory.drain().unwrap());
            let gate = Gate::closed(&two.devices[from]);
            drop(writer.memset_async(&source, Pattern::U8(round)));
            gate.hold([writer]);
            raw::copy(writer, &source, &middle);
            assert_eq!(coordinator.add_dependency(reader, writer).unwrap(), Dependency::Enqueued);
            raw::copy(reader, &middle, &there);
            raw::copy(reader, &there, &back);
            assert!(!reader.fence().unwrap().is_complete(), "it waits for the other device's work");
            assert!(coordinator.add_dependency(writer, reader).is_err(), "a cycle over two devices is one");
            gate.open();
            reader.synchronize().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == round), "{from} → {to}, round {round}");
        }
    }
    drop(coordinator);
    two.finish();
}

#[test]
fn two_device_barrier_orders_earlier_before_later_work() {
    let Some(two) = two() else { return };
    let bytes = 100_000;
    let further = two.devices.each_ref().map(|device| CudaStream::new(device).unwrap());
    let all: Vec<&CudaStream> = two.streams.iter().chain(&further).collect();
    let coordinator = raw::over(all.iter().copied());
    let middles: Vec<_> = (0..4).map(|_| two.pinned(bytes, 0xEE)).collect();
    let sources: Vec<_> = (0..4).map(|n| two.device(n % 2, bytes)).collect();
    let theres: Vec<_> = (0..4).map(|n| two.device(n % 2, bytes)).collect();
    for round in 0..10_u8 {
        // The host reads only after it has waited for the barrier.
        let backs: Vec<_> = (0..4).map(|_| two.pinned(bytes, 0)).collect();
        for (n, stream) in all.iter().enumerate() {
            stream.memset_async(&sources[n], Pattern::U8(round * 4 + n as u8)).wait().unwrap();
            raw::copy(stream, &sources[n], &middles[n]);
        }
        let _passed = coordinator.create_barrier().unwrap();
        for (n, stream) in all.iter().enumerate() {
            // The next stream's, so two of the four belong to the other device.
            raw::copy(stream, &middles[(n + 1) % 4], &theres[n]);
            raw::copy(stream, &theres[n], &backs[n]);
        }
        coordinator.create_barrier().unwrap().wait().unwrap();
        for (n, back) in backs.iter().enumerate() {
            let expected = round * 4 + ((n + 1) % 4) as u8;
            assert!(back.read().unwrap().iter().all(|byte| *byte == expected), "round {round}, stream {n}");
        }
    }
    drop((coordinator, middles, sources, theres, further));
    two.finish();
}

#[test]
fn barrier_waits_for_the_slower_device() {
    let Some(two) = two() else { return };
    for slow in 0..2 {
        let coordinator = raw::over(&two.streams);
        let gate = Gate::closed(&two.devices[slow]);
        gate.hold([&two.streams[slow]]);
        let barrier = coordinator.create_barrier().unwrap();
        let behind = two.streams.each_ref().map(|stream| stream.fence().unwrap());
        assert!(
            !barrier.is_complete() && behind.iter().all(|fence| !fence.is_complete()),
            "device {slow} is held"
        );
        gate.open();
        pollster::block_on(barrier).unwrap();
        behind.iter().for_each(|fence| fence.wait().unwrap());
    }
    two.finish();
}

#[test]
fn wait_through_a_third_device_is_not_assumed() {
    let Some(two) = two() else { return };
    let [near, far] = &two.streams;
    let last = CudaStream::new(&two.devices[0]).unwrap();
    let coordinator = raw::over([near, far, &last]);
    let gate = Gate::closed(&two.devices[0]);
    gate.hold([near]);
    let first = near.fence().unwrap();
    assert_eq!(coordinator.add_dependency_on(far, &first).unwrap(), Dependency::Enqueued);
    let through = far.fence().unwrap();
    assert_eq!(coordinator.add_dependency_on(&last, &through).unwrap(), Dependency::Enqueued);
    // If the device in between were lost, its point would count as reached and this order would be lost.
    assert_eq!(coordinator.add_dependency_on(&last, &first).unwrap(), Dependency::Enqueued);
    gate.open();
    coordinator.create_barrier().unwrap().wait().unwrap();
    drop((last, coordinator, first, through));
    two.finish();
}

#[test]
fn tasks_run_on_both_devices_and_return_their_own_result() {
    let Some(two) = two() else { return };
    let coordinator = raw::over(&two.streams);
    let buffers: Vec<_> = (0..8).map(|n| two.device(n % 2, 5000)).collect();
    let tasks = (0..8_usize).map(|n| {
        let buffers = &buffers;
        move |stream: &CudaStream| {
            drop(stream.memset_async(&buffers[n], Pattern::U8(n as u8)));
            Ok((n, stream.device()))
        }
    });
    for (n, outcome) in coordinator.execute_parallel(tasks).unwrap().into_iter().enumerate() {
        assert_eq!(outcome.unwrap(), (n, two.devices[n % 2].id()));
    }
    let back = two.pinned(5000, 0xEE);
    for (n, buffer) in buffers.iter().enumerate() {
        two.streams[n % 2].copy_to_host_async(buffer, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == n as u8), "task {n}");
    }
    drop((buffers, back, coordinator));
    two.finish();
}

#[test]
fn fill_of_another_devices_memory_is_refused() {
    let Some(two) = two() else { return };
    let (near, far) = (two.device(0, 64), two.device(1, 64));
    let refused = two.streams[0].memset_async(&far, Pattern::U8(1)).wait().unwrap_err();
    assert_eq!(refused.kind(), transload_core::ErrorKind::Unsupported, "{refused}");
    two.streams[0].memset_async(&near, Pattern::U8(1)).wait().unwrap();
    drop((near, far));
    two.finish();
}
