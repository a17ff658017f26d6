//! Hints on devices and with failures that only the simulated driver can have.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind};
use transload_cuda_sys::{Context, Device};
use transload_memory::{MigrationPolicy, Residency, advise, apply_migration_policy};

use crate::{ILLEGAL_ADDRESS, OUT_OF_MEMORY, builder, manager};

#[test]
fn device_without_concurrent_access_is_refused_by_name() {
    let sim = builder().pre_pascal().build();
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let here = DeviceId::Cuda(sim.ordinal());
    for advice in [MemoryAdvice::SetPreferredLocation(here), MemoryAdvice::SetAccessedBy(here)] {
        let error = advise(&buffer, advice).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("valid are cpu and devices with concurrent"), "{error}");
    }
    drop(buffer);
    memory.drain().unwrap();
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn valid_advice_makes_one_call_in_relaxed_capture_mode() {
    let (sim, other) = (builder().build(), builder().build());
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let advised = || {
        let trace = transload_cuda_sys::trace::start();
        advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
        trace.calls_of_this_thread().iter().map(|call| call.name).collect::<Vec<_>>()
    };
    let exchange = "cuThreadExchangeStreamCaptureMode";
    let bare = [exchange, "cuMemAdvise_v2", exchange];
    for ordinal in [sim.ordinal(), other.ordinal()] {
        let context = Device::new(ordinal).and_then(Context::primary).unwrap();
        let _bound = context.enter().unwrap();
        advised();
        assert_eq!(advised(), bare, "in the context of device {ordinal}");
    }
    advised();
    let entered = advised();
    let calls = entered.iter().filter(|name| !name.starts_with("cuCtx")).copied().collect::<Vec<_>>();
    assert_eq!(calls, bare, "without a context");
    assert!(entered.contains(&"cuCtxPushCurrent_v2"), "{entered:?}");
}

#[test]
fn lost_foreign_context_does_not_fail_advice() {
    let (sim, lost) = (builder().build(), builder().build());
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let context = Device::new(lost.ordinal()).and_then(Context::primary).unwrap();
    let _bound = context.enter().unwrap();
    lost.poison(ILLEGAL_ADDRESS);
    for _ in 0..2 {
        advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
        advise(&buffer, MemoryAdvice::UnsetReadMostly).unwrap();
    }
}

#[test]
fn refused_call_is_not_repeated_in_the_same_context() {
    let sim = builder().build();
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let context = Device::new(sim.ordinal()).and_then(Context::primary).unwrap();
    let _bound = context.enter().unwrap();
    advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    sim.fail_call(Some("cuMemAdvise_v2"), 1, OUT_OF_MEMORY);
    assert_eq!(advise(&buffer, MemoryAdvice::SetReadMostly).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn lost_device_is_distinguished_from_invalid_argument() {
    let sim = builder().build();
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    assert_eq!(advise(&buffer, MemoryAdvice::SetReadMostly).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(Residency::of(&buffer).unwrap_err().kind(), ErrorKind::DeviceLost);
}

#[test]
fn reset_skips_devices_without_hints() {
    let (sim, old) = (builder().build(), builder().pre_pascal().build());
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let here = DeviceId::Cuda(sim.ordinal());
    advise(&buffer, MemoryAdvice::SetAccessedBy(here)).unwrap();
    let refused = advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cuda(old.ordinal()))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    apply_migration_policy(&buffer, MigrationPolicy::Reset).unwrap();
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default());
}
