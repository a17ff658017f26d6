//! ZeroCopy with a failing driver or an unloadable kernel; sharing between devices.

use std::time::Duration;

use transload::{
    CrossBackendTransferManager, DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, StreamPriority,
    TransferMethod, TransferOptions, TransferReport,
    backend::{CostModel, PathCost, RejectReason, TransferPath},
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, harness};

use crate::setup::{Setup, noise};

const HIGH: TransferOptions = TransferOptions::new().priority(StreamPriority::High);
const OUT_OF_MEMORY: u32 = 2;
const INVALID_PTX: u32 = 218;
const ILLEGAL_ADDRESS: u32 = 700;
const UNKNOWN: u32 = 999;

fn simulated() -> SimDevice {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder().record_accesses(true).build()
}

fn manager(sim: SimDevice) -> Result<CrossBackendTransferManager, Error> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    // So that automatic choice takes it even if nothing is queued.
    let (host, there) = (
        Place::new(DeviceId::Cpu, MemoryKind::Mapped),
        Place::new(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device),
    );
    let paths = [TransferPath::new(host, there), TransferPath::new(there, host)];
    let (method, model) = (TransferMethod::ZeroCopy, CostModel::linear(Duration::from_nanos(1), 1e15));
    manager.set_costs(paths.map(|path| PathCost { path, method, model: model.clone() }).to_vec());
    Ok(manager)
}

fn pair(
    manager: &CrossBackendTransferManager,
    sim: SimDevice,
    content: &[u8],
) -> Result<(RawBuffer, RawBuffer), Error> {
    let device = DeviceId::Cuda(sim.ordinal());
    let mapped = manager.allocate_for(device, MemoryKind::Mapped, content.len())?;
    mapped.write()?.copy_from_slice(content);
    Ok((mapped, manager.allocate_for(device, MemoryKind::Device, content.len())?))
}

fn round_trip(
    manager: &CrossBackendTransferManager,
    (mapped, there): &(RawBuffer, RawBuffer),
    options: &TransferOptions,
) -> Result<TransferReport, Error> {
    manager.copy(mapped, there).options(*options).wait()?;
    mapped.write()?.fill(0);
    manager.copy(there, mapped).options(*options).wait()
}

#[test]
fn unloadable_kernel_falls_back_to_other_methods() {
    let sim = simulated();
    let manager = manager(sim).unwrap();
    let content = noise(5000, 1);
    let buffers = pair(&manager, sim, &content).unwrap();
    // Once per direction.
    sim.fail_call(Some("cuModuleLoadDataEx"), 1, INVALID_PTX);
    sim.fail_call(Some("cuModuleLoadDataEx"), 2, INVALID_PTX);
    for _ in 0..2 {
        let report = round_trip(&manager, &buffers, &HIGH).unwrap();
        assert_eq!(report.method, TransferMethod::DirectCopy);
        let ours = report.rejected.iter().find(|rejected| rejected.method == TransferMethod::ZeroCopy);
        assert_eq!(ours.unwrap().reason, RejectReason::NoKernel);
        assert!(*buffers.0.read().unwrap() == content[..]);
    }
    let only = TransferOptions::new().only(TransferMethod::ZeroCopy);
    let error = round_trip(&manager, &buffers, &only).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("rejects the kernel"), "{error}");
    let plan = manager.plan(buffers.0.place(), buffers.1.place(), 5000, &HIGH).unwrap();
    assert_eq!(plan.method, TransferMethod::DirectCopy, "{plan}");
}

#[test]
fn kernel_load_error_is_returned_and_retried_later() {
    for (code, kind) in [(UNKNOWN, ErrorKind::Device), (OUT_OF_MEMORY, ErrorKind::OutOfMemory)] {
        let sim = simulated();
        let manager = manager(sim).unwrap();
        let content = noise(5000, 2);
        let buffers = pair(&manager, sim, &content).unwrap();
        // Preparing hits the first fault, submitting the second.
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, code);
        sim.fail_call(Some("cuModuleLoadDataEx"), 2, code);
        let error = round_trip(&manager, &buffers, &HIGH).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("cuModuleLoadDataEx"), "{error}");
        let report = round_trip(&manager, &buffers, &HIGH).unwrap();
        assert_eq!(report.method, TransferMethod::ZeroCopy);
        assert!(*buffers.0.read().unwrap() == content[..]);
    }
}

#[test]
fn each_failing_call_is_typed_error_or_fallback_without_leak() {
    let _alone = crate::alone_with_drop_errors();
    let content = noise(5000, 3);
    harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &[ErrorKind::Device],
        |sim| {
            let manager = manager(sim)?;
            let outcome = pair(&manager, sim, &content).and_then(|buffers| {
                round_trip(&manager, &buffers, &HIGH)?;
                assert!(*buffers.0.read()? == content[..]);
                let shared = manager.share(&buffers.1, DeviceId::Cpu)?;
                assert!(*shared.buffer.read()? == content[..]);
                Ok(())
            });
            let drained = manager.drain();
            outcome.and(drained)
        },
    );
}

#[test]
fn share_copy_reports_its_result() {
    let content = noise(100_000, 5);
    for fails in [false, true] {
        let sim = simulated();
        let manager = manager(sim).unwrap();
        let (mapped, there) = pair(&manager, sim, &content).unwrap();
        manager.copy(&mapped, &there).wait().unwrap();
        let shared = manager.share(&there, DeviceId::Cpu).unwrap();
        let arrival = shared.arrival.clone().unwrap();
        assert!(shared.copied);
        if fails {
            sim.poison(ILLEGAL_ADDRESS);
            assert_eq!(arrival.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
        } else {
            arrival.wait().unwrap();
            assert!(*shared.buffer.read().unwrap() == content[..]);
            let in_place = manager.share(&mapped, there.place().device).unwrap();
            assert!(!in_place.copied && in_place.arrival.is_none());
        }
    }
}

#[test]
fn share_with_other_device_is_in_place_if_it_migrates() {
    let device = || harness::device_with(|builder| builder);
    let (Some(first), Some(second)) = (device(), device()) else { return };
    let setup = Setup::over([first, second]);
    let to = setup.devices[1];
    for kind in [MemoryKind::Unified, MemoryKind::Mapped] {
        let buffer = setup.manager.allocate_for(setup.devices[0], kind, 5000).unwrap();
        let shared = setup.manager.share(&buffer, to).unwrap();
        assert!(!shared.copied && shared.buffer.device_address() == buffer.device_address(), "{kind}");
    }
    let content = noise(5000, 4);
    let buffer = setup.filled(0, &content);
    let shared = setup.manager.share(&buffer, to).unwrap();
    assert!(shared.copied && shared.buffer.place().device == to);
    assert!(setup.content(&shared.buffer) == content);
    drop((buffer, shared));
    setup.finish();
}
