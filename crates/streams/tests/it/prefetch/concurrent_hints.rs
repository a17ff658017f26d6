//! Hints concurrent with a capture, and plan entries with and without a buffer.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind};
use transload_memory::{
    CudaFeature, ManagedMemoryHints, MemoryLocation, MigrationPolicy, PrefetchEntry, PrefetchPlan, Residency,
    advise,
};
use transload_streams::CudaStream;

use crate::{stream::capture::beside_a_global_capture, support::setup::Setup};

/// Large enough for pages of its own on any driver.
const BYTES: usize = 4 << 20;

fn able() -> Option<Setup> {
    let setup = Setup::new();
    if setup.device.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
        return Some(setup);
    }
    println!("skipped: host and device cannot use unified memory at the same time");
    None
}

#[test]
fn hints_and_queries_leave_other_captures_valid() {
    let Some(setup) = able() else { return };
    let [captured, stream] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
    let buffer = setup.memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    let (ordinal, address) = (setup.test.ordinal(), buffer.device_address().unwrap());
    beside_a_global_capture(&captured, || {
        advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cuda(ordinal)))?;
        let owned = ManagedMemoryHints::from_unified(&buffer)?;
        owned.apply_policy(MigrationPolicy::PreferDevice(ordinal))?;
        assert_eq!(Residency::of(&buffer)?.preferred, Some(MemoryLocation::Device(ordinal)));
        owned.prefetch_to(None, &stream)?;
        let raw = ManagedMemoryHints::for_buffer(&setup.device, address, BYTES)?;
        raw.prefetch_to(MemoryLocation::Host, &stream)?;
        raw.apply_policy(MigrationPolicy::Reset)?;
        stream.synchronize()
    });
    assert!(buffer.read().is_ok());
    drop((buffer, stream, captured));
    setup.finish();
}

#[test]
fn plan_entry_with_a_buffer_is_ordered_by_it() {
    let Some(setup) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let buffer = setup.memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    let (half, ordinal) = (BYTES / 2, setup.test.ordinal().cast_signed());
    let (first, second) = (buffer.slice(..half).unwrap(), buffer.slice(half..).unwrap());
    let ptr = buffer.device_address().unwrap();
    let mut plan = PrefetchPlan::new();
    plan.add(PrefetchEntry { ptr, byte_size: half, device_ordinal: ordinal }).add_buffer(&second, ordinal);
    let view = second.read().unwrap();
    let error = plan.execute(&stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "the host has a view of the second one");
    assert!(error.to_string().starts_with("entry 1 of the plan"), "{error}");
    drop(view);
    plan.execute(&stream).unwrap();
    let there = Some(MemoryLocation::Device(setup.test.ordinal()));
    for part in [&first, &second] {
        assert_eq!(Residency::of(part).unwrap().last_prefetch, there);
    }
    stream.synchronize().unwrap();
    drop((plan, first, second, buffer, stream));
    setup.finish();
}
