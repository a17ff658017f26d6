//! Memory that is staged again and again is registered, where that pays, until it is freed.

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, RawBuffer, TransferMethod, TransferOptions,
    TransferReport,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_core::Backend;
use transload_cuda_sim::harness;
use transload_cuda_sys::trace::Trace;

use crate::cuda::{Setup, noise};

const MIB: usize = 1 << 20;
/// More than the registration of the arrays of these tests needs, by the built-in costs.
const MANY: usize = 25;

fn calls(trace: &Trace, name: &str, of: usize) -> usize {
    trace.calls().iter().filter(|call| call.name == name && call.arguments[0] == of as u64).count()
}

fn address(buffer: &RawBuffer) -> usize {
    buffer.host_address().unwrap().as_ptr().expose_provenance()
}

/// Copies, and waits for a registration that it began.
fn copy(manager: &CrossBackendTransferManager, src: &RawBuffer, dst: &RawBuffer) -> TransferReport {
    let report = manager.copy(src, dst).wait().unwrap();
    manager.executor().drain().unwrap();
    report
}

#[test]
fn repeated_copies_register_memory_until_it_is_freed() {
    let setup = Setup::new();
    let content = noise(8 * MIB, 1);
    let (src, there) =
        (setup.filled(MemoryKind::Pageable, &content), setup.allocate(MemoryKind::Device, 8 * MIB));
    let (back, at) = (setup.allocate(MemoryKind::Pageable, 8 * MIB), address(&src));
    let trace = transload_cuda_sys::trace::start();
    for (from, to, near) in [(&src, &there, &src), (&there, &back, &back)] {
        let mut staged = 0;
        while !near.is_registered() {
            let report = copy(&setup.manager, from, to);
            assert_eq!((report.method, report.path.src), (TransferMethod::HostStaged, from.place()));
            staged += 1;
            assert!(staged <= MANY, "not registered after {staged} copies");
        }
        assert!(staged > 1, "registered after {staged} copies");
        let planned = setup.manager.copy(from, to).plan().unwrap();
        let report = copy(&setup.manager, from, to);
        assert!(planned.agrees_with(&report), "{planned}\n{report}");
        assert_eq!((report.method, report.chunks), (TransferMethod::DirectCopy, 1));
        assert!([report.path.src.kind, report.path.dst.kind].contains(&MemoryKind::Pinned), "{report}");
    }
    assert!(*back.read().unwrap() == content[..]);
    // What the caller wrote meanwhile is what is copied, and a method of the caller's choice copies it.
    src.write().unwrap()[..3].copy_from_slice(b"new");
    let only = TransferOptions::new().only(TransferMethod::HostStaged);
    for options in [TransferOptions::new(), only] {
        back.write().unwrap().fill(0);
        let up = setup.manager.copy(&src, &there).options(options).submit();
        setup.manager.copy(&there, &back).wait().unwrap();
        up.wait().unwrap();
        assert!(back.read().unwrap().starts_with(b"new"));
    }
    assert_eq!(calls(&trace, "cuMemHostRegister_v2", at), 1);
    assert_eq!(calls(&trace, "cuMemHostUnregister", at), 0);
    drop(src);
    setup.manager.drain().unwrap();
    assert_eq!(calls(&trace, "cuMemHostUnregister", at), 1);
}

#[test]
fn memory_copied_less_than_twice_in_parts_is_not_registered() {
    let setup = Setup::new();
    let (src, there) =
        (setup.allocate(MemoryKind::Pageable, 24 * MIB), setup.allocate(MemoryKind::Device, MIB));
    let in_parts = |parts: std::ops::Range<usize>| {
        for part in parts.map(|part| part % 24) {
            copy(&setup.manager, &src.slice(part * MIB..(part + 1) * MIB).unwrap(), &there);
        }
    };
    // A registration would have paid for itself by now.
    in_parts(0..46);
    assert!(!src.is_registered(), "copied less than twice");
    in_parts(46..72);
    assert!(src.is_registered(), "copied three times");
}

#[test]
fn memory_is_not_registered_if_that_is_off_or_pinned_memory_is_limited() {
    let test = harness::device();
    let (device, _end) = (DeviceId::Cuda(test.ordinal()), test.end_check());
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let cases = [
        (false, config.clone()),
        (true, config.clone().with_pinned_limit(1 << 30)),
        (true, config.with_registration_limit(2 * MIB as u64 - 1)),
    ];
    for (is_on, config) in cases {
        let manager = CrossBackendTransferManager::builder().registration(is_on).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 2 * MIB).unwrap();
        let there = manager.allocate(device, MemoryKind::Device, 2 * MIB).unwrap();
        for _ in 0..MANY {
            assert_eq!(copy(&manager, &src, &there).method, TransferMethod::HostStaged);
        }
        assert!(!src.is_registered(), "{is_on}, {config:?}");
        drop((src, there));
        manager.drain().unwrap();
    }
}

#[test]
fn memory_that_the_driver_refuses_is_staged_and_tried_again_later() {
    let setup = Setup::new();
    let Some(sim) = setup.test.sim() else { return };
    let content = noise(2 * MIB, 3);
    let (src, there) =
        (setup.filled(MemoryKind::Pageable, &content), setup.allocate(MemoryKind::Device, 2 * MIB));
    setup.manager.prepare(src.place(), there.place(), &TransferOptions::new()).unwrap();
    let trace = transload_cuda_sys::trace::start();
    sim.fail_call(Some("cuMemHostRegister_v2"), 1, 2);
    let mut copied = 0;
    while calls(&trace, "cuMemHostRegister_v2", address(&src)) < 1 {
        copy(&setup.manager, &src, &there);
        copied += 1;
        assert!(copied <= MANY);
    }
    for _ in 0..2 * copied {
        assert_eq!(copy(&setup.manager, &src, &there).method, TransferMethod::HostStaged);
    }
    assert_eq!(calls(&trace, "cuMemHostRegister_v2", address(&src)), 1, "tried again too soon");
    for _ in 0..16 * copied {
        copy(&setup.manager, &src, &there);
    }
    assert!(src.is_registered());
    let back = setup.allocate(MemoryKind::Pageable, 2 * MIB);
    copy(&setup.manager, &there, &back);
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn registered_memory_can_be_registered_by_the_caller() {
    let test = harness::device();
    let end = test.end_check();
    let (cpu, device) = (CpuBackend::new().unwrap(), DeviceId::Cuda(test.ordinal()));
    let cuda = CudaBackend::open(&CudaBackendConfig::default().with_devices([test.ordinal()])).unwrap();
    let there = cuda.allocate(device, MemoryKind::Device, 100).unwrap();
    let from = cpu.wrap_vec(noise(MIB, 9));
    cuda.register_until_freed(&from).unwrap();
    let pinned = cuda.register(&from).unwrap();
    assert_eq!(pinned.place().kind, MemoryKind::Pinned);
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(cuda.clone()).unwrap();
    manager.register_backend(cpu.clone()).unwrap();
    let up = manager.copy(&pinned.slice(5..105).unwrap(), &there).submit();
    // The backend of the host is drained last, and its memory freed after the other's registration.
    drop((pinned, from));
    up.wait().unwrap();
    manager.drain().unwrap();
    let back = cpu.wrap_vec(vec![0_u8; 100]);
    manager.copy(&there, &back).wait().unwrap();
    assert!(*back.read().unwrap() == noise(MIB, 9)[5..105]);
    drop((back, there));
    manager.drain().unwrap();
    for (name, ledger) in manager.resource_counts() {
        assert!(ledger.is_empty(), "{name}: {ledger}");
    }
    drop((manager, cuda, cpu, end));
}
