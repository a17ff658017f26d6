//! Unified buffers after a driver error: the next use retries failed uploads and refused advice, and device writes are kept.

use std::sync::Arc;

use transload_core::{Buffer, ErrorKind, MemoryKind, Operation, Pattern, QueueLease, Timing, submit};
use transload_cuda_sim::harness::Checked;
use transload_memory::{CudaDevice, CudaMemoryManager, Residency, Role, UnifiedBuffer, UnifiedMode};
use transload_streams::{CudaModule, CudaStream, LaunchConfig, LaunchExecutor};

use crate::{UNKNOWN, alone_with_drop_errors, builder, within};

const BYTES: usize = 3000;

struct Fixture {
    device: CudaDevice,
    memory: CudaMemoryManager,
    stream: CudaStream,
    /// Dropped last.
    sim: Checked,
}

impl Fixture {
    fn new() -> Self {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        Self { sim, device, memory, stream }
    }

    fn buffer(&self, mode: UnifiedMode) -> UnifiedBuffer<u8> {
        let queue = QueueLease::new(Arc::new(self.stream.clone()));
        UnifiedBuffer::new_with_mode(&self.memory, queue, BYTES, mode).unwrap()
    }

    /// Writes on the host, with a failing upload.
    fn write_in_vain(&self, buffer: &UnifiedBuffer<u8>, byte: u8) {
        let mut slice = buffer.write_range(..BYTES / 2).unwrap();
        slice.fill(byte);
        self.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
        drop(slice);
    }

    fn finish(self) {
        let Self { sim, device, memory, stream } = self;
        drop(stream);
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}

#[test]
fn any_next_use_retries_a_failed_upload() {
    within(|| {
        let fixture = Fixture::new();
        let buffer = fixture.buffer(UnifiedMode::Explicit);
        let half = buffer.raw().slice(..BYTES / 2).unwrap();
        fixture.write_in_vain(&buffer, 1);
        buffer.fill(2).unwrap();
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 2));
        fixture.write_in_vain(&buffer, 3);
        buffer.copy_from_host(&[4; BYTES]).unwrap();
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 4));
        fixture.write_in_vain(&buffer, 5);
        let back = fixture.memory.allocate(MemoryKind::Pinned, BYTES / 2).unwrap();
        let there = buffer.acquire_for_device(&fixture.stream, Role::Input).unwrap();
        fixture.stream.copy_to_host_async(&half, &back).wait().unwrap();
        drop(there);
        assert!(back.read().unwrap().iter().all(|byte| *byte == 5), "what is acquired is the newest");
        drop((half, back, buffer));
        fixture.finish();
    });
}

#[test]
fn failed_slice_keeps_the_devices_writes() {
    within(|| {
        let fixture = Fixture::new();
        let buffer = fixture.buffer(UnifiedMode::Explicit);
        buffer.write().unwrap().fill(1);
        buffer.fill(2).unwrap();
        fixture.sim.fail_call(Some("cuMemcpyDtoHAsync_v2"), 1, UNKNOWN);
        assert_eq!(buffer.write().unwrap_err().kind(), ErrorKind::Device);
        let mut back = [0; BYTES];
        buffer.copy_to_host(&mut back).unwrap();
        assert_eq!(back, [2; BYTES], "the host's older copy was not sent");
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 2));
        drop(buffer);
        fixture.finish();
    });
}

#[test]
fn refused_advice_is_retried_with_the_next_role() {
    within(|| {
        let fixture = Fixture::new();
        let buffer = fixture.buffer(UnifiedMode::Managed);
        fixture.sim.fail_call(Some("cuMemAdvise_v2"), 1, UNKNOWN);
        let refused = buffer.acquire_for_device(&fixture.stream, Role::Input);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Device);
        assert!(!Residency::of(buffer.raw()).unwrap().read_mostly);
        buffer.raw().wait_idle().unwrap();
        assert!(buffer.try_write(..).is_ok(), "what was refused holds nothing");
        drop(buffer.acquire_for_device(&fixture.stream, Role::Input).unwrap());
        assert!(Residency::of(buffer.raw()).unwrap().read_mostly);
        drop(buffer);
        fixture.finish();
    });
}

#[test]
fn lost_upload_is_reported_as_a_drop_error() {
    within(|| {
        let _alone = alone_with_drop_errors();
        let fixture = Fixture::new();
        let buffer = fixture.buffer(UnifiedMode::Explicit);
        fixture.write_in_vain(&buffer, 1);
        // The buffer's queue is retried, then another thread's stream.
        for _ in 0..2 {
            fixture.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
        }
        drop(buffer);
        fixture.memory.drain().unwrap();
        let told = transload_cuda_sys::take_drop_errors();
        assert!(told.iter().any(|error| error.code() == Some(UNKNOWN)), "{told:?}");
        fixture.finish();
    });
}

#[test]
fn streams_of_completed_host_prefetches_are_released() {
    within(|| {
        let fixture = Fixture::new();
        let buffer = fixture.buffer(UnifiedMode::Explicit);
        buffer.fill(3).unwrap();
        let streams = || fixture.sim.live_objects().streams;
        let usual = streams();
        let prefetch = |range: std::ops::Range<usize>| {
            let mover = CudaStream::new(&fixture.device).unwrap();
            buffer.prefetch_to_host_on(&mover, range).wait().unwrap();
        };
        // An unread prefetch is dropped by the second next one: a buffer's single use is checked when a second is added.
        for start in 0..20 {
            prefetch(start * 10..start * 10 + 5);
        }
        // Streams are destroyed on another thread.
        while streams() > usual + 2 {
            std::thread::yield_now();
        }
        assert!(buffer.read_range(190..195).unwrap().iter().all(|byte| *byte == 3));
        drop(buffer);
        fixture.finish();
    });
}

#[test]
fn other_memory_takes_every_launch_role_without_advice() {
    within(|| {
        let sim = builder().pre_pascal().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let saxpy = include_str!("../../../examples/kernels/saxpy.ptx");
        let kernel = CudaModule::from_ptx(&device, saxpy).unwrap().kernel("transload_saxpy").unwrap();
        let executor = LaunchExecutor::new(&device).unwrap();
        let [x, y] = [(); 2].map(|()| memory.allocate(MemoryKind::Unified, 4000).unwrap());
        for buffer in [&x, &y] {
            submit(&stream, &Operation::Fill { dst: buffer, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
        }
        let refused = UnifiedBuffer::<f32>::from_raw(
            &memory,
            QueueLease::new(Arc::new(stream.clone())),
            memory.allocate(MemoryKind::Unified, 4000).unwrap(),
        );
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "the host cannot look at it");
        for role in [Role::Resident, Role::Output, Role::InOut] {
            let launch = kernel.launch(LaunchConfig::for_elements(1000, 128)).arg(1.0_f32);
            let launch = launch.reads(&x).role(Role::Input).reads_writes(&y).role(role).arg(1000_u64);
            let trace = transload_cuda_sys::trace::start();
            // SAFETY: the kernel takes these four parameters and touches 1000 numbers of each buffer.
            unsafe { executor.enqueue(launch, &stream) }.unwrap().wait().unwrap();
            let calls = trace.calls_of_this_thread();
            assert!(!calls.iter().any(|call| call.name.starts_with("cuMemAdvise")), "{role:?}");
        }
        let trace = transload_cuda_sys::trace::start();
        for role in [Role::Input, Role::Resident, Role::Output, Role::InOut] {
            role.apply(&y, device.id()).unwrap();
        }
        assert!(trace.calls_of_this_thread().is_empty(), "the driver would refuse it");
        drop(trace);
        drop((x, y, executor, kernel, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}
