//! How much memory a calibration uses, and what it says if that is too little.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use transload_core::{CostBasis, TransferPath};
use transload_transfer::{Calibration, CalibrationOptions, CrossBackendTransferManager, UnfinishedReason};

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
fn path_with_too_little_memory_has_a_shorter_curve() {
    // Of 1 GiB. An eighth is enough for 64 KiB.
    let (manager, _backend) = with(Mock { free: 1 << 20, ..Mock::default() });
    let mut found = manager.calibrate(&options().largest(LARGEST)).unwrap();
    assert_eq!((found.paths.len(), found.lists.len(), found.unfinished.len()), (8, 0, 8));
    for unfinished in &found.unfinished {
        let UnfinishedReason::OutOfMemory(reason) = &unfinished.reason else { panic!("{unfinished:?}") };
        assert!(reason.contains("262144 to 1048576 bytes") && !unfinished.lists_only, "{unfinished:?}");
        assert_eq!(largest(&found, unfinished.path), Some(1 << 16));
    }
    let measured = manager.costs().into_iter().filter(|(_, basis)| *basis == CostBasis::Measured);
    assert_eq!(measured.count(), found.costs().len());
    assert_eq!(manager.calibrate(&options().largest(1 << 16)).unwrap().unfinished, []);

    // Longer curves of an earlier calibration stay, shorter ones do not.
    let (manager, _backend) = with(Mock::default());
    let mut whole = manager.calibrate(&options().largest(LARGEST)).unwrap();
    assert_eq!(whole.unfinished, []);
    let path = whole.paths[0].path;
    whole.keep_from(found.clone());
    assert_eq!(largest(&whole, path), Some(LARGEST));
    found.keep_from(whole.clone());
    assert_eq!((found.paths, found.lists), (whole.paths, whole.lists));
}

#[test]
fn paths_without_any_memory_are_out_of_memory() {
    let (manager, _backend) = with(Mock { free: 1 << 10, ..Mock::default() });
    let found = manager.calibrate(&options().largest(LARGEST)).unwrap();
    assert_eq!((found.paths.len(), found.unfinished.len()), (0, 8));
    for unfinished in &found.unfinished {
        assert!(matches!(unfinished.reason, UnfinishedReason::OutOfMemory(_)), "{unfinished:?}");
    }
}

fn options() -> CalibrationOptions {
    let clock = AtomicU64::new(0);
    CalibrationOptions::new().clock(move || Duration::from_micros(clock.fetch_add(1, Ordering::SeqCst)))
}

/// Returns the largest measured size of a path, in bytes.
fn largest(found: &Calibration, path: TransferPath) -> Option<u64> {
    let path = found.paths.iter().find(|measured| measured.path == path)?;
    path.methods.iter().filter_map(|curve| curve.times.last()).map(|time| time.bytes).max()
}
