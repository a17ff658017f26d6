//! HostStaged and UnifiedMemory with failing driver calls, lost devices, or too little pinned memory.

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, Result, TransferMethod, TransferOptions,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, harness};

const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_ADDRESS: u32 = 700;
const UNKNOWN: u32 = 999;
const SIZE: usize = 1_300_001;

fn manager(sim: SimDevice) -> Result<CrossBackendTransferManager> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    Ok(manager)
}

fn builder() -> transload_cuda_sim::SimDeviceBuilder {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder().record_accesses(true)
}

/// A round trip by a method through memory of a kind. Returns whether the content is equal.
fn there_and_back(
    manager: &CrossBackendTransferManager,
    sim: SimDevice,
    kind: MemoryKind,
    method: TransferMethod,
) -> Result<bool> {
    let only = TransferOptions::new().only(method);
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, SIZE)?;
    host.write()?.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 253) as u8);
    let there = manager.allocate(DeviceId::Cuda(sim.ordinal()), kind, SIZE)?;
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, SIZE)?;
    let up = manager.copy(&host, &there).options(only).submit();
    let down = manager.copy(&there, &back).options(only).submit();
    let (down, up) = (pollster::block_on(down), up.wait());
    up.and(down)?;
    let (sent, seen) = (host.read()?, back.read()?);
    Ok(*sent == *seen)
}

const CASES: [(MemoryKind, TransferMethod); 3] = [
    (MemoryKind::Device, TransferMethod::HostStaged),
    (MemoryKind::Unified, TransferMethod::HostStaged),
    (MemoryKind::Unified, TransferMethod::UnifiedMemory),
];

#[test]
fn each_failing_call_is_typed_error_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    for (kind, method) in CASES {
        let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory, ErrorKind::Unsupported];
        let runs = harness::fail_each_call(
            |builder| builder,
            &[UNKNOWN, OUT_OF_MEMORY],
            &kinds,
            |sim| {
                let manager = manager(sim)?;
                let outcome = there_and_back(&manager, sim, kind, method);
                // The fault may hit the drain itself, once.
                let (first, second) = (manager.drain(), manager.drain());
                assert!(first.is_ok() || second.is_ok(), "{method}, {kind}: {second:?}");
                assert!(outcome?, "{method}, {kind}: other bytes came back");
                Ok(())
            },
        );
        // The number of calls depends on how often a thread polls while it waits: at least about 30, of which a few may
        // be missing.
        assert!(runs > 20, "{method}, {kind}: the scenario makes more calls than {runs}");
    }
}

#[test]
fn device_lost_during_staging_is_reported_without_hang() {
    let sim = builder().build();
    let manager = manager(sim).unwrap();
    let device = DeviceId::Cuda(sim.ordinal());
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 9 << 20).unwrap();
    let there = manager.allocate(device, MemoryKind::Device, 9 << 20).unwrap();
    let only = TransferOptions::new().only(TransferMethod::HostStaged);
    manager.copy(&host, &there).options(only).wait().unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    let first = manager.copy(&host, &there).options(only).wait().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::DeviceLost, "{first:?}");
    let later = manager.copy(&there, &host).options(only).wait().unwrap_err();
    assert_eq!(later.kind(), ErrorKind::DeviceLost, "{later:?}");
    // The host continues.
    let other = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 9 << 20).unwrap();
    manager.copy(&host, &other).wait().unwrap();
}

#[test]
fn staging_continues_with_fewer_buffers_when_out_of_pinned() {
    let _alone = crate::alone_with_drop_errors();
    let sim = builder().build();
    let manager = manager(sim).unwrap();
    let device = DeviceId::Cuda(sim.ordinal());
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 20 << 20).unwrap();
    host.write().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 7) as u8);
    let there = manager.allocate(device, MemoryKind::Device, 20 << 20).unwrap();
    let only = TransferOptions::new().only(TransferMethod::HostStaged);
    let part = 1 << 20;
    manager.copy(&host.slice(..part).unwrap(), &there.slice(..part).unwrap()).options(only).wait().unwrap();
    // From here on no staging buffer can be allocated: each attempt calls the driver twice.
    for nth in 1..40 {
        for call in ["cuMemHostAlloc", "cuMemHostRegister_v2"] {
            sim.fail_call(Some(call), nth, OUT_OF_MEMORY);
        }
    }
    manager.copy(&host, &there).options(only).wait().unwrap();
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 20 << 20).unwrap();
    manager.copy(&there, &back).options(only).wait().unwrap();
    assert!(*back.read().unwrap() == *host.read().unwrap());
}

#[test]
fn devices_without_peer_access_are_staged_automatically() {
    let (one, two) = (builder().no_peers().build(), builder().no_peers().build());
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let config = CudaBackendConfig::default().with_devices([one.ordinal(), two.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let allocate =
        |sim: SimDevice| manager.allocate(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device, SIZE).unwrap();
    let (here, there) = (allocate(one), allocate(two));
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, SIZE).unwrap();
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, SIZE).unwrap();
    host.write().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 241) as u8);
    drop(manager.copy(&host, &here).submit());
    let across = manager.copy(&here, &there).submit();
    drop(manager.copy(&there, &back).submit());
    assert_eq!(across.wait().unwrap().method, TransferMethod::HostStaged);
    assert!(*back.read().unwrap() == *host.read().unwrap());
    // Both ways at once, through one ring.
    let [first, second] = [(&here, one), (&there, two)].map(|(buffer, sim)| (buffer, allocate(sim)));
    host.write().unwrap().fill(7);
    manager.copy(&host, &here).wait().unwrap();
    let over = manager.copy(first.0, &second.1).submit();
    let and_back = manager.copy(second.0, &first.1).submit();
    for transfer in [over, and_back] {
        assert_eq!(transfer.wait().unwrap().method, TransferMethod::HostStaged);
    }
    for (buffer, is_expected) in [
        (&second.1, (|(_, byte)| byte == 7) as fn((usize, u8)) -> bool),
        (&first.1, |(index, byte)| byte == (index % 241) as u8),
    ] {
        manager.copy(buffer, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().copied().enumerate().all(is_expected));
    }
    for sim in [one, two] {
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}
