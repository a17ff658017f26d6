//! Changes of role: each range and role has its own advice.

use transload_core::{Access, MemoryKind, Pattern, RawBuffer};
use transload_cuda_sys::trace;
use transload_memory::{MemoryLocation, Residency, Role, UnifiedMode};
use transload_streams::{CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use super::Fixture;
use crate::{launch::saxpy_of, support::setup::Setup};

/// Large enough for pages of its own on any driver.
const COUNT: usize = 1 << 20;

fn managed() -> Option<Fixture> {
    let setup = Setup::new();
    if UnifiedMode::of(&setup.device).unwrap() == UnifiedMode::Managed {
        return Some(Fixture::new("the usual device", setup, UnifiedMode::Managed));
    }
    println!("skipped: the device has no concurrent access to unified memory");
    None
}

fn believed(part: &RawBuffer) -> Residency {
    Residency::of(part).unwrap()
}

#[test]
fn second_range_in_the_same_role_is_advised() {
    let Some(fixture) = managed() else { return };
    let here = MemoryLocation::Device(fixture.setup.test.ordinal());
    let buffer = fixture.buffer::<f32>(COUNT);
    for range in [0..COUNT / 2, COUNT / 2..COUNT] {
        let there =
            buffer.acquire_range_for_device(&fixture.stream, range, Role::Resident, Access::Read).unwrap();
        let known = believed(there.raw());
        assert_eq!((known.preferred, known.last_prefetch), (Some(here), Some(here)));
    }
    drop(buffer);
    fixture.finish();
}

#[test]
fn only_memory_that_left_the_device_is_prefetched_again() {
    let Some(fixture) = managed() else { return };
    let here = MemoryLocation::Device(fixture.setup.test.ordinal());
    let buffer = fixture.buffer::<f32>(COUNT);
    let brought = || {
        let trace = trace::start();
        let there = buffer.acquire_for_device(&fixture.stream, Role::InOut).unwrap();
        let calls = trace.calls_of_this_thread();
        let prefetched = calls.iter().any(|call| call.name.starts_with("cuMemPrefetchAsync"));
        (prefetched, there.raw().clone())
    };
    let (first, raw) = brought();
    assert!(first && !brought().0);
    fixture.stream.memset_async(&raw, Pattern::U8(0)).wait().unwrap();
    assert!(!brought().0, "the device itself used it");
    drop(raw.read().unwrap());
    assert!(brought().0, "a view of the memory, not a slice of the buffer");
    fixture.stream.prefetch_to_host_async(&raw).wait().unwrap();
    assert!(brought().0 && !brought().0, "it was sent away");
    assert_eq!(believed(&raw).last_prefetch, Some(here));
    drop(buffer.read_range(..16).unwrap());
    let trace = trace::start();
    drop(buffer.acquire_range_for_device(&fixture.stream, COUNT / 2.., Role::InOut, Access::Write).unwrap());
    let calls = trace.calls_of_this_thread();
    assert!(!calls.iter().any(|call| call.name.starts_with("cuMemPrefetchAsync")), "{calls:?}");
    drop((raw, buffer));
    fixture.finish();
}

/// Launches once with `part` in a role and other device memory.
fn launch(
    executor: &LaunchExecutor,
    kernel: &CudaKernel,
    stream: &CudaStream,
    (part, beside): (&RawBuffer, &RawBuffer),
    role: Role,
) {
    let count = (part.len() / 4) as u64;
    let launch = kernel.launch(LaunchConfig::for_elements(count, 256)).arg(1.0_f32);
    let launch = match role {
        Role::Input => launch.reads(part).role(role).reads_writes(beside),
        _ => launch.reads(beside).reads_writes(part).role(role),
    };
    // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
    unsafe { executor.enqueue(launch.arg(count), stream) }.unwrap().wait().unwrap();
}

#[test]
fn executor_undoes_the_last_roles_advice_per_range() {
    let Some(fixture) = managed() else { return };
    let here = MemoryLocation::Device(fixture.setup.test.ordinal());
    let kernel = saxpy_of(&fixture.setup);
    let executor = LaunchExecutor::new(&fixture.setup.device).unwrap();
    let raw = fixture.setup.memory.allocate(MemoryKind::Unified, COUNT * 4).unwrap();
    raw.write().unwrap().fill(0);
    let beside = fixture.setup.device(COUNT * 4);
    drop(fixture.stream.memset_async(&beside, Pattern::U8(0)));
    let (half, rest) = (raw.slice(..COUNT * 2).unwrap(), raw.slice(COUNT * 2..).unwrap());
    let run = |part: &RawBuffer, role| {
        launch(&executor, &kernel, &fixture.stream, (part, &beside), role);
        believed(part)
    };
    let input = run(&half, Role::Input);
    assert!(input.read_mostly && input.preferred.is_none(), "{input:?}");
    // A different range with the same start as the half.
    assert!(run(&raw, Role::Input).read_mostly && believed(&rest).read_mostly);
    let resident = run(&raw, Role::Resident);
    assert!(!resident.read_mostly && resident.preferred == Some(here), "{resident:?}");
    let output = run(&raw, Role::Output);
    assert!(output.preferred.is_none() && output.accessed_by.len() == 2, "{output:?}");
    let in_out = run(&raw, Role::InOut);
    assert!(!in_out.read_mostly && in_out.accessed_by.is_empty(), "{in_out:?}");
    drop((half, rest, raw, beside, executor, kernel));
    fixture.finish();
}
