//! Ordering across the host, threads and devices.

use transload_core::{DeviceId, ErrorKind, MemoryKind, Pattern, Place};
use transload_dlpack::{ConsumerStream, DLDevice, DLDeviceType, Export, Importer};
use transload_streams::CudaStream;

use crate::{
    gate::{Gate, limited},
    setup::Setup,
};

const BYTES: usize = 1 << 20;

#[test]
fn own_import_of_unordered_export_waits_for_our_work() {
    limited(|| {
        let setup = Setup::new();
        let [ours, other] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (there, back) = (setup.device(BYTES), setup.pinned(&vec![0; BYTES]));
        let gate = Gate::before(&setup.device, &[&ours]);
        drop(ours.memset_async(&there, Pattern::U8(5)));
        // SAFETY: the one consumer is this library, which is told what to come after.
        let export = unsafe { Export::of::<u8>(&there).for_consumer(&setup.device, ConsumerStream::NoSync) };
        let imported = setup.importer.import(export.unwrap().versioned().unwrap()).unwrap();
        let copy = other.copy_to_host_async(imported.buffer(), &back);
        assert!(!other.is_ready().unwrap(), "it waits for the fill, which the gate holds back");
        gate.open();
        copy.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 5));
        drop((imported, there, back, ours, other));
        setup.finish();
    });
}

#[test]
fn cross_thread_delete_waits_for_creator_default_stream() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::per_thread_default(&setup.device).unwrap();
        let (ours, there) = (CudaStream::new(&setup.device).unwrap(), setup.device(BYTES));
        let back = setup.pinned(&vec![0; BYTES]);
        // SAFETY: the stream is this thread's own, which waits for it below.
        let export =
            unsafe { Export::of::<u8>(&there).for_consumer(&setup.device, ConsumerStream::PerThreadDefault) };
        let tensor = export.unwrap().versioned().unwrap();
        let gate = Gate::before(&setup.device, &[&stream]);
        let address = there.device_address().unwrap();
        // SAFETY: the memory is lent to this consumer, and kept until its work is over.
        unsafe { stream.memset_raw_async(address, Pattern::U8(7), BYTES) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(tensor));
        });
        let copy = ours.copy_to_host_async(&there, &back);
        assert!(!ours.is_ready().unwrap(), "the consumer's fill is held back");
        gate.open();
        copy.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
        stream.synchronize().unwrap();
        drop((there, back, ours, stream));
        setup.finish();
    });
}

#[test]
fn managed_import_belongs_to_its_allocating_device() {
    let Some(tests) = transload_cuda_sim::harness::devices(2) else { return };
    let [first, second] = [0, 1].map(|n| Setup::on(tests[n]));
    let both = Importer::new().with_device(&first.device).with_device(&second.device);
    for setup in [&first, &second] {
        let unified = setup.memory.allocate(MemoryKind::Unified, 4096).unwrap();
        let own = DeviceId::Cuda(setup.device.ordinal());
        let tensor = Export::of::<f32>(&unified).versioned().unwrap();
        let there = both.import(tensor).unwrap();
        assert_eq!(there.buffer().place(), Place::new(own, MemoryKind::Unified));
        assert_eq!(there.buffer().device_address(), unified.device_address());
        drop(there);
        both.drain().unwrap();
        // An importer without the device returns an error.
        let other = if own == DeviceId::Cuda(first.device.ordinal()) { &second } else { &first };
        let refused = other.importer.import(Export::of::<f32>(&unified).versioned().unwrap()).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::UnknownDevice, "{refused}");
        drop((refused, unified));
    }
    // Pinned memory belongs to all devices and has device id 0.
    let pinned = second.pinned(&[1; 64]);
    let wrong = DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 1 };
    let refused = Export::of::<u8>(&pinned).on_device(wrong).versioned().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    both.drain().unwrap();
    assert!(both.resource_counts().is_empty());
    drop((pinned, both));
    first.finish();
    second.finish();
}
