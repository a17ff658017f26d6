//! Ownership of tensors: the deleter is called exactly once, on any thread.

use std::{ptr, thread};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};
use transload_dlpack::{DLManagedTensor, DLManagedTensorVersioned, Export, Importer, ManagedTensor};

use crate::producer::{Said, delete};

#[test]
fn null_pointer_and_second_consumption_are_refused() {
    let mut data = vec![0.0_f32; 4];
    // SAFETY: null is refused.
    let null = unsafe { ManagedTensor::<DLManagedTensor>::from_raw(ptr::null_mut(), &[]) };
    assert_eq!(null.unwrap_err().kind(), ErrorKind::InvalidArgument);
    // SAFETY: what is not aligned is refused before it is looked at.
    let odd = unsafe { ManagedTensor::<DLManagedTensor>::from_raw(ptr::without_provenance_mut(4097), &[]) };
    assert_eq!(odd.unwrap_err().kind(), ErrorKind::InvalidArgument);

    let (raw, deleted) = Said::floats(data.as_mut_ptr(), 4).versioned();
    let again = || {
        // SAFETY: the first time it is the test's to give; then it is refused, and nothing of it is used.
        unsafe { ManagedTensor::from_raw(raw, &[]) }
    };
    let importer = Importer::new();
    let first = again().unwrap();
    let refused = again().unwrap_err();
    assert!(refused.to_string().contains("can be consumed once"), "{refused}");
    let there = importer.import(first).unwrap();
    assert_eq!(again().unwrap_err().kind(), ErrorKind::InvalidArgument, "also while its buffer lives");
    assert_eq!(deleted.times(), 0);
    drop(there);
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 1);
}

#[test]
fn unconsumed_tensor_calls_its_deleter_if_any() {
    let mut data = vec![0.0_f32; 4];
    let (raw, deleted) = Said::floats(data.as_mut_ptr(), 4).unversioned();
    // SAFETY: made here; the data lives to the end.
    drop(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap());
    assert_eq!(deleted.times(), 1);

    let (raw, deleted) = Said::floats(data.as_mut_ptr(), 4).versioned();
    // SAFETY: the test owns the tensor.
    let kept = unsafe { (*raw).deleter.take() };
    let importer = Importer::new();
    // SAFETY: as above.
    drop(importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap());
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 0, "it stays its producer's");
    // SAFETY: the producer's own end of it.
    unsafe { (*raw).deleter = kept };
    delete(raw);
    assert_eq!(deleted.times(), 1);
}

#[test]
fn export_lasts_until_deleter_on_any_thread() {
    let backend = CpuBackend::new().unwrap();
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    for consumed in [false, true] {
        let tensor = Export::of::<u8>(&buffer).versioned().unwrap();
        if consumed {
            let address = tensor.into_raw().expose_provenance();
            let deleting = thread::spawn(move || {
                delete(ptr::with_exposed_provenance_mut::<DLManagedTensorVersioned>(address));
            });
            deleting.join().unwrap();
        } else {
            drop(tensor);
        }
        buffer.try_write().unwrap().fill(1);
    }
    let raw = Export::of::<u8>(&buffer).versioned().unwrap().into_raw();
    drop(buffer);
    backend.drain().unwrap();
    assert_eq!(backend.resource_counts().allocations, 1, "the consumer has it");
    // SAFETY: lent to this consumer.
    unsafe { (*raw).dl_tensor.data.cast::<u8>().write(7) };
    delete(raw);
    assert!(backend.resource_counts().is_empty());
}

#[test]
fn a_round_trip_gives_the_same_memory_and_ends_both_sides() {
    let backend = CpuBackend::new().unwrap();
    let importer = Importer::new();
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    let tensor = Export::of::<u16>(&buffer).shape(&[4, 8]).unversioned().unwrap();
    let there = importer.import_as::<u16, _>(tensor).unwrap();
    assert_eq!(there.buffer().host_address(), buffer.host_address());
    there.buffer().write().unwrap().fill(3);
    assert_eq!(buffer.try_read().unwrap_err().kind(), ErrorKind::Busy);
    drop(there);
    importer.drain().unwrap();
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 3));
    drop(buffer);
    assert!(importer.resource_counts().is_empty() && backend.resource_counts().is_empty());
}

#[test]
fn work_in_flight_on_imported_memory_keeps_the_tensor() {
    let backend = CpuBackend::new().unwrap();
    let importer = Importer::new();
    let bytes = 64 << 20;
    let mut data = vec![5_u8; bytes];
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let dst = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    let (raw, deleted) = Said::floats(data.as_mut_ptr().cast(), bytes as i64 / 4).versioned();
    // SAFETY: made here; the data lives to the end.
    let there = importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()).unwrap();
    let copy = Operation::Copy { src: there.buffer(), dst: &dst };
    let fence = submit(&*queue, &copy, Timing::Off).unwrap();
    drop(there);
    // Whether or not the copy was faster, it is complete before the deleter is called, on any thread.
    assert!(deleted.times() == 0 || fence.is_known_complete());
    fence.wait().unwrap();
    // The worker drops its handle after the end of the copy.
    while deleted.times() == 0 {
        thread::yield_now();
    }
    importer.drain().unwrap();
    assert!(fence.is_complete() && importer.resource_counts().is_empty());
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 5));
}

#[test]
fn many_threads_import_and_drop() {
    let importer = Importer::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut data = vec![0.0_f32; 16];
                for _ in 0..200 {
                    let (raw, deleted) = Said::floats(data.as_mut_ptr(), 16).versioned();
                    // SAFETY: made here; the data lives longer.
                    let tensor = unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap();
                    let there = importer.import(tensor).unwrap();
                    there.buffer().write().unwrap().fill(1);
                    drop(there);
                    while deleted.times() == 0 {
                        thread::yield_now();
                    }
                    assert_eq!(deleted.times(), 1);
                }
            });
        }
    });
    importer.drain().unwrap();
    assert!(importer.resource_counts().is_empty());
}
