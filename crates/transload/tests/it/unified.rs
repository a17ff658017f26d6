//! The method UnifiedMemory: migrates whole ranges and moves exactly the requested bytes.

use transload::{ErrorKind, MemoryKind, RawBuffer, TransferMethod, TransferOptions};

use crate::cuda::{Setup, noise};

const SIZE: usize = 700_001;

fn unified() -> TransferOptions {
    TransferOptions::new().only(TransferMethod::UnifiedMemory)
}

/// Names and byte counts of calls on a range of unified memory since the trace began.
fn seen(trace: &transload_cuda_sys::trace::Trace, buffer: &RawBuffer, name: &str) -> usize {
    let address = buffer.device_address().unwrap();
    let range = address..address + buffer.len() as u64;
    trace
        .calls()
        .iter()
        .filter(|call| call.name.starts_with(name) && range.contains(&call.arguments[0]))
        .count()
}

#[test]
fn unified_round_trip_takes_one_migration_each_way() {
    let setup = Setup::new();
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped] {
        let content = noise(SIZE + 40, 5);
        let source = setup.filled(kind, &content);
        let there = setup.allocate(MemoryKind::Unified, SIZE + 20);
        let back = setup.filled(kind, &vec![0xEE; SIZE + 40]);
        let trace = transload_cuda_sys::trace::start();
        let up = setup
            .manager
            .copy(&source.slice(19..19 + SIZE).unwrap(), &there.slice(3..3 + SIZE).unwrap())
            .options(unified())
            .submit();
        let down = setup
            .manager
            .copy(&there.slice(3..3 + SIZE).unwrap(), &back.slice(17..17 + SIZE).unwrap())
            .options(unified())
            .submit();
        assert_eq!(down.wait().unwrap().method, TransferMethod::UnifiedMemory);
        up.wait().unwrap();
        assert_eq!(seen(&trace, &there, "cuMemPrefetchAsync"), 2, "to the device, and to the host");
        assert_eq!(
            seen(&trace, &there, "cuMemcpyHtoDAsync_v2"),
            0,
            "the host's threads write, no copy engine"
        );
        drop(trace);
        let view = back.read().unwrap();
        assert!(view[17..17 + SIZE] == content[19..19 + SIZE], "{kind}");
        assert!(view[..17].iter().chain(&view[17 + SIZE..]).all(|byte| *byte == 0xEE), "{kind}");
    }
}

#[test]
fn unified_download_migrates_and_upload_does_not() {
    let setup = Setup::new();
    let (host, there) =
        (setup.filled(MemoryKind::Pinned, &noise(SIZE, 5)), setup.allocate(MemoryKind::Unified, SIZE));
    let move_in = || drop(setup.manager.copy(&host, &there).options(unified()).wait().unwrap());
    let moves = || there.use_epoch_for(there.place().device);
    move_in();
    for _ in 0..2 {
        let before = moves();
        move_in();
        assert_eq!(moves(), before, "it was sent on to the device");
        setup.manager.copy(&there, &host).options(unified()).wait().unwrap();
        assert_ne!(moves(), before, "it lies on the host");
    }
}

#[test]
fn unified_copy_within_device_prefetches_first() {
    let setup = Setup::new();
    let content = noise(SIZE, 6);
    let source = setup.filled(MemoryKind::Unified, &content);
    let (there, again) =
        (setup.allocate(MemoryKind::Device, SIZE), setup.allocate(MemoryKind::Unified, SIZE));
    let trace = transload_cuda_sys::trace::start();
    let first = setup.manager.copy(&source, &there).options(unified()).submit();
    let second = setup.manager.copy(&there, &again).options(unified()).submit();
    second.wait().unwrap();
    first.wait().unwrap();
    assert_eq!(
        (seen(&trace, &source, "cuMemPrefetchAsync"), seen(&trace, &again, "cuMemPrefetchAsync")),
        (1, 1)
    );
    drop(trace);
    assert!(*again.read().unwrap() == content[..]);
}

#[test]
fn automatic_choice_migrates_unified_to_device_memory() {
    let setup = Setup::new();
    let source = setup.filled(MemoryKind::Unified, &noise(SIZE, 8));
    let there = setup.allocate(MemoryKind::Device, SIZE);
    let trace = transload_cuda_sys::trace::start();
    let report = setup.manager.copy(&source, &there).wait().unwrap();
    assert_eq!(report.method, TransferMethod::UnifiedMemory);
    assert_eq!(seen(&trace, &source, "cuMemPrefetchAsync"), 1);
}

#[test]
fn migration_without_unified_memory_is_rejected() {
    let setup = Setup::new();
    let (source, there) =
        (setup.filled(MemoryKind::Pinned, &[1; 100]), setup.allocate(MemoryKind::Device, 100));
    let refused = setup.manager.copy(&source, &there).options(unified()).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("neither side is unified memory"), "{refused}");
}
