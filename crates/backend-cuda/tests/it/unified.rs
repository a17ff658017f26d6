//! The backend's methods for unified buffers, and generic code over every kind of buffer.

use std::fmt::Debug;

use transload_backend_cpu::{CpuBackend, CpuBuffer};
use transload_backend_cuda::{Role, UnifiedMode};
use transload_core::{
    Backend, Buffer, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Operation, Pattern, Pod, StreamPriority,
    Timing, WorkloadType, conformance, submit,
};
use transload_memory::MemoryLocation;

use crate::backend;

#[test]
fn generic_code_runs_on_every_buffer_type() {
    fn each<T: Pod + PartialEq + Debug>(a: T, b: T) {
        const LEN: usize = 101;
        let (test, cuda) = backend();
        let (cpu, ordinal) = (CpuBackend::new().unwrap(), test.ordinal());
        let here = DeviceId::Cuda(ordinal);
        let explicit = cuda.allocate_unified_as::<T>(ordinal, LEN, UnifiedMode::Explicit).unwrap();
        let buffers: [(Box<dyn Buffer<T>>, DeviceId, MemoryKind); 4] = [
            (Box::new(CpuBuffer::<T>::new(&cpu, LEN).unwrap()), DeviceId::Cpu, MemoryKind::Pageable),
            (Box::new(cuda.create_buffer::<T>(ordinal, LEN).unwrap()), here, MemoryKind::Device),
            (Box::new(cuda.allocate_unified::<T>(ordinal, LEN).unwrap()), here, MemoryKind::Unified),
            (Box::new(explicit), here, MemoryKind::Unified),
        ];
        for (buffer, device, kind) in &buffers {
            assert_eq!((buffer.device(), buffer.kind()), (*device, *kind));
            conformance::typed_buffer(&**buffer, a, b).unwrap();
        }
        drop(buffers);
        cuda.drain().unwrap();
        assert!(cuda.resource_counts().is_empty(), "{}", cuda.resource_counts());
        drop(cuda);
        test.assert_no_live_objects();
    }
    each(7_u8, 0);
    each(1.5_f32, -0.0);
    each(1e300_f64, 2.0);
    each([0.25_f32; 768], [2.0; 768]);
}

#[test]
fn unified_methods_allocate_prefetch_and_advise() {
    let (test, cuda) = backend();
    let ordinal = test.ordinal();
    assert!(cuda.supports_unified_memory(ordinal).unwrap());
    assert_eq!(cuda.supports_unified_memory(u32::MAX).unwrap_err().kind(), ErrorKind::UnknownDevice);
    let buffer = cuda.allocate_unified::<u32>(ordinal, 300_000).unwrap();
    assert_eq!(cuda.resource_counts().leases, 1);
    // What the driver believes, where it moves the memory at all.
    let is_managed = buffer.mode() == UnifiedMode::Managed;
    let told = |expected: (bool, Option<MemoryLocation>)| {
        if is_managed {
            let believed = buffer.hints().unwrap().residency().unwrap();
            assert_eq!((believed.read_mostly, believed.last_prefetch), expected);
        }
    };
    let there = Some(MemoryLocation::Device(ordinal));
    cuda.set_memory_advice(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    told((true, None));
    cuda.set_memory_advice(&buffer, MemoryAdvice::UnsetReadMostly).unwrap();
    told((false, None));
    buffer.write().unwrap().fill(3);
    cuda.prefetch_to_device(&buffer, None).wait().unwrap();
    told((false, there));
    pollster::block_on(cuda.prefetch_to_host(&buffer)).unwrap();
    told((false, Some(MemoryLocation::Host)));
    cuda.prefetch_to_device(&buffer, Some(ordinal)).wait().unwrap();
    told((false, there));
    pollster::block_on(cuda.prefetch_to_host(&buffer)).unwrap();
    told((false, Some(MemoryLocation::Host)));
    assert!(buffer.read().unwrap().iter().all(|number| *number == 3));
    let refused = cuda.prefetch_to_device(&buffer, Some(u32::MAX)).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UnknownDevice);
    assert_eq!(cuda.allocate_unified::<u8>(u32::MAX, 1).unwrap_err().kind(), ErrorKind::UnknownDevice);
    for len in [0, usize::MAX] {
        let refused = cuda.allocate_unified::<u32>(ordinal, len).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    let error = cuda.allocate_unified::<u8>(ordinal, 1 << 50).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.memory_shortage().unwrap().requested, 1 << 50);
    drop(buffer);
    cuda.drain().unwrap();
    assert!(cuda.resource_counts().is_empty(), "{}", cuda.resource_counts());
    drop(cuda);
    test.assert_no_live_objects();
}

#[test]
fn callers_queue_is_ordered_with_unified_buffer() {
    let (test, cuda) = backend();
    let queue = cuda
        .lease_queue(DeviceId::Cuda(test.ordinal()), StreamPriority::High, WorkloadType::Compute)
        .unwrap();
    let buffer = cuda.allocate_unified::<u64>(test.ordinal(), 5000).unwrap();
    buffer.write().unwrap().fill(1);
    buffer.prefetch_to_device_on(&*queue, 1000.., None).wait().unwrap();
    let there = buffer.acquire_for_device(&*queue, Role::Resident).unwrap();
    let part = there.raw().slice(..8000).unwrap();
    submit(&*queue, &Operation::Fill { dst: &part, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    drop((there, part));
    let seen = buffer.read().unwrap();
    assert!(seen[..1000].iter().all(|number| *number == 0) && seen[1000..].iter().all(|number| *number == 1));
    drop(seen);
    drop((buffer, queue));
    cuda.drain().unwrap();
    assert!(cuda.resource_counts().is_empty(), "{}", cuda.resource_counts());
    drop(cuda);
    test.assert_no_live_objects();
}
