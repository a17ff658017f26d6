//! Resources and registrations where the driver fails, refuses, or loses its device.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{Error, ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{AsStream as _, Stream, StreamOptions, ffi};
use transload_memory::{
    CudaDevice, CudaMemoryManager, CudaResource, HostPages, LimitingResource, MemoryResource, PinnedResource,
    RegistrationCache,
};

use crate::{ILLEGAL_ADDRESS, OUT_OF_MEMORY, alone_with_drop_errors, builder, heap::heap};

const PAGE: usize = 65_536;

fn manager(sim: SimDevice) -> Arc<CudaMemoryManager> {
    Arc::new(CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap())
}

/// All driver calls of this folder of the crate.
fn scenario(memory: &Arc<CudaMemoryManager>) -> transload_core::Result<()> {
    // Elsewhere pages cannot be chosen.
    let second = if cfg!(target_os = "linux") { HostPages::Ordinary } else { HostPages::Driver };
    for pages in [HostPages::Driver, second, HostPages::Auto] {
        let resource = LimitingResource::new(PinnedResource::new(memory).with_pages(pages), 16 << 20);
        resource.allocate_segment(5 << 20)?;
        resource.trim()?;
    }
    CudaResource::write_combined(memory).allocate_segment(1000)?;
    CudaResource::oversubscribed(memory)?.allocate_segment(1000)?;
    let cache = RegistrationCache::new(memory, 8 * PAGE as u64)?;
    let (first, second) = (heap(4 * PAGE, true).0, heap(6 * PAGE, false).0);
    cache.register(&first.slice(..3 * PAGE)?)?;
    cache.register(&first.slice(2 * PAGE..)?)?;
    cache.register(&second)?;
    cache.forget(&second)?;
    cache.register(&first)?;
    cache.trim()?;
    cache.register(&first)?;
    Ok(())
}

#[test]
fn each_failing_driver_call_is_a_typed_error_and_nothing_leaks_but_what_could_not_be_freed() {
    let _alone = alone_with_drop_errors();
    for code in [OUT_OF_MEMORY, 999] {
        for nth in 1.. {
            assert!(nth < 1000, "the scenario never ended");
            let sim = builder().read_only_register(true).build();
            sim.fail_call(None, nth, code);
            let outcome = CudaDevice::new(sim.ordinal())
                .and_then(|device| CudaMemoryManager::new(&device).map(Arc::new))
                .and_then(|memory| {
                    let outcome = scenario(&memory);
                    let drained = memory.drain();
                    outcome.and(drained)
                });
            let over = sim.calls() < nth;
            if let Err(error) = &outcome {
                let kinds = [ErrorKind::OutOfMemory, ErrorKind::Device];
                assert!(kinds.contains(&error.kind()), "call {nth}, code {code}: {error:?}");
            }
            let unregistering = outcome.is_err_and(|error| error.to_string().contains("cuMemHostUnregister"));
            let failed_drops = transload_cuda_sys::take_drop_errors();
            assert!(
                sim.live_objects().is_empty() || unregistering || !failed_drops.is_empty(),
                "call {nth}, code {code}: {}",
                sim.live_objects()
            );
            if over {
                break;
            }
        }
    }
}

#[test]
fn failed_unregister_leaks_memory_but_frees_the_entry() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, PAGE as u64).unwrap();
    let (buffer, freed) = heap(PAGE, true);
    drop(cache.register(&buffer).unwrap());
    sim.fail_call(Some("cuMemHostUnregister"), 1, 999);
    assert_eq!(cache.trim().unwrap_err().kind(), ErrorKind::Device);
    drop(buffer);
    assert_eq!(freed.load(Ordering::SeqCst), 0, "the device may still reach it");
    assert_eq!(memory.resource_counts().allocations, 1, "and the ledger says so");
    assert_eq!(cache.statistics().registrations, 0);
    drop(cache.register(&heap(PAGE, true).0).unwrap());
}

#[test]
fn range_is_registrable_after_a_failed_merge() {
    crate::heap::watched(|| {
        let _alone = alone_with_drop_errors();
        let sim = builder().build();
        let memory = manager(sim);
        let cache = RegistrationCache::new(&memory, 4 * PAGE as u64).unwrap();
        let ((first, _), (other, _)) = (heap(4 * PAGE, true), heap(2 * PAGE, true));
        drop(cache.register(&first.slice(..2 * PAGE).unwrap()).unwrap());
        drop(cache.register(&other).unwrap());
        // The other one must be ended to make room, which fails.
        sim.fail_call(Some("cuMemHostUnregister"), 1, 999);
        let more = first.slice(PAGE..).unwrap();
        assert_eq!(cache.register(&more).unwrap_err().kind(), ErrorKind::Device);
        drop(cache.register(&more).unwrap());
        assert_eq!(cache.statistics().registrations, 1);
    });
}

#[test]
fn every_driver_code_has_an_error_kind() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(PAGE, true);
    let kind_of = |call: &str, code: u32, work: &dyn Fn() -> Result<(), Error>| {
        sim.fail_call(Some(call), 1, code);
        work().unwrap_err().kind()
    };
    let resource = PinnedResource::new(&memory).with_pages(HostPages::Driver);
    for code in 1..1000 {
        let registered = kind_of("cuMemHostRegister_v2", code, &|| cache.register(&buffer).map(drop));
        let pinned = (code != OUT_OF_MEMORY)
            .then(|| kind_of("cuMemHostAlloc", code, &|| resource.allocate_segment(10).map(drop)));
        match code {
            OUT_OF_MEMORY => assert_eq!(registered, ErrorKind::OutOfMemory),
            ILLEGAL_ADDRESS => {
                assert_eq!((registered, pinned), (ErrorKind::DeviceLost, Some(ErrorKind::DeviceLost)));
            }
            712 => assert_eq!(registered, ErrorKind::InvalidArgument),
            1 | 304 | 801 => assert_eq!(registered, ErrorKind::Unsupported, "{code}"),
            _ => {}
        }
        assert!(buffer.write().is_ok(), "a refusal lends nothing");
    }
    assert_eq!(cache.statistics().registrations, 0);
}

#[test]
fn unregistrable_pages_are_replaced_by_the_drivers() {
    let sim = builder().host_register(false).build();
    let memory = manager(sim);
    let auto = PinnedResource::new(&memory);
    assert!(auto.allocate_segment(5 << 20).unwrap().write().is_ok());
    if cfg!(target_os = "linux") {
        let huge = auto.clone().with_pages(HostPages::Huge);
        assert!(huge.allocate_segment(5 << 20).is_err());
    }
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(PAGE, true);
    assert_eq!(cache.register(&buffer).unwrap_err().kind(), ErrorKind::Unsupported);
    drop((cache, auto));
    memory.drain().unwrap();
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn read_only_memory_is_registered_read_only_if_supported() {
    for can in [false, true] {
        let memory = manager(builder().read_only_register(can).build());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let ((fixed, _), (writable, _)) = (heap(PAGE, false), heap(PAGE, true));
        let flags_of = |buffer: &transload_core::RawBuffer| {
            let pinned = cache.register(buffer).unwrap();
            let _bound = memory.device().context().unwrap().enter().unwrap();
            let mut flags = 0;
            let start = pinned.host_address().unwrap().as_ptr();
            // SAFETY: the out pointer is valid.
            let code = unsafe { transload_cuda_sys::ffi::cuMemHostGetFlags(&mut flags, start.cast()) };
            transload_cuda_sys::check("cuMemHostGetFlags", code).unwrap();
            flags & 8 != 0
        };
        assert_eq!((flags_of(&fixed), flags_of(&writable)), (can, false));
    }
}

#[test]
fn a_lost_device_leaves_typed_errors_and_no_hang() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(PAGE, true);
    let pinned = cache.register(&buffer).unwrap();
    let segment = PinnedResource::new(&memory).allocate_segment(5 << 20).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    drop((pinned, segment));
    assert_eq!(cache.trim().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(cache.register(&buffer).unwrap_err().kind(), ErrorKind::DeviceLost);
    drop(cache);
    let _reported = memory.drain();
    drop(transload_cuda_sys::take_drop_errors());
}

#[test]
fn managed_memory_limit_counts_non_resident_memory() {
    let sim = builder().total_memory(8 << 20).build();
    let memory = manager(sim);
    let resource = CudaResource::new(&memory, MemoryKind::Unified).unwrap();
    let held: Vec<_> = (0..2).map(|_| resource.allocate_segment(3 << 20).unwrap()).collect();
    let shortage = resource.allocate_segment(3 << 20).unwrap_err().memory_shortage().unwrap();
    assert_eq!((shortage.free, shortage.total), (Some(2 << 20), Some(8 << 20)));
    let more = CudaResource::oversubscribed(&memory).unwrap();
    assert_eq!(more.info().unwrap_err().kind(), ErrorKind::Unsupported);
    drop(more.allocate_segment(30 << 20).unwrap());
    drop(held);
    resource.trim().unwrap();
    assert!(resource.allocate_segment(8 << 20).is_ok());
}

#[test]
fn managers_of_one_device_share_its_managed_limit() {
    let sim = builder().total_memory(8 << 20).build();
    let (one, two) = (manager(sim), manager(sim));
    let [first, second] = [&one, &two].map(|memory| CudaResource::new(memory, MemoryKind::Unified).unwrap());
    let held = first.allocate_segment(5 << 20).unwrap();
    let shortage = second.allocate_segment(4 << 20).unwrap_err().memory_shortage().unwrap();
    assert_eq!((shortage.free, shortage.total), (Some(3 << 20), Some(8 << 20)));
    assert_eq!(two.allocate(MemoryKind::Unified, 4 << 20).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let beside = second.allocate_segment(3 << 20).unwrap();
    // Another device has its own limit.
    let other = manager(builder().total_memory(8 << 20).build());
    drop(other.allocate(MemoryKind::Unified, 8 << 20).unwrap());
    drop(held);
    first.trim().unwrap();
    drop(second.allocate_segment(5 << 20).unwrap());
    drop(beside);
    second.trim().unwrap();
    drop((second, two));
    drop(first.allocate_segment(8 << 20).unwrap());
    // An oversubscribing manager does so only for itself.
    let third = manager(sim);
    let more = CudaResource::oversubscribed(&third).unwrap();
    first.trim().unwrap();
    let beyond = more.allocate_segment(30 << 20).unwrap();
    assert_eq!(third.allocate(MemoryKind::Unified, 1 << 20).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(first.allocate_segment(1 << 20).unwrap());
    drop(beyond);
    more.trim().unwrap();
}

/// A driver that answers nothing has no code of its own for that.
#[test]
fn drain_of_a_device_that_answers_no_call_tells_its_loss_once() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    drop(memory.allocate(MemoryKind::Device, 4096).unwrap());
    sim.poison(999);
    assert_eq!(memory.drain().unwrap_err().kind(), ErrorKind::DeviceLost);
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    let _of_drops = transload_cuda_sys::take_drop_errors();
}

/// The driver permits no call there, which says nothing of the device.
#[test]
fn free_in_a_callback_of_a_stream_finds_no_loss() {
    unsafe extern "C" fn free(data: *mut std::ffi::c_void) {
        // SAFETY: the data is a buffer of this call's own.
        drop(unsafe { Box::from_raw(data.cast::<RawBuffer>()) });
    }
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    let buffer = Box::new(memory.allocate(MemoryKind::Device, 4096).unwrap());
    let context = memory.device().context().unwrap();
    let stream = Stream::new(context, StreamOptions::default()).unwrap();
    // SAFETY: the function takes the buffer.
    let code = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(free), Box::into_raw(buffer).cast()) };
    assert_eq!(code, 0);
    stream.synchronize().unwrap();
    assert!(!transload_cuda_sys::take_drop_errors().is_empty(), "the free was not refused");
    assert!(context.loss().is_none());
    drop(memory.allocate(MemoryKind::Device, 4096).unwrap());
    memory.drain().unwrap();
}
