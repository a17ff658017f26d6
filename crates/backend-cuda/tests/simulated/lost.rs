//! A lost context: allocations are refused with the first cause, the ledger ends empty, and drain returns the error once.

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Pattern, QueueLease, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sim::SimDevice;
use transload_streams::{CudaEvent, CudaStream};

use super::{builder, serving::watched};

const ILLEGAL_ADDRESS: u32 = 700;
const EXTERNAL_DEVICE: u32 = 911;
/// What a driver answers to every call once the GPU no longer answers it; a single one says nothing.
const UNKNOWN: u32 = 999;
const KINDS: [MemoryKind; 4] =
    [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified];

/// Buffers of every kind, from the cache and from the driver, on a device that is then lost during a fill.
fn lose(backend: &CudaBackend, sim: &SimDevice, code: u32) -> (DeviceId, Vec<RawBuffer>, Error) {
    let device = DeviceId::Cuda(sim.ordinal());
    let sizes = [4096, 20 << 20];
    let of = |kind| sizes.map(|bytes| backend.allocate(device, kind, bytes).unwrap());
    let buffers: Vec<RawBuffer> = KINDS.into_iter().flat_map(of).collect();
    // Warm memory, which is served without a driver call.
    drop(sizes.map(|bytes| backend.allocate(device, MemoryKind::Device, bytes).unwrap()));
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fill = Operation::Fill { dst: &buffers[0], pattern: Pattern::U8(1) };
    let filled = submit(&*queue, &fill, Timing::Off).unwrap();
    sim.poison(code);
    let error = filled.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    (device, buffers, error)
}

fn assert_refused<T>(outcome: transload_core::Result<T>, cause: &Error, what: &str) {
    let Err(error) = outcome else { panic!("{what} on a lost device succeeded") };
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{what}: {error}");
    let text = format!("{:?} {:?}", error, error.cause().map(ToString::to_string));
    assert!(text.contains(&cause.to_string()), "{what} does not name the first cause {cause}: {text}");
}

#[test]
fn lost_device_refuses_and_counts_end_empty() {
    watched(|| {
        // What is on a lost device goes with its context, which a backend keeps.
        let (sim, other) = (builder().build(), builder().checked());
        let config = CudaBackendConfig::default().with_devices([sim.ordinal(), other.ordinal()]);
        let backend = CudaBackend::open(&config).unwrap();
        let (device, buffers, cause) = lose(&backend, &sim, ILLEGAL_ADDRESS);
        for kind in KINDS {
            for bytes in [4096, 20 << 20] {
                assert_refused(backend.allocate(device, kind, bytes), &cause, &format!("{bytes} of {kind}"));
            }
        }
        assert_refused(backend.prepare_in_place(device), &cause, "prepare_in_place");
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory);
        assert_refused(queue, &cause, "lease_queue");
        let unified = backend.allocate_unified::<u8>(sim.ordinal(), 4096);
        assert_refused(unified, &cause, "allocate_unified");
        assert_refused(backend.create_buffer::<u8>(sim.ordinal(), 4096), &cause, "create_buffer");

        let well = DeviceId::Cuda(other.ordinal());
        let still = backend.allocate(well, MemoryKind::Device, 4096).unwrap();
        drop((buffers, still));
        assert_refused(backend.drain(), &cause, "the first drain");
        backend.drain().expect("the loss was returned once");
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
        backend.allocate(well, MemoryKind::Device, 4096).expect("the other device is well");
    });
}

#[test]
fn error_of_an_external_device_is_a_loss() {
    watched(|| {
        let sim = builder().build();
        let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([sim.ordinal()])).unwrap();
        let (_, buffers, cause) = lose(&backend, &sim, EXTERNAL_DEVICE);
        drop(buffers);
        assert_refused(backend.drain(), &cause, "the first drain");
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    });
}

/// By each way to learn of an end, since any may be the first that meets the loss.
#[test]
fn device_that_answers_no_call_is_lost() {
    type Met = fn(&CudaStream, &Fence) -> transload_core::Result<()>;
    let ways: [(&str, Met); 5] = [
        ("a wait", |_, fence| fence.wait()),
        ("a query", |_, fence| fence.timeline().poll(fence.point()).map(drop)),
        ("a task", |_, fence| pollster::block_on(fence.done())),
        ("a wait for a stream", |stream, _| stream.synchronize()),
        ("a wait for all of a stream", |stream, _| stream.fence()?.wait()),
    ];
    for (what, meets) in ways {
        watched(move || {
            let sim = builder().build();
            let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
            let (backend, device) = (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(sim.ordinal()));
            let buffers = KINDS.map(|kind| backend.allocate(device, kind, 4096).unwrap());
            let stream = CudaStream::new(backend.device(sim.ordinal()).unwrap()).unwrap();
            let fill = Operation::Fill { dst: &buffers[0], pattern: Pattern::U8(1) };
            let filled = submit(&stream, &fill, Timing::Off).unwrap();
            sim.poison(UNKNOWN);
            let cause = meets(&stream, &filled).unwrap_err();
            assert_eq!(cause.kind(), ErrorKind::DeviceLost, "{what}: {cause}");
            assert_refused(backend.allocate(device, MemoryKind::Device, 4096), &cause, what);
            drop((buffers, stream));
            assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::DeviceLost, "{what}");
            assert!(backend.resource_counts().is_empty(), "{what}: {}", backend.resource_counts());
        });
    }
}

/// CUDA tells of a loss at any later call, also at one that submits, or makes a stream.
#[test]
fn loss_that_another_call_meets_is_the_first_cause() {
    struct Warm {
        backend: std::sync::Arc<CudaBackend>,
        ordinal: u32,
        queue: QueueLease,
        stream: CudaStream,
        event: CudaEvent,
        pair: (RawBuffer, RawBuffer),
    }
    type Met = fn(&Warm) -> transload_core::Result<()>;
    fn copied(warm: &Warm, timing: Timing) -> transload_core::Result<()> {
        let (src, dst) = (&warm.pair.0, &warm.pair.1);
        submit(&*warm.queue, &Operation::Copy { src, dst }, timing)?.wait()
    }
    let cases: [(&str, Met); 8] = [
        ("a copy", |warm| copied(warm, Timing::Off)),
        ("a timed copy", |warm| copied(warm, Timing::Measured)),
        ("a fence of all work", |warm| warm.stream.fence()?.wait()),
        ("a new stream", |warm| CudaStream::new(warm.backend.device(warm.ordinal)?).map(drop)),
        ("an event", |warm| CudaEvent::new(warm.backend.device(warm.ordinal)?).map(drop)),
        ("a query of an event", |warm| warm.event.is_done().map(drop)),
        ("a wait for an event", |warm| warm.event.synchronize()),
        ("a stream's wait for an event", |warm| warm.stream.wait_event(&warm.event)),
    ];
    for (what, meets) in cases {
        for bytes in [4096, 20 << 20] {
            watched(move || {
                let sim = builder().build();
                let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
                let (backend, device) = (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(sim.ordinal()));
                let allocate = |kind| backend.allocate(device, kind, bytes).unwrap();
                drop(allocate(MemoryKind::Device));
                let warm = Warm {
                    ordinal: sim.ordinal(),
                    queue: backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap(),
                    stream: CudaStream::new(backend.device(sim.ordinal()).unwrap()).unwrap(),
                    event: CudaEvent::new(backend.device(sim.ordinal()).unwrap()).unwrap(),
                    pair: (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device)),
                    backend: std::sync::Arc::clone(&backend),
                };
                warm.event.record(&warm.stream).unwrap();
                sim.poison(ILLEGAL_ADDRESS);
                let cause = meets(&warm).unwrap_err();
                assert_eq!(cause.kind(), ErrorKind::DeviceLost, "{what}: {cause}");
                assert!(cause.to_string().contains(&device.to_string()), "{what}: {cause}");
                assert_refused(backend.allocate(device, MemoryKind::Device, bytes), &cause, what);
                drop(warm);
                assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::DeviceLost, "{what}");
                assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
            });
        }
    }
}

/// A call also fails for another device whose memory or event it names.
#[test]
fn error_that_a_context_does_not_repeat_marks_no_device_as_lost() {
    watched(|| {
        let sim = builder().checked();
        let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
        let (backend, device) = (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(sim.ordinal()));
        let [src, dst] = [MemoryKind::Pinned, MemoryKind::Device]
            .map(|kind| backend.allocate(device, kind, 4096).unwrap());
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let copy = || {
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).and_then(|it| it.wait())
        };
        let stream = || CudaStream::new(backend.device(sim.ordinal()).unwrap());
        src.write().unwrap().fill(7);
        copy().unwrap();
        sim.fail_call(None, 1, ILLEGAL_ADDRESS);
        // Not `DeviceLost`: who gets that takes the device of the call for the lost one.
        assert_eq!(copy().unwrap_err().kind(), ErrorKind::Device);
        sim.fail_call(Some("cuStreamCreateWithPriority"), 1, ILLEGAL_ADDRESS);
        assert_eq!(stream().unwrap_err().kind(), ErrorKind::Device);
        let (event, waiter) =
            (CudaEvent::new(backend.device(sim.ordinal()).unwrap()).unwrap(), stream().unwrap());
        event.record(&waiter).unwrap();
        sim.fail_call(Some("cuEventQuery"), 1, ILLEGAL_ADDRESS);
        assert_eq!(event.is_done().unwrap_err().kind(), ErrorKind::Device);
        sim.fail_call(Some("cuStreamWaitEvent"), 1, ILLEGAL_ADDRESS);
        assert_eq!(waiter.wait_event(&event).unwrap_err().kind(), ErrorKind::Device);
        waiter.wait_event(&event).expect("the device is well");
        drop((event, waiter));
        copy().expect("and so is the stream");
        drop((src, dst, queue));
        backend.drain().unwrap();
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    });
}

#[test]
fn free_blocks_of_lost_device_are_not_counted() {
    watched(|| {
        let sim = builder().build();
        let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([sim.ordinal()])).unwrap();
        let stream = CudaStream::new(backend.device(sim.ordinal()).unwrap()).unwrap();
        let allocator = backend.allocator(sim.ordinal()).unwrap();
        let block = allocator.allocate_for_stream(&stream, 4096).unwrap();
        let held = allocator.allocate_buffer(&stream, 4096).unwrap();
        let (_, buffers, _) = lose(&backend, &sim, ILLEGAL_ADDRESS);
        allocator.free_on(block, &stream).unwrap();
        // The stream stays: the allocator cannot seal what was freed on it.
        drop((buffers, held));
        assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::DeviceLost);
        backend.drain().unwrap();
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
        drop(stream);
    });
}
