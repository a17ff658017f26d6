//! Short copies without a queue: ordered with all other work, and only if they have nothing to wait for.

use std::ops::Range;

use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, Pattern, Place, RawBuffer, Result, Timing,
    catch_panic, copy_on_host, submit,
};

use crate::{
    allocate, backend,
    failures::{REFUSED, refuse},
    gate::Gate,
    lease, noise,
};

/// Returns whether it was copied.
fn at_once(src: &RawBuffer, dst: &RawBuffer) -> Result<bool> {
    let took = copy_on_host(src, dst, Timing::Off)?;
    assert!(took.is_none_or(|took| took.is_zero()), "it was not measured");
    Ok(took.is_some())
}

const HOST: Place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);

#[test]
fn short_copy_completes_inline() {
    let backend = backend(1, usize::MAX);
    assert!(backend.host_copy_limit(HOST, HOST) >= 4096);
    assert_eq!(backend.host_copy_limit(HOST, Place::new(DeviceId::Cuda(0), MemoryKind::Device)), 0);
    let (src, dst) = (backend.wrap_vec(noise(1, 4096)), allocate(&backend, 4096));
    for _ in 0..3 {
        assert!(at_once(&src, &dst).unwrap());
        assert!(*dst.try_read().unwrap() == *src.try_read().unwrap());
        assert_eq!(dst.in_flight().unwrap().len() + src.in_flight().unwrap().len(), 0);
        dst.write().unwrap().fill(0);
    }
    let took = copy_on_host(&src, &dst, Timing::Measured).unwrap();
    assert!(took.unwrap() > std::time::Duration::ZERO);
}

#[test]
fn short_copy_is_queued_after_work_in_flight() {
    let (backend, gate) = (backend(1, usize::MAX), Gate::new());
    let (src, dst) = (backend.wrap_vec(noise(2, 64)), allocate(&backend, 64));
    for used in [&src, &dst] {
        submit(&gate, &Operation::Fill { dst: used, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
        assert!(!at_once(&src, &dst).unwrap(), "it overtook earlier work");
        gate.open();
        assert!(at_once(&src, &dst).unwrap());
    }
    let view = dst.read().unwrap();
    assert_eq!(at_once(&src, &dst).unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    let part = src.slice(32..).unwrap();
    let overlapping = at_once(&part, &src.slice(16..48).unwrap());
    assert_eq!(overlapping.unwrap_err().kind(), ErrorKind::Overlap);
}

#[test]
fn short_copy_from_damaged_fails_and_onto_repairs() {
    let backend = backend(1, usize::MAX);
    let (good, bad) = (allocate(&backend, REFUSED), allocate(&backend, REFUSED));
    let part = |of: &RawBuffer, range: Range<usize>| of.slice(range).unwrap();
    refuse();
    let fill = Operation::Fill { dst: &bad, pattern: Pattern::U8(1) };
    submit(&*lease(&backend), &fill, Timing::Off).unwrap().wait().unwrap_err();
    let error = at_once(&part(&bad, 0..64), &part(&good, 0..64)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SourceFailed);
    assert!(at_once(&part(&good, 64..128), &part(&bad, 64..128)).unwrap());
    drop(bad.slice(64..128).unwrap().read().unwrap());
    for damaged in [0..64, 128..REFUSED] {
        let error = part(&bad, damaged).read().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceFailed);
    }
}

#[test]
fn panicking_hook_before_short_copy_leaves_no_claims() {
    let backend = backend(1, usize::MAX);
    let (src, dst) = (allocate(&backend, REFUSED), allocate(&backend, REFUSED));
    refuse();
    catch_panic(|| at_once(&src, &dst)).unwrap_err();
    drop((src.slice(..64).unwrap().write().unwrap(), dst.slice(..64).unwrap().write().unwrap()));
}
