//! A failed transfer returns its error and leaves the manager usable; the loss of a device is returned once.

use transload_core::{ErrorKind, MemoryKind, SizeClass, TransferPath};
use transload_transfer::TransferOptions;

use crate::{
    DeviceId, MOCK, Mock,
    gate::Gate,
    is_at_rest,
    mock::bytes,
    pair,
    staging::{OTHER, filled, two_devices},
    with,
};

#[test]
fn failed_copy_returns_its_error_and_next_works() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.fail_next(ErrorKind::Device);
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Device, "planted failure of operation 1")
    );
    assert_eq!(manager.refused(), 0);
    // No other method was tried instead.
    assert_eq!((backend.performed(), backend.leased().len()), (1, 1));
    manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(bytes(&dst), [1; 64]);
    drop((src, dst));
    assert!(is_at_rest(&manager));
}

#[test]
fn a_failed_copy_fails_the_future_too() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.fail_next(ErrorKind::Device);
    let error = pollster::block_on(manager.copy(&src, &dst).submit()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
}

#[test]
fn enqueue_error_counts_as_failure_of_path() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.refuse_next(ErrorKind::Device);
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!((error.kind(), manager.refused()), (ErrorKind::Device, 0));
    let stats = manager.stats_for(TransferPath::new(src.place(), dst.place()), SizeClass::UpTo4KiB);
    assert_eq!((stats.len(), stats[0].failures, stats[0].transfers), (1, 1, 0));
    manager.copy(&src, &dst).wait().unwrap();
}

#[test]
fn lost_device_is_refused_with_first_cause() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    backend.pass_next();
    manager.copy(&src, &dst).wait().unwrap();
    backend.fail_next(ErrorKind::DeviceLost);
    let first = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!((first.kind(), manager.refused()), (ErrorKind::DeviceLost, 0));

    let performed = backend.performed();
    for transfer in [manager.copy(&src, &dst).submit(), manager.copy(&dst, &host).submit()] {
        assert!(transfer.refusal().is_some());
        let later = transfer.wait().unwrap_err();
        assert_eq!(later.kind(), ErrorKind::DeviceLost);
        assert!(later.to_string().contains("mock:0 was lost before"), "{later}");
        assert!(later.to_string().contains(&first.to_string()), "{later}");
    }
    let planned = manager.plan(src.place(), dst.place(), 64, &TransferOptions::new()).unwrap_err();
    assert_eq!(planned.kind(), ErrorKind::DeviceLost);
    assert_eq!((backend.performed(), manager.refused()), (performed, 2));
    let prepared = manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap_err();
    assert_eq!(prepared.kind(), ErrorKind::DeviceLost);
    assert!(prepared.to_string().contains(&first.to_string()), "{prepared}");

    // Other devices go on.
    manager.copy(&src, &host).wait().unwrap();
    assert_eq!(bytes(&host), [1; 64]);
    // Clearing statistics keeps the device lost.
    manager.clear_cache();
    assert!(manager.copy(&src, &dst).submit().refusal().is_some());
}

#[test]
fn device_lost_while_enqueueing_is_refused_later() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.refuse_next(ErrorKind::DeviceLost);
    let first = manager.copy(&src, &dst).wait().unwrap_err();
    let later = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(first.to_string(), "planted refusal");
    assert!(later.to_string().ends_with("the first cause: planted refusal"), "{later}");
}

#[test]
fn memory_outlives_copies_when_later_device_lost() {
    for later_reads in [true, false] {
        let (manager, backend) = two_devices();
        let near = filled(&manager, MOCK, MemoryKind::Device, 64, 1);
        let far = filled(&manager, OTHER, MemoryKind::Device, 64, 0);
        let between = manager.allocate(MOCK, MemoryKind::Pinned, 64).unwrap();
        let gate = Gate::new();
        backend.close_downloads(gate.fence());
        let first = manager.copy(&near, &between).submit();
        let later = if later_reads {
            manager.copy(&between, &far).submit()
        } else {
            manager.copy(&far, &between).submit()
        };
        backend.lose(OTHER);
        assert_eq!(between.try_read().unwrap_err().kind(), ErrorKind::Busy);
        drop(between);
        assert_eq!(backend.freed_in_use(), 0);
        gate.open();
        drop((first, later, near, far));
        let _the_loss = manager.drain();
        assert_eq!(backend.freed_in_use(), 0);
    }
}
