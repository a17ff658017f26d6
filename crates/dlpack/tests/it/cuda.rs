//! Ordering on CUDA streams, without the host: our work and the consumer's, the producer's and ours.

use std::sync::atomic::{AtomicUsize, Ordering};

use transload_core::{ErrorKind, Operation, Pattern, RawBuffer, Timing, submit};
use transload_cuda_sys::{AsStream, Capture, CaptureMode};
use transload_dlpack::{
    ConsumerStream, DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, Export, ManagedTensor,
    protocol_stream,
};
use transload_streams::{CudaEvent, CudaStream};

use crate::{
    gate::{Gate, limited},
    producer::{Deleted, Said, delete, delete_versioned},
    setup::Setup,
};

const BYTES: usize = 1 << 20;

/// Another library, which uses an address on a stream of its own.
struct Consumer<'a> {
    stream: &'a CudaStream,
    tensor: *mut DLManagedTensorVersioned,
}

impl Consumer<'_> {
    fn address(&self) -> u64 {
        // SAFETY: a valid tensor until it is deleted.
        unsafe { (*self.tensor).dl_tensor.data.addr() as u64 }
    }

    fn read_into(&self, host: &RawBuffer) {
        let to = host.host_address().unwrap().as_ptr();
        // SAFETY: both are alive to the end of the test, without another user meanwhile.
        unsafe { self.stream.copy_to_host_raw_async(to, self.address(), BYTES) }.unwrap();
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the memory is lent to this consumer, and kept until its work is over.
        unsafe { self.stream.memset_raw_async(self.address(), Pattern::U8(byte), BYTES) }.unwrap();
    }

    fn let_go(self) {
        delete(self.tensor);
    }
}

fn export(setup: &Setup, buffer: &RawBuffer, stream: ConsumerStream) -> *mut DLManagedTensorVersioned {
    let export = Export::of::<f32>(buffer);
    // SAFETY: the test's streams live to its end; with `NoSync` it looks after the order itself.
    unsafe { export.for_consumer(&setup.device, stream) }.unwrap().versioned().unwrap().into_raw()
}

fn is_all(host: &RawBuffer, byte: u8) -> bool {
    host.read().unwrap().iter().all(|found| *found == byte)
}

#[test]
fn consumer_stream_waits_for_our_work_without_the_host() {
    limited(|| {
        let setup = Setup::new();
        let (ours, theirs) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let (legacy, per_thread) = (
            CudaStream::legacy_default(&setup.device).unwrap(),
            CudaStream::per_thread_default(&setup.device).unwrap(),
        );
        let handle = ConsumerStream::from_protocol(Some(protocol_stream(&theirs))).unwrap();
        assert_eq!(handle, ConsumerStream::Handle(theirs.as_raw().addr()));
        let cases = [
            (handle, &theirs),
            (ConsumerStream::from_protocol(None).unwrap(), &legacy),
            (ConsumerStream::from_protocol(Some(protocol_stream(&legacy))).unwrap(), &legacy),
            (ConsumerStream::from_protocol(Some(protocol_stream(&per_thread))).unwrap(), &per_thread),
        ];
        for (n, (named, stream)) in cases.into_iter().enumerate() {
            let (there, seen) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
            let gate = Gate::before(&setup.device, &[&ours]);
            let byte = n as u8 + 1;
            drop(ours.memset_async(&there, Pattern::U8(byte)));
            let consumer = Consumer { stream, tensor: export(&setup, &there, named) };
            consumer.read_into(&seen);
            assert!(!stream.is_ready().unwrap(), "{named:?}");
            gate.open();
            stream.synchronize().unwrap();
            assert!(is_all(&seen, byte), "{named:?}");
            consumer.let_go();
            drop((there, seen));
        }
        drop((ours, theirs, legacy, per_thread));
        setup.finish();
    });
}

#[test]
fn our_work_waits_for_consumer_stream_after_delete() {
    limited(|| {
        let setup = Setup::new();
        let (ours, theirs) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let (there, back) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
        let tensor = Export::of::<f32>(&there).for_stream(&theirs).versioned().unwrap().into_raw();
        let consumer = Consumer { stream: &theirs, tensor };
        let gate = Gate::before(&setup.device, &[&theirs]);
        consumer.fill(9);
        let refused = ours.copy_to_host_async(&there, &back).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        consumer.let_go();
        // Enqueued at once; runs after the consumer's work.
        let copy = ours.copy_to_host_async(&there, &back);
        assert!(!ours.is_ready().unwrap());
        gate.open();
        copy.wait().unwrap();
        assert!(is_all(&back, 9));
        drop((there, back, ours, theirs));
        setup.finish();
    });
}

#[test]
fn memory_outlives_consumer_work_in_flight_at_delete() {
    limited(|| {
        let setup = Setup::new();
        let theirs = CudaStream::new(&setup.device).unwrap();
        let there = setup.device(BYTES);
        let tensor = Export::of::<f32>(&there).for_stream(&theirs).versioned().unwrap().into_raw();
        let consumer = Consumer { stream: &theirs, tensor };
        drop(there);
        let gate = Gate::before(&setup.device, &[&theirs]);
        consumer.fill(9);
        consumer.let_go();
        assert_eq!(setup.memory.resource_counts().pending_free, 1);
        gate.open();
        drop(theirs);
        setup.finish();
    });
}

#[test]
fn pinned_write_waits_for_consumer_copy_after_delete() {
    limited(|| {
        let setup = Setup::new();
        let theirs = CudaStream::new(&setup.device).unwrap();
        let (host, there) = (setup.pinned(&vec![4; BYTES]), setup.device(BYTES));
        let export = Export::of::<f32>(&host).on_device(DLDevice::CPU).for_stream(&theirs);
        let consumer = Consumer { stream: &theirs, tensor: export.versioned().unwrap().into_raw() };
        let gate = Gate::before(&setup.device, &[&theirs]);
        // SAFETY: the memory is lent to the consumer and lives; the other side has no other user.
        unsafe {
            let from = std::ptr::with_exposed_provenance(consumer.address() as usize);
            theirs.copy_from_host_raw_async(there.device_address().unwrap(), from, BYTES).unwrap();
        }
        consumer.let_go();
        assert_eq!(host.try_write().unwrap_err().kind(), ErrorKind::Busy);
        gate.open();
        host.write().unwrap().fill(5);
        theirs.synchronize().unwrap();
        assert!(setup.read(&there).iter().all(|byte| *byte == 4));
        drop((host, there, theirs));
        setup.finish();
    });
}

#[test]
fn host_export_waits_for_earlier_work() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let (there, host) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
        for named in [None, Some(&stream)] {
            drop(stream.memset_async(&there, Pattern::U8(3)));
            drop(stream.copy_to_host_async(&there, &host));
            let export = Export::of::<u8>(&host);
            let export = if let Some(stream) = named { export.for_stream(stream) } else { export };
            let raw = export.versioned().unwrap().into_raw();
            // SAFETY: the bytes are lent to this reader, on the host.
            let seen = unsafe { std::slice::from_raw_parts((*raw).dl_tensor.data.cast::<u8>(), BYTES) };
            assert!(seen.iter().all(|byte| *byte == 3));
            delete(raw);
            host.write().unwrap().fill(0);
        }
        drop((there, host, stream));
        setup.finish();
    });
}

#[test]
fn no_sync_consumer_is_not_ordered() {
    limited(|| {
        let setup = Setup::new();
        let (ours, theirs) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let there = setup.device(BYTES);
        let gate = Gate::before(&setup.device, &[&ours]);
        drop(ours.memset_async(&there, Pattern::U8(1)));
        let tensor = export(&setup, &there, ConsumerStream::from_protocol(Some(-1)).unwrap());
        assert!(theirs.is_ready().unwrap());
        Consumer { stream: &theirs, tensor }.let_go();
        gate.open();
        drop((there, ours, theirs));
        setup.finish();
    });
}

/// Device memory of another owner, valid while the test keeps the buffer.
fn theirs_at(setup: &Setup, owner: &RawBuffer) -> (*mut DLManagedTensorVersioned, Deleted) {
    let data = std::ptr::without_provenance_mut(owner.device_address().unwrap() as usize);
    let device = DLDevice::cuda(i32::try_from(setup.device.ordinal()).unwrap());
    Said { device, dtype: DLDataType::U8, ..Said::floats(data, BYTES as i64) }.versioned()
}

/// Deleters that found a context current.
static BOUND: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn delete_bound(tensor: *mut DLManagedTensorVersioned) {
    let mut context = std::ptr::null_mut();
    // SAFETY: the out pointer is valid for the call.
    let code = unsafe { transload_cuda_sys::ffi::cuCtxGetCurrent(&mut context) };
    BOUND.fetch_add(usize::from(code == 0 && !context.is_null()), Ordering::SeqCst);
    // SAFETY: this is the tensor's deleter.
    unsafe { delete_versioned(tensor) };
}

#[test]
fn deleter_is_called_with_a_context_current() {
    limited(|| {
        let setup = Setup::new();
        let (there, pinned) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
        let data = pinned.host_address().unwrap().as_ptr().cast();
        let of_host = DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 };
        let host = Said { device: of_host, dtype: DLDataType::U8, ..Said::floats(data, BYTES as i64) };
        for (raw, deleted) in [theirs_at(&setup, &there), host.versioned()] {
            let bound = BOUND.load(Ordering::SeqCst);
            // SAFETY: the test's own tensor.
            unsafe { (*raw).deleter = Some(delete_bound) };
            // SAFETY: idle, and without another user until the deleter is called.
            drop(setup.importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap());
            setup.importer.drain().unwrap();
            assert_eq!((deleted.times(), BOUND.load(Ordering::SeqCst)), (1, bound + 1));
        }
        drop((there, pinned));
        setup.finish();
    });
}

#[test]
fn import_waits_for_producer_work() {
    limited(|| {
        let setup = Setup::new();
        let [producers, ours, other] = [(); 3].map(|()| CudaStream::new(&setup.device).unwrap());
        let (owner, back) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
        let gate = Gate::before(&setup.device, &[&producers]);
        // SAFETY: the producer's own memory, alive to the end.
        unsafe { producers.memset_raw_async(owner.device_address().unwrap(), Pattern::U8(6), BYTES) }
            .unwrap();
        // What a producer does in `__dlpack__(stream=protocol_stream(&ours))`.
        let event = CudaEvent::new(&setup.device).unwrap();
        event.record(&producers).unwrap();
        ours.wait_event(&event).unwrap();
        let (raw, deleted) = theirs_at(&setup, &owner);
        // SAFETY: the fence is after the producer's work; nothing else uses the memory until the deleter is called.
        let tensor = unsafe { ManagedTensor::from_raw(raw, &[ours.fence().unwrap()]) }.unwrap();
        let there = setup.importer.import(tensor).unwrap();
        let copy = other.copy_to_host_async(there.buffer(), &back);
        assert!(!other.is_ready().unwrap());
        gate.open();
        copy.wait().unwrap();
        assert!(is_all(&back, 6));
        drop(there);
        setup.importer.drain().unwrap();
        assert_eq!(deleted.times(), 1);
        drop((owner, back, event, producers, ours, other));
        setup.finish();
    });
}

#[test]
fn tensor_dropped_in_flight_is_deleted_after_the_work() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let owner = setup.device(BYTES);
        let (raw, deleted) = theirs_at(&setup, &owner);
        // SAFETY: idle, and without another user until the deleter is called.
        let there = setup.importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap();
        let gate = Gate::before(&setup.device, &[&stream]);
        drop(stream.memset_async(there.buffer(), Pattern::U8(2)));
        drop(there);
        assert_eq!((deleted.times(), setup.importer.resource_counts().pending_free), (0, 1));
        gate.open();
        setup.importer.drain().unwrap();
        assert_eq!(deleted.times(), 1);
        assert!(setup.read(&owner).iter().all(|byte| *byte == 2));
        drop((owner, stream));
        setup.finish();
    });
}

#[test]
fn captured_stream_refuses_export_and_ends_loans_later() {
    limited(|| {
        let setup = Setup::new();
        let (ours, theirs) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let (there, other) = (setup.device(BYTES), setup.device(BYTES));
        let lent = Export::of::<f32>(&other).for_stream(&theirs).versioned().unwrap();
        let gate = Gate::before(&setup.device, &[&ours]);
        drop(ours.memset_async(&there, Pattern::U8(1)));
        {
            // SAFETY: nothing else is enqueued on the stream meanwhile.
            let capture = unsafe { Capture::begin(&theirs, CaptureMode::Relaxed) }.unwrap();
            let refused = Export::of::<f32>(&there).for_stream(&theirs).versioned().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
            drop(lent);
            // A fence cannot be taken yet.
            drop(Export::of::<f32>(&there).for_stream(&ours).versioned().unwrap());
            assert_eq!(ours.memset_async(&other, Pattern::U8(2)).wait().unwrap_err().kind(), ErrorKind::Busy);
            drop(capture.end().unwrap());
        }
        // Any later export, import or drain ends it, possibly on another test's thread.
        let comes_back = || {
            setup.importer.drain().unwrap();
            other.lend(transload_core::Access::Write).map(drop)
        };
        while let Err(error) = comes_back() {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            std::thread::yield_now();
        }
        let fill = ours.memset_async(&other, Pattern::U8(2));
        gate.open();
        fill.wait().unwrap();
        drop((there, other, ours, theirs));
        setup.finish();
    });
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some(tests) = transload_cuda_sim::harness::devices(2) else { return };
    let [first, second] = [0, 1].map(|n| Setup::on(tests[n]));
    let there = first.device(BYTES);
    let stream = CudaStream::new(&second.device).unwrap();
    let named = ConsumerStream::Handle(stream.as_raw().addr());
    // SAFETY: the stream is alive; it is refused.
    let refused = unsafe { Export::of::<f32>(&there).for_consumer(&first.device, named) }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    // A stream of another device is a consumer there, which needs access of its own.
    drop(Export::of::<f32>(&there).for_stream(&stream).versioned().unwrap());
    drop((there, stream));
    first.finish();
    second.finish();
}

#[test]
fn imported_device_memory_is_copied_to_another_device() {
    let Some(tests) = transload_cuda_sim::harness::devices(2) else { return };
    let [first, second] = [0, 1].map(|n| Setup::on(tests[n]));
    let (owner, there) = (first.device(BYTES), second.device(BYTES));
    let (one, two) = (CudaStream::new(&first.device).unwrap(), CudaStream::new(&second.device).unwrap());
    one.memset_async(&owner, Pattern::U8(7)).wait().unwrap();
    let (raw, deleted) = theirs_at(&first, &owner);
    // SAFETY: idle, and without another user until the deleter is called.
    let imported = first.importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap();
    let copy = Operation::CopyPeer { src: imported.buffer(), dst: &there };
    submit(&two, &copy, Timing::Off).unwrap().wait().unwrap();
    drop(imported);
    first.importer.drain().unwrap();
    assert!(second.read(&there).iter().all(|byte| *byte == 7));
    assert_eq!(deleted.times(), 1);
    drop((owner, there, one, two));
    first.finish();
    second.finish();
}

#[test]
fn tensor_is_released_after_importer_drop() {
    limited(|| {
        let setup = Setup::new();
        let importer = transload_dlpack::Importer::new().with_device(&setup.device);
        let stream = CudaStream::new(&setup.device).unwrap();
        let owner = setup.device(BYTES);
        let (raw, deleted) = theirs_at(&setup, &owner);
        // SAFETY: idle, and without another user until the deleter is called.
        let there = importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap();
        let gate = Gate::before(&setup.device, &[&stream]);
        drop(stream.memset_async(there.buffer(), Pattern::U8(2)));
        drop((there, importer));
        assert_eq!(deleted.times(), 0);
        gate.open();
        // Nobody drains: the end of the work is enough.
        while deleted.times() == 0 {
            std::thread::yield_now();
        }
        drop((owner, stream));
        setup.finish();
    });
}
