//! Roles: the driver gets the role's advice, read back here, and the memory is prefetched to the device.

use transload_core::{Access, Buffer, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, RawBuffer};
use transload_cuda_sim::harness;
use transload_cuda_sys::trace;
use transload_memory::{MemoryLocation, Residency, Role, UnifiedBuffer, UnifiedMode, advise};
use transload_streams::{CudaStream, LaunchConfig, LaunchExecutor};

use super::{Fixture, fixtures, for_each_fixture};
use crate::{launch::saxpy_of, support::setup::Setup};

/// Large enough for pages of its own on any driver.
const COUNT: usize = 1 << 20;

fn managed() -> Option<Fixture> {
    let mut managed = None;
    for fixture in fixtures() {
        if fixture.is_managed() { managed = Some(fixture) } else { fixture.finish() }
    }
    managed
}

fn believed(buffer: &UnifiedBuffer<f32>) -> Residency {
    buffer.hints().unwrap().residency().unwrap()
}

#[test]
fn role_change_undoes_the_previous_advice() {
    let Some(fixture) = managed() else { return };
    let here = MemoryLocation::Device(fixture.setup.test.ordinal());
    let buffer = fixture.buffer::<f32>(COUNT);
    let take = |role| {
        drop(buffer.acquire_for_device(&fixture.stream, role).unwrap());
        believed(&buffer)
    };
    for round in 0..2 {
        let input = take(Role::Input);
        assert!(input.read_mostly && input.preferred.is_none() && input.accessed_by.is_empty(), "{input:?}");
        assert_eq!(input.last_prefetch, Some(here), "round {round}");
        let resident = take(Role::Resident);
        assert!(!resident.read_mostly && resident.accessed_by.is_empty(), "{resident:?}");
        assert_eq!(resident.preferred, Some(here));
        let output = take(Role::Output);
        assert!(!output.read_mostly && output.preferred.is_none(), "{output:?}");
        assert_eq!(output.accessed_by.len(), 2, "{output:?}");
        assert!(output.accessed_by.contains(&MemoryLocation::Host) && output.accessed_by.contains(&here));
        assert!(buffer.prefetch_to_host().wait().is_ok());
        let in_out = take(Role::InOut);
        assert!(
            !in_out.read_mostly && in_out.preferred.is_none() && in_out.accessed_by.is_empty(),
            "{in_out:?}"
        );
        assert_eq!(in_out.last_prefetch, Some(here), "it is brought all the same");
    }
    assert_eq!(Role::InOut.access(), Access::Write);
    drop(buffer);
    fixture.finish();
}

#[test]
fn input_read_by_two_devices_keeps_both_copies() {
    let Some(devices) = harness::devices(2) else { return };
    let [one, two] = devices[..] else { panic!("two devices") };
    let (one, two) = (Setup::on(one), Setup::on(two));
    if UnifiedMode::of(&one.device).unwrap() == UnifiedMode::Explicit {
        println!("skipped: the device has no concurrent access to unified memory");
        return;
    }
    let fixture = Fixture::new("the first of two devices", one, UnifiedMode::Managed);
    let there = CudaStream::new(&two.device).unwrap();
    let buffer = fixture.buffer::<f32>(COUNT);
    let advice = |stream: &CudaStream, role| {
        let trace = trace::start();
        drop(buffer.acquire_for_device(stream, role).unwrap());
        trace.calls_of_this_thread().iter().filter(|call| call.name.starts_with("cuMemAdvise")).count()
    };
    assert_eq!(advice(&fixture.stream, Role::Input), 1);
    for round in 0..2 {
        assert_eq!(advice(&there, Role::Input), 0, "round {round}: to take it back would drop the copies");
        assert_eq!(advice(&fixture.stream, Role::Input), 0, "round {round}");
        assert!(believed(&buffer).read_mostly, "round {round}");
    }
    // A result is mapped for the host and for the device that writes it, and no other.
    advice(&fixture.stream, Role::Output);
    assert_eq!(
        advice(&there, Role::Output),
        4,
        "not read mostly, not by the first; by the host and the second"
    );
    let known = believed(&buffer);
    let second = MemoryLocation::Device(two.test.ordinal());
    assert!(!known.read_mostly && known.accessed_by.len() == 2, "{known:?}");
    assert!(known.accessed_by.contains(&second) && known.accessed_by.contains(&MemoryLocation::Host));
    drop((buffer, there));
    fixture.finish();
    two.finish();
}

#[test]
fn first_role_undoes_advice_given_by_others() {
    let Some(fixture) = managed() else { return };
    let raw = fixture.setup.memory.allocate(MemoryKind::Unified, COUNT * 4).unwrap();
    for before in [MemoryAdvice::SetReadMostly, MemoryAdvice::SetPreferredLocation(DeviceId::Cpu)] {
        advise(&raw, before).unwrap();
        let buffer =
            UnifiedBuffer::<f32>::from_raw(&fixture.setup.memory, fixture.queue(), raw.clone()).unwrap();
        drop(buffer.acquire_for_device(&fixture.stream, Role::Output).unwrap());
        let now = believed(&buffer);
        assert!(!now.read_mostly && now.preferred.is_none() && now.accessed_by.len() == 2, "{now:?}");
        drop(buffer);
    }
    drop(raw);
    fixture.finish();
}

#[test]
fn role_applies_to_its_range_only() {
    let Some(fixture) = managed() else { return };
    let buffer = fixture.buffer::<f32>(COUNT);
    let half =
        buffer.acquire_range_for_device(&fixture.stream, ..COUNT / 2, Role::Resident, Access::Read).unwrap();
    let preferred = |part: &RawBuffer| Residency::of(part).unwrap().preferred;
    assert_eq!(preferred(half.raw()), Some(MemoryLocation::Device(fixture.setup.test.ordinal())));
    assert_eq!(preferred(&buffer.raw().slice(COUNT * 2..).unwrap()), None);
    drop(half);
    drop(buffer);
    fixture.finish();
}

#[test]
fn repeated_role_makes_no_calls_until_the_host_uses_it() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<f32>(COUNT);
        let calls = |role| {
            let trace = trace::start();
            drop(buffer.acquire_for_device(&fixture.stream, role).unwrap());
            let calls = trace.calls_of_this_thread();
            let count = |part: &str| calls.iter().filter(|call| call.name.starts_with(part)).count();
            (count("cuMemAdvise"), count("cuMemPrefetchAsync"))
        };
        let moves = usize::from(fixture.is_managed());
        assert_eq!(calls(Role::Input), (moves, moves), "{fixture}");
        assert_eq!(calls(Role::Input), (0, 0), "{fixture}");
        drop(buffer.read_range(5..6).unwrap());
        assert_eq!(calls(Role::Input), (0, moves), "{fixture}: the host touched a page");
        assert_eq!(calls(Role::Resident), (2 * moves, 0), "{fixture}: it is there");
        buffer.prefetch_to_host().wait().unwrap();
        assert_eq!(calls(Role::Resident), (0, moves), "{fixture}");
        buffer.advise(MemoryAdvice::UnsetPreferredLocation).unwrap();
        assert!(calls(Role::Resident).0 >= moves, "{fixture}: advised by other code");
        drop(buffer);
    });
}

#[test]
fn executor_applies_roles_before_the_launch() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let executor = LaunchExecutor::new(&fixture.setup.device).unwrap();
        let (x, y) = (fixture.buffer::<f32>(COUNT), fixture.buffer::<f32>(COUNT));
        x.write().unwrap().fill(2.0);
        let advised = |x: &UnifiedBuffer<f32>, y: &UnifiedBuffer<f32>| {
            let launch = kernel.launch(LaunchConfig::for_elements(COUNT as u64, 256)).arg(1.0_f32);
            let launch = launch.reads(x.raw()).role(Role::Input).reads_writes(y.raw()).role(Role::Output);
            let launch = launch.arg(COUNT as u64).result_on(DeviceId::Cpu);
            let trace = trace::start();
            // SAFETY: the kernel takes these four parameters and touches `COUNT` numbers of each buffer.
            drop(unsafe { executor.enqueue(launch, &fixture.stream) }.unwrap());
            let calls = trace.calls_of_this_thread();
            let last = calls.iter().rposition(|call| call.name.starts_with("cuMemAdvise"));
            let launch = calls.iter().position(|call| call.name == "cuLaunchKernel");
            assert!(last < launch, "{fixture}: before the launch");
            last.is_some()
        };
        assert_eq!(advised(&x, &y), fixture.is_managed());
        assert!(!advised(&x, &y), "{fixture}: the driver knows");
        if fixture.is_managed() {
            assert!(believed(&x).read_mostly && believed(&y).accessed_by.len() == 2);
        }
        assert!(y.read().unwrap().iter().all(|number| *number == 4.0), "{fixture}");
        drop((x, y, executor, kernel));
    });
}

#[test]
fn invalid_roles_of_unified_memory_are_refused_at_launch() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let executor = LaunchExecutor::new(&fixture.setup.device).unwrap();
        let (x, y) =
            (fixture.setup.device(4000), fixture.setup.memory.allocate(MemoryKind::Mapped, 4000).unwrap());
        y.write().unwrap().fill(0);
        fixture.stream.memset_async(&x, transload_core::Pattern::U8(0)).wait().unwrap();
        let shape = LaunchConfig::for_elements(1000, 128);
        let early = kernel.launch(shape).arg(1.0_f32).role(Role::Input).reads(&x).writes(&y).arg(1000_u64);
        let written = kernel.launch(shape).arg(1.0_f32).reads(&x).writes(&y).role(Role::Input).arg(1000_u64);
        for launch in [early, written] {
            // SAFETY: a refused launch does not run.
            let error = unsafe { executor.enqueue(launch, &fixture.stream) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let launch = kernel.launch(shape).arg(1.0_f32).reads(&x).role(Role::Input);
        let launch = launch.writes(&y).role(Role::Resident).arg(1000_u64);
        // SAFETY: the kernel takes these four parameters and touches 1000 numbers of each buffer.
        unsafe { executor.enqueue(launch, &fixture.stream) }.unwrap().wait().unwrap();
        drop((x, y, executor, kernel));
    });
}
