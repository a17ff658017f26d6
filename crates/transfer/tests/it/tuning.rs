//! What staging is divided by: measured values, those of the user, and what stays after a failure.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use transload_core::{CostBasis, DeviceId, ErrorKind, MemoryKind, StagingHints, TransferPath, WorkloadType};
use transload_transfer::StagingTuning;

use crate::{
    MOCK, Mock,
    calibration::{self, setup, slow_link, upload},
    is_at_rest,
    mock::bytes,
    pair,
    staging::{OTHER, stage, staged},
    watchdog::within,
    with,
};

/// Enough to choose what uploads are divided by.
pub(crate) const STAGED_LARGEST: u64 = 4 << 20;

#[test]
fn values_of_staging_stay_if_a_copy_fails_or_the_user_set_them() {
    let setup = setup(slow_link);
    let options = || setup.options().largest(STAGED_LARGEST);
    let tuning = || setup.manager.staging_tuning(MOCK).unwrap();
    assert_eq!(tuning(), (StagingTuning::default(), CostBasis::BuiltIn));
    let mut found = setup.manager.calibrate(&options()).unwrap();
    // Here each takes as long as the others.
    assert_eq!((found.staging[0].tuning, found.staging[0].times.len()), (StagingTuning::default(), 0));
    assert_eq!(tuning(), (StagingTuning::default(), CostBasis::Measured));
    let measured = &mut found.staging[0].tuning;
    measured.upload_segment = 3 << 20;
    let measured = (*measured, CostBasis::Measured);
    setup.manager.use_calibration(&found).unwrap();
    assert_eq!(tuning(), measured);

    // At the second value.
    let (backend, seen) = (Arc::clone(&setup.backend), AtomicU64::new(0));
    let lose = options().progress(move |at| {
        if at.path == upload(MemoryKind::Pageable) && seen.fetch_add(1, Ordering::SeqCst) == 1 {
            backend.lose(MOCK);
        }
        ControlFlow::Continue(())
    });
    let failed = setup.manager.calibrate(&lose).unwrap();
    assert_eq!((failed.staging.len(), tuning()), (0, measured));
    let mut failed = failed;
    failed.keep_from(found.clone());
    assert_eq!(failed.staging, found.staging);

    let setup = calibration::setup(slow_link);
    let mut own = StagingTuning::default();
    own.download_buffers = 3;
    setup.manager.set_staging_tuning(MOCK, own).unwrap();
    let calibrated = setup.manager.calibrate(&setup.options().largest(STAGED_LARGEST)).unwrap();
    assert_eq!(calibrated.staging, []);
    setup.manager.use_calibration(&found).unwrap();
    assert_eq!(setup.manager.staging_tuning(MOCK).unwrap(), (own, CostBasis::User));
}

#[test]
fn staging_hints_of_a_backend_are_built_in_within_bounds() {
    for (upload, download, expected) in [
        (2 << 20, 1 << 20, [2 << 20, 1 << 20]),
        (1, 1, [4 << 10, 64 << 10]),
        (1 << 40, 1 << 40, [4 << 20; 2]),
    ] {
        let mut staging = StagingHints::default();
        (staging.upload_segment, staging.download_segment) = (Some(upload), Some(download));
        let (manager, _backend) = with(Mock { staging, ..Mock::default() });
        let (tuning, basis) = manager.staging_tuning(MOCK).unwrap();
        assert_eq!(([tuning.upload_segment, tuning.download_segment], basis), (expected, CostBasis::BuiltIn));
        manager.set_staging_tuning(MOCK, tuning).unwrap();
    }
}

#[test]
fn list_of_short_pieces_goes_to_the_queue_that_computes_it() {
    for (piece, workload, queues) in [(4 << 10, WorkloadType::Compute, 1), (8 << 10, WorkloadType::Memory, 2)]
    {
        let mut staging = StagingHints::default();
        (staging.queues, staging.computed_piece) = (2, 4 << 10);
        let (manager, backend) = with(Mock { staging, ..Mock::default() });
        let pairs: Vec<_> = (0..4).map(|_| pair(&manager, piece)).collect();
        backend.shared.leased.lock().clear();
        manager.copy_many(&pairs).options(staged()).wait().unwrap();
        let leased = std::mem::take(&mut *backend.shared.leased.lock());
        assert_eq!(leased.len(), queues, "{leased:?}");
        assert!(leased.iter().all(|(.., what)| *what == workload), "{leased:?}");
        assert!(pairs.iter().all(|(_, dst)| bytes(dst) == vec![1; piece]));
    }
}

#[test]
fn values_that_the_user_sets_meanwhile_are_no_measurement() {
    let setup = setup(slow_link);
    let mut own = StagingTuning::default();
    own.download_buffers = 3;
    let (manager, is_set) = (setup.manager.clone(), AtomicU64::new(0));
    let options = setup.options().largest(STAGED_LARGEST).progress(move |at| {
        if at.path == upload(MemoryKind::Pageable) && is_set.swap(1, Ordering::SeqCst) == 0 {
            manager.set_staging_tuning(MOCK, own).unwrap();
        }
        ControlFlow::Continue(())
    });
    let calibrated = setup.manager.calibrate(&options).unwrap();
    assert_eq!(calibrated.staging, []);
    assert_eq!(setup.manager.staging_tuning(MOCK).unwrap(), (own, CostBasis::User));
}

#[test]
fn manager_calibrates_once_at_a_time() {
    let setup = setup(slow_link);
    let (manager, inner) = (setup.manager.clone(), setup.options());
    let refused = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&refused);
    let options = setup.options().progress(move |_| {
        let error = manager.calibrate(&inner).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        seen.fetch_add(1, Ordering::SeqCst);
        ControlFlow::Break(())
    });
    let _cancelled = setup.manager.calibrate(&options).unwrap();
    assert_eq!(refused.load(Ordering::SeqCst), 1);
    let _again = setup.manager.calibrate(&setup.options()).unwrap();
}

#[test]
fn values_of_a_direction_without_time_stay_what_they_were() {
    let setup = setup(slow_link);
    let options = || setup.options().largest(STAGED_LARGEST * 4);
    let mut earlier = setup.manager.calibrate(&options()).unwrap();
    let tuning = &mut earlier.staging[0].tuning;
    (tuning.upload_segment, tuning.download_segment, tuning.download_buffers) = (3 << 20, 3 << 20, 5);
    let mut expected = *tuning;
    setup.manager.use_calibration(&earlier).unwrap();
    // Each look at the clock passes 1 µs, and from the first download on 1 s.
    let (step, clock) = (Arc::new(AtomicU64::new(1)), AtomicU64::new(0));
    let passes = Arc::clone(&step);
    let now = move || Duration::from_micros(clock.fetch_add(passes.load(Ordering::SeqCst), Ordering::SeqCst));
    let later = options().clock(now).progress(move |at| {
        if at.path.dst.kind == MemoryKind::Pageable && !at.path.src.device.is_cpu() {
            step.store(1_000_000, Ordering::SeqCst);
        }
        ControlFlow::Continue(())
    });
    let found = setup.manager.calibrate(&later).unwrap();
    expected.upload_segment = StagingTuning::default().upload_segment;
    assert_eq!(found.staging[0].tuning, expected, "uploads are as fast with the built-in values");
    assert_eq!(setup.manager.staging_tuning(MOCK).unwrap(), (expected, CostBasis::Measured));
}

/// Calibrates what staging is divided by, on a machine where each copy takes as long as `nanos` says. Nothing else passes time, so what is
/// found is the same however the threads are scheduled.
fn found_where(nanos: fn(&StagingTuning) -> u64) -> StagingTuning {
    let setup = setup(slow_link);
    let (manager, clock) = (setup.manager.clone(), AtomicU64::new(0));
    let now = move || {
        let (tuning, _) = manager.staging_tuning(MOCK).unwrap();
        Duration::from_nanos(clock.fetch_add(nanos(&tuning), Ordering::SeqCst))
    };
    // Before the first curve of the device's.
    let options = setup.options().largest(STAGED_LARGEST * 4).clock(now).progress(move |at| {
        let (TransferPath { src, dst }, pageable) = (at.path, MemoryKind::Pageable);
        let goes_on = src.device == dst.device || src.kind == pageable || dst.kind == pageable;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let calibration = setup.manager.calibrate(&options).unwrap();
    let [found] = calibration.staging.as_slice() else { panic!("{:?}", calibration.staging) };
    assert_eq!(setup.manager.staging_tuning(MOCK).unwrap(), (found.tuning, CostBasis::Measured));
    assert_eq!(found.times.is_empty(), found.tuning == StagingTuning::default(), "{found:?}");
    assert!(found.times.iter().all(|time| time.tuned < time.built_in), "{found:?}");
    found.tuning
}

#[test]
fn staging_is_divided_by_what_each_machine_is_fastest_with() {
    let (mut large, mut small) = (StagingTuning::default(), StagingTuning::default());
    (large.upload_segment, large.download_segment) = (4 << 20, 4 << 20);
    (small.upload_segment, small.download_segment) = (256 << 10, 256 << 10);
    small.short_threads = 1;
    assert_eq!(
        large,
        found_where(|it| 1_000 + (8 << 30) / it.upload_segment + (8 << 30) / it.download_segment)
    );
    let of_small = found_where(|it| {
        1_000 + (it.upload_segment + it.download_segment) / 1024 + 200 * u64::from(it.short_threads)
    });
    assert_eq!(small, of_small);
    // Noise decides nothing: values that take 2 % less than the built-in ones.
    let little = found_where(|it| if *it == StagingTuning::default() { 1_000 } else { 980 });
    assert_eq!(little, StagingTuning::default());
}

#[test]
fn any_valid_tuning_copies_every_byte() {
    within("copies by unusual sizes and numbers of threads", || {
        let (manager, _backend) = with(Mock::default());
        let tuning = |segment, threads, download, buffers| {
            let mut tuning = StagingTuning::default();
            (tuning.upload_segment, tuning.download_segment, tuning.download_buffers) =
                (segment, download, buffers);
            (tuning.short_threads, tuning.long_threads) = (threads, threads);
            tuning
        };
        let tunings = [
            tuning(4096, 1, 4 << 20, 1),
            tuning(4 << 20, 1024, 64 << 10, 1024),
            tuning((1 << 20) + 1, 3, 99_999, 2),
        ];
        let into_caches = tunings.map(|mut tuning| {
            tuning.upload_cached_from = 4 << 20;
            tuning
        });
        for tuning in tunings.into_iter().chain(into_caches) {
            manager.set_staging_tuning(MOCK, tuning).unwrap();
            for len in [1, (3 << 20) + 5, (9 << 20) + 1, (33 << 20) + 1] {
                let (src, there) = pair(&manager, len);
                let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, len).unwrap();
                src.write().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
                stage(&manager, &src, &there).wait().unwrap();
                let plan = manager.plan(there.place(), back.place(), len as u64, &staged()).unwrap();
                let report = manager.copy(&there, &back).options(staged()).wait().unwrap();
                assert_eq!(report.chunks, plan.chunks, "{tuning}");
                assert!(*back.read().unwrap() == *src.read().unwrap(), "{len} bytes, {tuning}");
            }
        }
        for wrong in
            [tuning(4095, 1, 1, 1), tuning(1 << 40, 1, 1, 1), tuning(4096, 0, 1, 1), tuning(4096, 1, 1, 1025)]
        {
            let error = manager.set_staging_tuning(MOCK, wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("valid are"), "{error}");
        }
        for (device, kind) in [(DeviceId::Cpu, ErrorKind::Unsupported), (OTHER, ErrorKind::UnknownDevice)] {
            assert_eq!(manager.staging_tuning(device).unwrap_err().kind(), kind);
        }
        assert!(is_at_rest(&manager));
    });
}
