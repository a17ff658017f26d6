//! Loads onto a CUDA device that is small, slow or failing, on the software driver only.

use transload::{
    ErrorKind,
    cuda::{CudaBackend, CudaBackendConfig},
    load::{LoadOptions, load},
};
use transload_cuda_sim::harness::{self, TestDevice};

use transload::{CrossBackendTransferManager, DeviceId, MemoryKind, Place, RawBuffer};

use crate::load::*;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;

fn manager_over(test: &TestDevice) -> CrossBackendTransferManager {
    let manager = host_manager();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    manager
}

fn place(test: &TestDevice, kind: MemoryKind) -> Place {
    Place::new(DeviceId::Cuda(test.ordinal()), kind)
}

/// Returns a device buffer's bytes.
fn fetched(manager: &CrossBackendTransferManager) -> impl Fn(&RawBuffer) -> Vec<u8> {
    |buffer| {
        if buffer.is_empty() {
            return Vec::new();
        }
        let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, buffer.len()).unwrap();
        manager.copy(buffer, &back).wait().unwrap();
        back.read().unwrap().to_vec()
    }
}

fn allocations(manager: &CrossBackendTransferManager) -> u64 {
    manager.resource_counts().iter().map(|(_, ledger)| ledger.allocations).sum()
}

/// Makes the next small allocation by these calls fail. The allocators try several times, each time after releasing
/// cached memory, but fewer times than this; a later allocation survives the few remaining faults.
fn out_of_memory(test: &TestDevice, names: &[&str]) {
    const ASKED: usize = 32;
    for name in names.iter().cycle().take(ASKED * names.len()) {
        test.sim().unwrap().fail_call(Some(name), 1, OUT_OF_MEMORY);
    }
}

#[test]
fn every_tensor_is_on_the_device_with_its_content_and_alignment() {
    let test = harness::device();
    let manager = manager_over(&test);
    let model = Model::of_every_type();
    let disk = OnDisk::new(&model.file());
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        for (chunk, alignment) in [(777, 1), (4096, 512), (1 << 20, 65_536)] {
            for staging in [MemoryKind::Pinned, MemoryKind::Pageable, MemoryKind::Mapped] {
                let options = LoadOptions::new(place(&test, kind)).chunk(chunk).alignment(alignment);
                let options = options.staging(staging).checksum(true).verify(true);
                let loaded = load(&manager, disk.path(), &options).unwrap();
                model.assert_is(&loaded, alignment.max(256) as u64, fetched(&manager));
                assert_eq!((loaded.segments().len(), loaded.report().staging), (1, Some(staging)));
                assert_eq!(loaded.report().simulated, test.is_simulated());
            }
        }
    }
    assert_empty(&manager);
    drop(manager);
    test.assert_no_live_objects();
    test.assert_no_races();
}

#[test]
fn nothing_races_while_a_small_ring_is_used_over_and_over() {
    let Some(test) = harness::device_with(|builder| builder.record_accesses(true)) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[10_000, 1, 0, 511, 30_000]);
    let disk = OnDisk::new(&model.file());
    let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(1000).buffers(2);
    let loaded = load(&manager, disk.path(), &options.checksum(true).verify(true)).unwrap();
    model.assert_is(&loaded, 256, fetched(&manager));
    drop(loaded);
    assert_empty(&manager);
    test.assert_no_races();
}

#[test]
fn a_model_larger_than_the_device_is_refused_with_its_numbers() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(1 << 20)) else { return };
    let manager = manager_over(&test);
    let disk = OnDisk::new(&Model::of_sizes(&[600_000, 600_000]).file());
    let error = load(&manager, disk.path(), &LoadOptions::new(place(&test, MemoryKind::Device))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!(shortage.requested, 600_064 + 600_000);
    assert_eq!((shortage.free, shortage.total), (Some(1 << 20), Some(1 << 20)));
    assert!(error.to_string().contains("1200064 bytes requested, 1048576 free of 1048576"), "{error}");
    assert_empty(&manager);

    // The same manager loads one that fits.
    let model = Model::of_sizes(&[600_000]);
    let disk = OnDisk::new(&model.file());
    let loaded = load(&manager, disk.path(), &LoadOptions::new(place(&test, MemoryKind::Device))).unwrap();
    model.assert_is(&loaded, 256, fetched(&manager));
}

#[test]
fn a_model_of_over_half_the_device_loads_again() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(1 << 20)) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[600_000]);
    let disk = OnDisk::new(&model.file());
    for _ in 0..3 {
        // The driver keeps what was freed, and does not count it as free.
        let options = LoadOptions::new(place(&test, MemoryKind::Device));
        model.assert_is(&load(&manager, disk.path(), &options).unwrap(), 256, fetched(&manager));
    }
}

#[test]
fn several_allocations_hold_what_one_cannot() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[3000, 3000, 9000, 10, 10, 0]);
    let disk = OnDisk::new(&model.file());
    let options = LoadOptions::new(place(&test, MemoryKind::Device)).segment(7000).chunk(2500).checksum(true);
    // The device's memory is fragmented, and the first attempt is one allocation for all tensors.
    out_of_memory(&test, &["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"]);
    let loaded = load(&manager, disk.path(), &options).unwrap();
    model.assert_is(&loaded, 256, fetched(&manager));
    assert_eq!((loaded.segments().len(), loaded.report().segments), (3, 3));
    drop(loaded);
    assert_empty(&manager);
}

/// The device's own memory is no limit.
#[test]
fn pinned_memory_for_a_device_is_as_large_as_the_hosts() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(1 << 20)) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[600_000, 600_000]);
    let disk = OnDisk::new(&model.file());
    let loaded = load(&manager, disk.path(), &LoadOptions::new(place(&test, MemoryKind::Pinned))).unwrap();
    assert!(loaded.tensors().iter().all(|tensor| tensor.buffer().place().device.is_cpu()));
    model.assert_is(&loaded, 256, |buffer| buffer.read().unwrap().to_vec());
    drop(loaded);
    assert_empty(&manager);
}

#[test]
fn without_pinned_memory_to_be_had_the_ring_is_pageable() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[5000]);
    let disk = OnDisk::new(&model.file());
    let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(1000);
    out_of_memory(&test, &["cuMemHostAlloc", "cuMemHostRegister_v2"]);
    let loaded = load(&manager, disk.path(), &options).unwrap();
    model.assert_is(&loaded, 256, fetched(&manager));
    assert_eq!(loaded.report().staging, Some(MemoryKind::Pageable));
    drop(loaded);

    // A request for pinned memory gets it, or the error.
    out_of_memory(&test, &["cuMemHostAlloc", "cuMemHostRegister_v2"]);
    let error = load(&manager, disk.path(), &options.staging(MemoryKind::Pinned)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_empty(&manager);
}

#[test]
fn load_goes_on_with_the_staging_buffers_that_there_are() {
    /// Left to the transfers' own ring.
    const RING: u64 = transload::backend::STAGING_BUFFER;
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let model = Model::of_sizes(&[2_000_001, 3]);
    let disk = OnDisk::new(&model.file());
    // As many pinned buffers of 100,000 bytes as are within the limit, and a pageable one for each other reader; without any all are
    // pageable.
    for (limit, kind, most) in [(RING + 150_000, MemoryKind::Pinned, 4), (RING, MemoryKind::Pageable, 8)] {
        let manager = CrossBackendTransferManager::builder().staging_limit(limit).build();
        manager.register_backend(transload::cpu::CpuBackend::new().unwrap()).unwrap();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(100_000).readers(4).buffers(8);
        let loaded = load(&manager, disk.path(), &options.checksum(true)).unwrap();
        model.assert_is(&loaded, 256, fetched(&manager));
        let report = loaded.report();
        assert_eq!((report.staging, report.chunks, report.readers), (Some(kind), 21, 4));
        assert!((1..=most).contains(&report.buffers), "{} of {most}", report.buffers);
        drop(loaded);
        assert_empty(&manager);
    }
}

#[test]
fn loads_to_two_devices_at_once_are_apart() {
    let (Some(one), Some(two)) =
        (harness::device_with(|builder| builder), harness::device_with(|builder| builder))
    else {
        return;
    };
    let manager = host_manager();
    let config = CudaBackendConfig::default().with_devices([one.ordinal(), two.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let models = [Model::of_sizes(&[3_000_001, 70_000, 3]), Model::of_sizes(&[5, 4_000_000])];
    let disks = models.each_ref().map(|model| OnDisk::new(&model.file()));
    std::thread::scope(|scope| {
        for ((test, model), disk) in [&one, &two].into_iter().zip(&models).zip(&disks) {
            let manager = &manager;
            scope.spawn(move || {
                for checksum in [false, true, false] {
                    let options = LoadOptions::new(place(test, MemoryKind::Device)).checksum(checksum);
                    let loaded = load(manager, disk.path(), &options).unwrap();
                    model.assert_is(&loaded, 256, fetched(manager));
                    let report = loaded.report();
                    assert!(
                        report.buffers <= 2 * report.readers && report.buffer_bytes <= 4 << 20,
                        "{report:?}"
                    );
                }
            });
        }
    });
    assert_empty(&manager);
}

#[test]
fn load_cancelled_with_copies_in_flight_frees_all() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let manager = manager_over(&test);
    let disk = OnDisk::new(&Model::of_sizes(&[5_000_000]).file());
    for checksum in [false, true] {
        let (tell, told) = tokio::sync::oneshot::channel();
        let tell = std::sync::Mutex::new(Some(tell));
        let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(100_000).readers(4);
        let options = options.checksum(checksum).progress(move |_| {
            if let Some(tell) = tell.lock().unwrap().take() {
                let _cancelled_already = tell.send(());
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let loading = tokio::spawn(transload::load::load_async(&manager, disk.path(), &options));
            told.await.unwrap();
            // It may have ended just then.
            loading.abort();
            let _either = loading.await;
        });
        assert_empty(&manager);
    }
}

#[test]
fn failure_in_the_middle_ends_all_readers_and_keeps_nothing() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let manager = manager_over(&test);
    let model = Model::of_sizes(&[3_000_000]);
    let disk = OnDisk::new(&model.file());
    for checksum in [false, true] {
        let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(100_000).readers(4);
        test.sim().unwrap().fail_call(Some("cuMemcpyHtoDAsync_v2"), 10, INVALID_VALUE);
        let error = load(&manager, disk.path(), &options.clone().checksum(checksum)).unwrap_err();
        assert!(!matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io), "{error}");
        assert_empty(&manager);
        // The next load is not affected.
        let loaded = load(&manager, disk.path(), &options).unwrap();
        model.assert_is(&loaded, 256, fetched(&manager));
        drop(loaded);
        assert_empty(&manager);
    }
}

#[test]
fn every_driver_call_can_fail_and_nothing_is_kept() {
    let Some(healthy) = harness::device_with(|builder| builder) else { return };
    let model = Model::of_sizes(&[3000, 1, 500]);
    let disk = OnDisk::new(&model.file());
    let options = |test: &TestDevice| {
        LoadOptions::new(place(test, MemoryKind::Device)).chunk(1000).buffers(2).checksum(true).verify(true)
    };
    let manager = manager_over(&healthy);
    let before = healthy.sim().unwrap().calls();
    load(&manager, disk.path(), &options(&healthy)).unwrap();
    let calls = healthy.sim().unwrap().calls() - before;
    assert!(calls > 20, "{calls}");
    let (mut failed, mut passed) = (0, 0);
    for nth in 1..=calls + 5 {
        let Some(test) = harness::device_with(|builder| builder) else { return };
        let manager = manager_over(&test);
        test.sim().unwrap().fail_call(None, nth, INVALID_VALUE);
        let kept = match load(&manager, disk.path(), &options(&test)) {
            Err(error) => {
                failed += 1;
                assert!(!matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io), "call {nth}: {error}");
                assert_empty(&manager);
                0
            }
            // The fault hit no call, or one that frees memory: what could not be freed is still alive.
            Ok(loaded) => {
                passed += 1;
                drop(loaded);
                // A remaining fault is hit here.
                let _ = (manager.drain(), manager.drain());
                allocations(&manager)
            }
        };
        assert!(kept <= 1, "call {nth}: {kept} allocations");
        let loaded = load(&manager, disk.path(), &options(&test))
            .or_else(|_| load(&manager, disk.path(), &options(&test)));
        let loaded = loaded.unwrap();
        model.assert_is(&loaded, 256, fetched(&manager));
        drop(loaded);
        let _ = manager.drain();
        assert!(allocations(&manager) <= 1, "call {nth}");
    }
    println!("{calls} calls: {failed} loads failed, {passed} did not");
    assert!(failed > calls / 2, "{failed} of {calls}");
}
