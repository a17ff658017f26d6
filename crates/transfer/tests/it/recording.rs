//! Recordings by a backend without them, and the choice among recordable methods.

use transload_core::{DeviceId, ErrorKind, MemoryKind};
use transload_transfer::TransferOptions;

use crate::{MOCK, Mock, is_at_rest, pair, with};

const ANY: TransferOptions = TransferOptions::new();

#[test]
fn backend_without_recording_is_unsupported() {
    let (manager, backend) = with(Mock::default());
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    let error = manager.record(&[(src.clone(), dst.clone())], &ANY).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("does not support recording of operations"), "{error}");
    drop((src, dst));
    assert!(backend.leased().is_empty() && backend.performed() == 0 && is_at_rest(&manager));
}

#[test]
fn unrecordable_pair_is_submitted_anew_by_each_replay() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let recorded = manager.record(&[(src.clone(), dst.clone())], &ANY).unwrap();
    assert_eq!(backend.performed(), 0);
    for replay in 1..3 {
        let report = recorded.replay().wait().unwrap();
        assert_eq!((report.bytes, backend.performed()), (64, replay));
    }
    let plan = manager.plan(src.place(), dst.place(), 64, &ANY).unwrap();
    assert!(!plan.to_string().contains("cannot be recorded"), "a transfer is not chosen by that: {plan}");
    let none = TransferOptions::new().only(transload_core::TransferMethod::PeerToPeer);
    let error = manager.record(&[(src.clone(), dst.clone())], &none).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("PeerToPeer: "), "{error}");
    drop((recorded, src, dst));
    assert!(is_at_rest(&manager));
}
