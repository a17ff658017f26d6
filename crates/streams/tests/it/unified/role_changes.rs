//! The same memory in another role, or another part of it in the same one: each has its own advice, and nobody else's.

use transload_core::{Access, MemoryKind, Pattern, RawBuffer};
use transload_cuda_sys::trace;
use transload_memory::{MemoryLocation, Residency, Role, UnifiedMode};
use transload_streams::{CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use super::Bench;
use crate::{launch::saxpy_of, support::setup::Setup};

/// Large enough to have pages of its own on any driver.
const COUNT: usize = 1 << 20;

fn managed() -> Option<Bench> {
    let setup = Setup::new();
    if UnifiedMode::of(&setup.device).unwrap() == UnifiedMode::Managed {
        return Some(Bench::new("the usual device", setup, UnifiedMode::Managed));
    }
    println!("skipped: the device has no concurrent access to unified memory");
    None
}

fn believed(part: &RawBuffer) -> Residency {
    Residency::of(part).unwrap()
}

#[test]
fn another_range_in_the_same_role_is_advised_too() {
    let Some(bench) = managed() else { return };
    let here = MemoryLocation::Device(bench.setup.test.ordinal());
    let buffer = bench.buffer::<f32>(COUNT);
    for range in [0..COUNT / 2, COUNT / 2..COUNT] {
        let there =
            buffer.acquire_range_for_device(&bench.stream, range, Role::Resident, Access::Read).unwrap();
        let known = believed(there.raw());
        assert_eq!((known.preferred, known.last_prefetch), (Some(here), Some(here)));
    }
    drop(buffer);
    bench.finish();
}

#[test]
fn what_somebody_else_took_from_the_device_is_brought_again_and_what_the_device_used_is_not() {
    let Some(bench) = managed() else { return };
    let here = MemoryLocation::Device(bench.setup.test.ordinal());
    let buffer = bench.buffer::<f32>(COUNT);
    let brought = || {
        let trace = trace::start();
        let there = buffer.acquire_for_device(&bench.stream, Role::InOut).unwrap();
        let calls = trace.calls_of_this_thread();
        let prefetched = calls.iter().any(|call| call.name.starts_with("cuMemPrefetchAsync"));
        (prefetched, there.raw().clone())
    };
    let (first, raw) = brought();
    assert!(first && !brought().0);
    bench.stream.memset_async(&raw, Pattern::U8(0)).wait().unwrap();
    assert!(!brought().0, "the device itself used it");
    drop(raw.read().unwrap());
    assert!(brought().0, "a view of the memory, not a slice of the buffer");
    bench.stream.prefetch_to_host_async(&raw).wait().unwrap();
    assert!(brought().0 && !brought().0, "it was sent away");
    assert_eq!(believed(&raw).last_prefetch, Some(here));
    drop(buffer.read_range(..16).unwrap());
    let trace = trace::start();
    drop(buffer.acquire_range_for_device(&bench.stream, COUNT / 2.., Role::InOut, Access::Write).unwrap());
    let calls = trace.calls_of_this_thread();
    assert!(!calls.iter().any(|call| call.name.starts_with("cuMemPrefetchAsync")), "{calls:?}");
    drop((raw, buffer));
    bench.finish();
}

/// One launch in which `part` has a role, beside memory of the device's.
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
    // SAFETY: the kernel takes these four parameters, and touches so many numbers of each buffer.
    unsafe { executor.enqueue(launch.arg(count), stream) }.unwrap().wait().unwrap();
}

#[test]
fn an_executor_takes_the_advice_of_the_last_role_back_and_tells_ranges_apart() {
    let Some(bench) = managed() else { return };
    let here = MemoryLocation::Device(bench.setup.test.ordinal());
    let kernel = saxpy_of(&bench.setup);
    let executor = LaunchExecutor::new(&bench.setup.device).unwrap();
    let raw = bench.setup.memory.allocate(MemoryKind::Unified, COUNT * 4).unwrap();
    raw.write().unwrap().fill(0);
    let beside = bench.setup.device(COUNT * 4);
    drop(bench.stream.memset_async(&beside, Pattern::U8(0)));
    let (half, rest) = (raw.slice(..COUNT * 2).unwrap(), raw.slice(COUNT * 2..).unwrap());
    let run = |part: &RawBuffer, role| {
        launch(&executor, &kernel, &bench.stream, (part, &beside), role);
        believed(part)
    };
    let input = run(&half, Role::Input);
    assert!(input.read_mostly && input.preferred.is_none(), "{input:?}");
    // It begins where the half does, and is another range.
    assert!(run(&raw, Role::Input).read_mostly && believed(&rest).read_mostly);
    let resident = run(&raw, Role::Resident);
    assert!(!resident.read_mostly && resident.preferred == Some(here), "{resident:?}");
    let output = run(&raw, Role::Output);
    assert!(output.preferred.is_none() && output.accessed_by.len() == 2, "{output:?}");
    let in_out = run(&raw, Role::InOut);
    assert!(!in_out.read_mostly && in_out.accessed_by.is_empty(), "{in_out:?}");
    drop((half, rest, raw, beside, executor, kernel));
    bench.finish();
}
