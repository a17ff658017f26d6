//! A transfer uses a stream of its priority and its workload, as seen in the driver's calls.

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, StreamPriority, TransferMethod, TransferOptions,
    WorkloadType,
    backend::{SizeClass, TransferPath},
    cpu::CpuBackend,
    cuda::{AllocationStrategy, CudaBackend, CudaBackendConfig},
};
use transload_cuda_sys::trace;

use crate::cuda::Setup;

const PRIORITIES: [StreamPriority; 3] = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low];

/// Returns the stream of the only copy or launch that the thread enqueued in `work`.
pub(crate) fn stream_of(trace: &trace::Trace) -> u64 {
    let calls = trace.calls_of_this_thread();
    let mut streams = calls.iter().filter_map(|call| match call.name {
        "cuMemcpyHtoDAsync_v2" | "cuMemcpyDtoHAsync_v2" | "cuMemcpyDtoDAsync_v2" => {
            call.arguments.get(3).copied()
        }
        "cuLaunchKernel" => call.arguments.get(8).copied(),
        _ => None,
    });
    let stream = streams.next().unwrap();
    assert_eq!(streams.next(), None, "one transfer, one call: {calls:?}");
    stream
}

/// Returns the stream that a transfer of mapped memory to the device used.
fn stream_by(setup: &Setup, options: &TransferOptions) -> u64 {
    let (source, there) =
        (setup.filled(MemoryKind::Mapped, &[1; 100]), setup.allocate(MemoryKind::Device, 100));
    let trace = trace::start();
    let transfer = setup.manager.copy(&source, &there).options(*options).submit();
    let stream = stream_of(&trace);
    transfer.wait().unwrap();
    stream
}

#[test]
fn copies_use_streams_of_confirmed_priority() {
    let setup = Setup::new();
    let device = transload_cuda_sys::Device::new(setup.device.ordinal()).unwrap();
    let context = transload_cuda_sys::Context::primary(device).unwrap();
    let (least, greatest) = context.stream_priority_range().unwrap();
    for method in [TransferMethod::DirectCopy, TransferMethod::ZeroCopy] {
        let streams = PRIORITIES
            .map(|priority| stream_by(&setup, &TransferOptions::new().only(method).priority(priority)));
        let priorities = streams.map(|stream| {
            let handle = std::ptr::with_exposed_provenance_mut(stream as usize);
            // SAFETY: the stream belongs to the manager's backend, which lives.
            unsafe { transload_cuda_sys::Stream::from_raw(&context, handle) }.priority().unwrap()
        });
        assert_eq!(priorities, [greatest, i32::midpoint(least, greatest), least], "{method}");
    }
}

#[test]
fn a_copy_and_a_kernel_that_copies_go_to_different_streams() {
    let setup = Setup::new();
    for priority in PRIORITIES {
        let options = TransferOptions::new().priority(priority);
        let engine = stream_by(&setup, &options.only(TransferMethod::DirectCopy));
        let kernel = stream_by(&setup, &options.only(TransferMethod::ZeroCopy));
        assert_ne!(engine, kernel, "{priority:?}");
        // The caller's workload overrides that of the method.
        let engine_as_kernel = options.only(TransferMethod::DirectCopy).workload(WorkloadType::Compute);
        assert_eq!(stream_by(&setup, &engine_as_kernel), kernel, "{priority:?}");
        let kernel_as_copy = options.only(TransferMethod::ZeroCopy).workload(WorkloadType::Memory);
        assert_eq!(stream_by(&setup, &kernel_as_copy), engine, "{priority:?}");
        let barrier = options.only(TransferMethod::DirectCopy).workload(WorkloadType::Coordination);
        assert!(![engine, kernel].contains(&stream_by(&setup, &barrier)), "{priority:?}");
    }
}

#[test]
fn single_stream_per_priority_is_shared_by_workloads() {
    let test = transload_cuda_sim::harness::device();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let config = CudaBackendConfig::default()
        .with_devices([test.ordinal()])
        .with_streams_per_priority(1)
        .with_strategy(AllocationStrategy::RoundRobin);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let setup = Setup { test, manager, device: DeviceId::Cuda(test.ordinal()), _end: test.end_check() };
    for priority in PRIORITIES {
        let options = TransferOptions::new().priority(priority);
        let engine = stream_by(&setup, &options.only(TransferMethod::DirectCopy));
        assert_eq!(stream_by(&setup, &options.only(TransferMethod::ZeroCopy)), engine);
    }
}

#[test]
fn chosen_methods_are_listed_by_path_and_size_class() {
    let setup = Setup::new();
    let high = TransferOptions::new().priority(StreamPriority::High);
    let kernel = high.only(TransferMethod::ZeroCopy);
    let size = 2 << 20;
    let (mapped, there) =
        (setup.allocate(MemoryKind::Mapped, size), setup.allocate(MemoryKind::Device, size));
    for (bytes, options) in [(100, kernel), (100, TransferOptions::new()), (100, kernel), (size, high)] {
        let (src, dst) = (mapped.slice(..bytes).unwrap(), there.slice(..bytes).unwrap());
        setup.manager.copy(&src, &dst).options(options).wait().unwrap();
    }
    let path = TransferPath::new(mapped.place(), there.place());
    let chosen = |class| {
        let mut chosen: Vec<_> = setup
            .manager
            .stats_for(path, class)
            .iter()
            .map(|stats| (stats.method, stats.transfers))
            .collect();
        chosen.sort_by_key(|(_, transfers)| *transfers);
        chosen
    };
    assert_eq!(chosen(SizeClass::UpTo4KiB), [(TransferMethod::DirectCopy, 1), (TransferMethod::ZeroCopy, 2)]);
    assert_eq!(chosen(SizeClass::UpTo16MiB), [(TransferMethod::DirectCopy, 1)]);
    let listed = setup.manager.get_transfer_stats();
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(listed[0].to_string().contains("transfers"), "{}", listed[0]);
}
