//! Many copies at once with failing driver calls, and with a device that is lost.

use std::future::IntoFuture;

use transload::{
    CopyManyError, CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, RawBuffer, Result,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, harness};

const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_ADDRESS: u32 = 700;
const UNKNOWN: u32 = 999;
const PIECE: usize = 300;
const COUNT: usize = 40;

fn manager(sim: SimDevice) -> Result<CrossBackendTransferManager> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    Ok(manager)
}

type Pair = (RawBuffer, RawBuffer);

/// Pieces of two host memories to one of the device, and of the host to the host, in turn.
struct List {
    pairs: Vec<Pair>,
    device: RawBuffer,
    host: RawBuffer,
}

fn list(manager: &CrossBackendTransferManager, sim: SimDevice) -> Result<List> {
    let (cuda, bytes) = (DeviceId::Cuda(sim.ordinal()), PIECE * COUNT);
    let sources = [
        manager.allocate_for(cuda, MemoryKind::Pinned, bytes)?,
        manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?,
    ];
    for source in &sources {
        source.write()?.fill(5);
    }
    let device = manager.allocate(cuda, MemoryKind::Device, bytes)?;
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?;
    host.write()?.fill(0);
    let part = |of: &RawBuffer, at: usize| of.slice(at * PIECE..(at + 1) * PIECE);
    let pair = |at: usize| {
        let to = if at % 4 == 3 { part(&host, at) } else { part(&device, COUNT - 1 - at) };
        Ok((part(&sources[at % 2], at)?, to?))
    };
    let pairs = (0..COUNT).map(pair).collect::<Result<_>>()?;
    Ok(List { pairs, device, host })
}

/// Returns whether the pairs of a failed list that it does not name were copied, as far as the host can see.
fn host_has_the_rest(list: &List, failed: &CopyManyError) -> bool {
    let view = list.host.read();
    let Ok(view) = view else { return true };
    let rest = (0..COUNT).filter(|at| at % 4 == 3 && !failed.pairs.contains(at));
    rest.into_iter().all(|at| view[at * PIECE..(at + 1) * PIECE].iter().all(|byte| *byte == 5))
}

#[test]
fn each_failing_call_is_an_error_by_index_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    for exclusive in [false, true] {
        let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory, ErrorKind::Unsupported];
        let runs = harness::fail_each_call(
            |builder| builder,
            &[UNKNOWN, OUT_OF_MEMORY],
            &kinds,
            |sim| {
                let manager = manager(sim)?;
                let outcome = list(&manager, sim).and_then(|list| {
                    let copy = manager.copy_many(&list.pairs);
                    let copy = if exclusive { copy.exclusive() } else { copy };
                    if let Err(failed) = copy.wait() {
                        assert!(!failed.pairs.is_empty() && host_has_the_rest(&list, &failed), "{failed}");
                        return Err(failed.into());
                    }
                    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, list.device.len())?;
                    manager.copy(&list.device, &back).wait()?;
                    let (back, host) = (back.read()?, list.host.read()?);
                    Ok((0..COUNT).all(|at| {
                        let (of, at) = if at % 4 == 3 { (&host, at) } else { (&back, COUNT - 1 - at) };
                        of[at * PIECE..(at + 1) * PIECE].iter().all(|byte| *byte == 5)
                    }))
                });
                // The fault may hit the drain itself, once.
                let (first, second) = (manager.drain(), manager.drain());
                assert!(first.is_ok() || second.is_ok(), "{second:?}");
                assert!(outcome?, "other bytes came");
                Ok(())
            },
        );
        assert!(runs > 20, "the scenario makes more calls than {runs}");
    }
}

#[test]
fn lost_device_fails_its_groups_and_no_other() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let list = list(&manager, sim).unwrap();
    manager.copy_many(&list.pairs).wait().unwrap();
    list.host.write().unwrap().fill(0);
    sim.poison(ILLEGAL_ADDRESS);
    let failed = manager.copy_many(&list.pairs).wait().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::DeviceLost, "{failed}");
    let to_device: Vec<usize> = (0..COUNT).filter(|at| at % 4 != 3).collect();
    assert_eq!(failed.pairs, to_device);
    assert!(host_has_the_rest(&list, &failed));
    // Known from now on, so nothing is begun.
    let again = manager.copy_many(&list.pairs).wait().unwrap_err();
    assert_eq!(again.error.kind(), ErrorKind::DeviceLost);
    let within: Vec<Pair> = list.pairs.iter().skip(3).step_by(4).cloned().collect();
    assert_eq!(manager.copy_many(&within).wait().unwrap().pairs, COUNT / 4);
}

#[test]
fn awaited_list_in_place_is_one_launch() {
    const COUNT: usize = 200;
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let manager = manager(sim).unwrap();
    let [from, to] = [1, 2]
        .map(|_| manager.allocate(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device, COUNT * PIECE).unwrap());
    let part = |of: &RawBuffer, at: usize| of.slice(at * PIECE..(at + 1) * PIECE).unwrap();
    let pairs: Vec<Pair> = (0..COUNT).map(|at| (part(&from, at), part(&to, COUNT - 1 - at))).collect();
    pollster::block_on(manager.copy_many(pairs).into_future()).unwrap();
    let launches = sim.executed().iter().filter(|(_, name)| *name == "cuLaunchKernel").count();
    assert_eq!(launches, 1, "the thread of the executor allocates the list's memory");
}

#[test]
fn million_pieces_go_up_in_any_order() {
    const COUNT: usize = 1_000_000;
    let Some(test) = harness::device_with(|sim| sim) else { return };
    let manager = manager(*test.sim().unwrap()).unwrap();
    let cuda = DeviceId::Cuda(test.ordinal());
    let [from, back] = [(); 2].map(|()| manager.allocate_for(cuda, MemoryKind::Pinned, COUNT).unwrap());
    let there = manager.allocate(cuda, MemoryKind::Device, COUNT).unwrap();
    from.write().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    let part = |of: &RawBuffer, at: usize| of.slice(at..at + 1).unwrap();
    let pairs = || (0..COUNT).map(|at| (part(&from, at), part(&there, COUNT - 1 - at)));
    let mut bad: Vec<_> = pairs().collect();
    bad[COUNT / 2].0 = from.slice(..2).unwrap();
    let failed = manager.copy_many(&bad).exclusive().wait().unwrap_err();
    assert_eq!(
        (failed.error.kind(), failed.pairs.as_slice()),
        (ErrorKind::InvalidArgument, &[COUNT / 2][..])
    );
    drop(bad);
    let report = manager.copy_many(pairs().collect::<Vec<_>>()).exclusive().wait().unwrap();
    assert_eq!((report.pairs, report.bytes), (COUNT, COUNT as u64));
    manager.copy(&there, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().rev().eq(from.read().unwrap().iter()));
    drop((from, back, there));
    manager.drain().unwrap();
    drop(manager);
    test.assert_no_live_objects();
}
