//! In which order, and how often, a calibration measures, and what it need not measure.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

use transload_core::{MemoryKind, TransferMethod, TransferPath};

use crate::calibration::{nanos, noisy, setup_with, slow_link, upload};

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;

/// Staging takes half as long again after another method, and is noisy.
fn cold_after_others(number: usize, method: TransferMethod, before: TransferMethod) -> f64 {
    let noise = if number.wrapping_mul(0x9E37_79B1) % 1021 < 510 { 1.1 } else { 1.0 };
    if method == STAGED { noise * if before == STAGED { 1.0 } else { 1.5 } } else { 1.0 }
}

#[test]
fn short_copies_are_measured_after_other_methods_and_longer_ones_after_their_own() {
    let setup = setup_with(slow_link, cold_after_others);
    let found = setup.calibrate();
    let path = upload(MemoryKind::Pageable);
    let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
    let curve = calibrated.methods.iter().find(|curve| curve.method == STAGED).unwrap();
    for time in &curve.times {
        let ratio = time.median.as_nanos() as f64 / nanos(slow_link, path, STAGED, time.bytes);
        let expected = if time.bytes < 64 << 10 { 1.49..=1.66 } else { 0.99..=1.11 };
        assert!(expected.contains(&ratio), "{time:?}: {ratio}");
    }
}

#[test]
fn pinned_memory_has_the_curves_of_mapped_memory() {
    // Were it measured, its noise would differ.
    let setup = setup_with(slow_link, noisy);
    let copies = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&copies);
    let options = setup.options().progress(move |progress| {
        told.lock().unwrap().push((progress.done, progress.total));
        ControlFlow::Continue(())
    });
    let found = setup.manager.calibrate(&options).unwrap();
    for turned in [false, true] {
        let of = |kind| {
            let TransferPath { src, dst } = upload(kind);
            let path = if turned { TransferPath::new(dst, src) } else { TransferPath::new(src, dst) };
            let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
            format!("{:?}", calibrated.methods)
        };
        assert_eq!(of(MemoryKind::Pinned), of(MemoryKind::Mapped));
    }
    let copies = copies.lock().unwrap();
    let is_ordered = copies.is_sorted_by_key(|(done, _)| *done);
    assert!(is_ordered && copies.iter().all(|(done, total)| done < total), "{copies:?}");
}

/// Takes 10 ms where staging takes one.
fn slow_direct(_: TransferPath, method: TransferMethod, _: u64) -> (f64, f64) {
    if method == DIRECT { (10_000.0, 20.0) } else { (1_000.0, 20.0) }
}

#[test]
fn method_that_takes_far_longer_than_another_is_measured_a_few_times() {
    let setup = setup_with(slow_direct, noisy);
    let found = setup.calibrate();
    let calibrated =
        found.paths.iter().find(|calibrated| calibrated.path == upload(MemoryKind::Pageable)).unwrap();
    let of = |method| calibrated.methods.iter().find(|curve| curve.method == method).unwrap();
    assert!(of(DIRECT).times.iter().all(|time| time.repetitions < 5), "{calibrated:?}");
    assert!(of(STAGED).times.iter().all(|time| time.repetitions >= 5), "{calibrated:?}");
}

/// Every seventh copy is held up for long.
fn with_hiccups(number: usize, _: TransferMethod, _: TransferMethod) -> f64 {
    if number.is_multiple_of(7) { 2_000.0 } else { 1.0 }
}

#[test]
fn method_that_is_held_up_once_is_measured_on() {
    let found = setup_with(slow_link, with_hiccups).calibrate();
    let mut curves = found.paths.iter().flat_map(|path| &path.methods).flat_map(|curve| &curve.times);
    assert!(curves.all(|time| time.repetitions >= 5), "{:?}", found.paths);
}
