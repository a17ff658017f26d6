//! Hints on devices and with faults that only the software driver can have.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind};
use transload_memory::{MigrationPolicy, Residency, advise, apply_migration_policy};

use crate::{ILLEGAL_ADDRESS, builder, manager};

#[test]
fn a_device_that_cannot_share_with_the_host_is_refused_by_name() {
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
    assert!(sim.ledger().is_empty(), "{}", sim.ledger());
}

#[test]
fn advice_that_is_right_costs_one_call_beside_the_binding_of_the_context() {
    let memory = manager(builder().build());
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    let trace = transload_cuda_sys::trace::start();
    advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    let names: Vec<_> = trace
        .calls_of_this_thread()
        .iter()
        .map(|call| call.name)
        .filter(|name| !name.starts_with("cuCtx") && *name != "cuThreadExchangeStreamCaptureMode")
        .collect();
    assert_eq!(names, ["cuMemAdvise_v2"]);
}

#[test]
fn a_lost_device_is_told_from_a_wrong_argument() {
    let sim = builder().build();
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    assert_eq!(advise(&buffer, MemoryAdvice::SetReadMostly).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(Residency::of(&buffer).unwrap_err().kind(), ErrorKind::DeviceLost);
}

#[test]
fn reset_leaves_out_devices_that_nothing_can_have_been_advised_about() {
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
