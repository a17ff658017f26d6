//! A driver without functions to load kernels: everything else works. A test binary of its own, as the driver is
//! process-wide.
#![cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "it/uncalibrated.rs"]
mod uncalibrated;

use transload::{
    DeviceId, ErrorKind, FloatType, MemoryKind, StreamPriority, TransferMethod, TransferOptions,
    backend::{ListWay, RejectReason},
};
use transload_cuda_sim::{DriverOptions, SimDevice, install_with};

#[test]
fn without_kernels_urgent_transfers_use_copy_engine() {
    install_with(DriverOptions::default().version(11_040).missing("cuModuleLoadDataEx")).unwrap();
    let sim = SimDevice::builder().build();
    let runtime = crate::uncalibrated::builder().discover().unwrap();
    let manager = runtime.manager();
    let device = DeviceId::Cuda(sim.ordinal());
    let mapped = manager.allocate_for(device, MemoryKind::Mapped, 64).unwrap();
    let there = manager.allocate_for(device, MemoryKind::Device, 64).unwrap();
    mapped.write().unwrap().fill(7);
    let options = TransferOptions::new().priority(StreamPriority::High);
    manager.prepare(mapped.place(), there.place(), &options).unwrap();
    let report = manager.copy(&mapped, &there).options(options).wait().unwrap();
    assert_eq!(report.method, TransferMethod::DirectCopy);
    let ours = report.rejected.iter().find(|rejected| rejected.method == TransferMethod::ZeroCopy);
    assert_eq!(ours.unwrap().reason, RejectReason::NoKernel);

    let within = manager.allocate_for(device, MemoryKind::Device, 64).unwrap();
    let pageable = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    for src in [within, pageable, mapped.clone()] {
        let list = || manager.copy_many(vec![(src.clone(), there.clone())]);
        let failed = list().way(ListWay::CopyKernel).wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Unsupported, "{failed}");
        list().way(ListWay::CopyEngine).wait().unwrap();
    }

    let error = manager.cast((&mapped, FloatType::F16), (&there, FloatType::Bf16)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("cast in the host's memory"), "{error}");
}
