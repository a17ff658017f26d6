//! Registered pageable memory counts as pinned: the copy engine copies it without staging.

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, TransferMethod,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_core::Backend;
use transload_cuda_sim::harness;
use transload_cuda_sys::trace;

use crate::cuda::noise;

#[test]
fn registered_source_is_one_direct_copy() {
    let test = harness::device();
    let (cpu, device) = (CpuBackend::new().unwrap(), DeviceId::Cuda(test.ordinal()));
    let cuda = CudaBackend::open(&CudaBackendConfig::default().with_devices([test.ordinal()])).unwrap();
    let manager = CrossBackendTransferManager::builder().build();
    manager.register_backend(cpu.clone()).unwrap();
    manager.register_backend(cuda.clone()).unwrap();
    let content = noise(8_000_000, 5);
    let (from, to) = (cpu.wrap_vec(content.clone()), cpu.wrap_vec(vec![0_u8; content.len()]));
    let (source, target) = (cuda.register(&from).unwrap(), cuda.register(&to).unwrap());
    let there = manager.allocate_for(device, MemoryKind::Device, content.len()).unwrap();
    for (src, dst, call) in
        [(&source, &there, "cuMemcpyHtoDAsync_v2"), (&there, &target, "cuMemcpyDtoHAsync_v2")]
    {
        let trace = trace::start();
        let transfer = manager.transfer_buffer(src, dst, 0, 0, content.len());
        let calls = trace.calls_of_this_thread();
        let copies: Vec<_> =
            calls.iter().map(|call| call.name).filter(|name| name.starts_with("cuMemcpy")).collect();
        assert_eq!(copies, [call]);
        assert_eq!(transfer.wait().unwrap().method, TransferMethod::DirectCopy);
    }
    drop((source, target, there));
    assert!(*to.read().unwrap() == content[..]);
    drop((from, to));
    manager.drain().unwrap();
    for (name, ledger) in manager.resource_counts() {
        assert!(ledger.is_empty(), "{name}: {ledger}");
    }
    drop((manager, cuda, cpu));
    test.assert_no_live_objects();
    test.assert_no_races();
}
