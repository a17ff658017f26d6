//! How much memory a calibration uses, and what it says if that is too little.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use transload_transfer::{CalibrationOptions, CrossBackendTransferManager, UnfinishedReason};

use crate::{Mock, with};

const LARGEST: u64 = 1 << 20;

#[test]
fn unknown_free_memory_is_bounded_by_the_total() {
    let backend = Mock { total_of_unknown_free: Some(1 << 20), ..Mock::default() }.build();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(backend as _).unwrap();
    let options = CalibrationOptions::new().largest(LARGEST).progress(|at| {
        assert!(at.bytes <= (1 << 20) / 8, "{at:?}");
        ControlFlow::Continue(())
    });
    assert_eq!(manager.calibrate(&options).unwrap().unfinished, []);
}

#[test]
fn sizes_for_which_too_little_memory_is_free_leave_their_paths_unfinished() {
    // Of 1 GiB. An eighth is enough for 64 KiB.
    let (manager, _backend) = with(Mock { free: 1 << 20, ..Mock::default() });
    let options = || {
        let clock = AtomicU64::new(0);
        CalibrationOptions::new().clock(move || Duration::from_micros(clock.fetch_add(1, Ordering::SeqCst)))
    };
    let found = manager.calibrate(&options().largest(LARGEST)).unwrap();
    assert_eq!((found.paths.len(), found.lists.len(), manager.costs().len()), (0, 0, 0));
    assert_eq!(found.unfinished.len(), 8);
    for unfinished in &found.unfinished {
        let UnfinishedReason::Failed(reason) = &unfinished.reason else { panic!("{unfinished:?}") };
        assert!(reason.contains("262144 to 1048576 bytes"), "{reason}");
    }
    assert_eq!(manager.calibrate(&options().largest(1 << 16)).unwrap().unfinished, []);
}
