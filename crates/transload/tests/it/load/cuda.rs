//! Loads onto a CUDA device, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).

use transload::{
    TransferMethod, TransferOptions,
    cuda::{CudaBackend, CudaBackendConfig},
    load::{LoadOptions, load},
};
use transload_cuda_sim::harness::{self, TestDevice};

use super::*;

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

#[test]
fn load_makes_one_allocation_and_one_copy_per_chunk() {
    let test = harness::device();
    let manager = manager_over(&test);
    // Small tensors with gaps between them do not cause small copies.
    let disk = OnDisk::new(&Model::of_sizes(&[100; 100]).file());
    let only = TransferOptions::new().only(TransferMethod::DirectCopy);
    let options = LoadOptions::new(place(&test, MemoryKind::Device)).chunk(8192).transfer(only);
    load(&manager, disk.path(), &options).unwrap();
    // Otherwise the second load would reuse memory cached from the first.
    manager.drain().unwrap();
    let trace = transload_cuda_sys::trace::start();
    let loaded = load(&manager, disk.path(), &options).unwrap();
    let (calls, here) = (trace.calls(), std::thread::current().id());
    let allocates = |name| matches!(name, "cuMemAlloc_v2" | "cuMemAllocAsync" | "cuMemAllocFromPoolAsync");
    let made: Vec<usize> =
        (0..calls.len()).filter(|at| calls[*at].thread == here && allocates(calls[*at].name)).collect();
    let [made] = made[..] else { panic!("{} allocations", made.len()) };
    // The readers' copies, and none of another test.
    let [segment] = loaded.segments() else { panic!("{loaded:?}") };
    let from = segment.device_address().unwrap();
    let there = from..from + segment.len() as u64;
    let copies = calls[made..]
        .iter()
        .filter(|call| call.name == "cuMemcpyHtoDAsync_v2" && there.contains(&call.arguments[0]));
    assert_eq!(copies.count(), 4);
    let report = loaded.report();
    assert_eq!((report.staging, report.chunks), (Some(MemoryKind::Pinned), 4));
    assert!((1..=4).contains(&report.buffers) && report.readers >= 1, "{report:?}");
    let [count] = report.methods[..] else { panic!("{report:?}") };
    assert_eq!(
        (count.method, count.chunks, count.bytes),
        (TransferMethod::DirectCopy, 4, 99 * 256 + 100 - 3 * 156)
    );
}

#[test]
fn a_runtime_loads_onto_a_device_that_it_found() {
    let test = harness::device();
    // Other tests' devices may be about to fail.
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let runtime = crate::uncalibrated::builder().cuda(config).discover().unwrap();
    let model = Model::of_sizes(&[4096, 77]);
    let disk = OnDisk::new(&model.file());
    let loaded = runtime.load(disk.path(), &LoadOptions::new(place(&test, MemoryKind::Device))).unwrap();
    model.assert_is(&loaded, 256, fetched(runtime.manager()));
    let text = loaded.report().to_string();
    assert_eq!(text.contains("simulated"), test.is_simulated(), "{text}");
    drop(loaded);
    let elsewhere = LoadOptions::new(Place::new(DeviceId::Wgpu(3), MemoryKind::Device));
    let error = runtime.load(disk.path(), &elsewhere).unwrap_err();
    assert!(error.to_string().contains("no wgpu backend"), "{error}");
    runtime.drain().unwrap();
}
