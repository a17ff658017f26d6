//! A role gives the driver the advice that goes with it, read back from the driver, and brings the memory to the device.

use transload_core::{Access, Buffer, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, RawBuffer};
use transload_cuda_sim::harness;
use transload_cuda_sys::trace;
use transload_memory::{MemoryLocation, Residency, Role, UnifiedBuffer, UnifiedMode, advise};
use transload_streams::{CudaStream, LaunchConfig, LaunchExecutor};

use super::{Bench, benches, everywhere};
use crate::{launch::saxpy_of, support::setup::Setup};

/// Large enough to have pages of its own on any driver.
const COUNT: usize = 1 << 20;

fn managed() -> Option<Bench> {
    let mut managed = None;
    for bench in benches() {
        if bench.is_managed() { managed = Some(bench) } else { bench.finish() }
    }
    managed
}

fn believed(buffer: &UnifiedBuffer<f32>) -> Residency {
    buffer.hints().unwrap().residency().unwrap()
}

#[test]
fn each_role_has_its_advice_and_takes_that_of_the_last_one_back() {
    let Some(bench) = managed() else { return };
    let here = MemoryLocation::Device(bench.setup.test.ordinal());
    let buffer = bench.buffer::<f32>(COUNT);
    let take = |role| {
        drop(buffer.acquire_for_device(&bench.stream, role).unwrap());
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
    bench.finish();
}

#[test]
fn an_input_of_two_devices_keeps_its_copies_while_they_read_it_in_turns() {
    let Some(devices) = harness::devices(2) else { return };
    let [one, two] = devices[..] else { panic!("two devices") };
    let (one, two) = (Setup::on(one), Setup::on(two));
    if UnifiedMode::of(&one.device).unwrap() == UnifiedMode::Explicit {
        println!("skipped: the device has no concurrent access to unified memory");
        return;
    }
    let bench = Bench::new("the first of two devices", one, UnifiedMode::Managed);
    let there = CudaStream::new(&two.device).unwrap();
    let buffer = bench.buffer::<f32>(COUNT);
    let advice = |stream: &CudaStream, role| {
        let trace = trace::start();
        drop(buffer.acquire_for_device(stream, role).unwrap());
        trace.calls_of_this_thread().iter().filter(|call| call.name.starts_with("cuMemAdvise")).count()
    };
    assert_eq!(advice(&bench.stream, Role::Input), 1);
    for round in 0..2 {
        assert_eq!(advice(&there, Role::Input), 0, "round {round}: to take it back would drop the copies");
        assert_eq!(advice(&bench.stream, Role::Input), 0, "round {round}");
        assert!(believed(&buffer).read_mostly, "round {round}");
    }
    // A result is mapped for the host and for whoever writes it, and nobody else.
    advice(&bench.stream, Role::Output);
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
    bench.finish();
    two.finish();
}

#[test]
fn the_first_role_of_memory_that_was_there_before_takes_back_what_others_advised() {
    let Some(bench) = managed() else { return };
    let raw = bench.setup.memory.allocate(MemoryKind::Unified, COUNT * 4).unwrap();
    for before in [MemoryAdvice::SetReadMostly, MemoryAdvice::SetPreferredLocation(DeviceId::Cpu)] {
        advise(&raw, before).unwrap();
        let buffer = UnifiedBuffer::<f32>::from_raw(&bench.setup.memory, bench.queue(), raw.clone()).unwrap();
        drop(buffer.acquire_for_device(&bench.stream, Role::Output).unwrap());
        let now = believed(&buffer);
        assert!(!now.read_mostly && now.preferred.is_none() && now.accessed_by.len() == 2, "{now:?}");
        drop(buffer);
    }
    drop(raw);
    bench.finish();
}

#[test]
fn a_role_of_a_range_is_that_ranges() {
    let Some(bench) = managed() else { return };
    let buffer = bench.buffer::<f32>(COUNT);
    let half =
        buffer.acquire_range_for_device(&bench.stream, ..COUNT / 2, Role::Resident, Access::Read).unwrap();
    let preferred = |part: &RawBuffer| Residency::of(part).unwrap().preferred;
    assert_eq!(preferred(half.raw()), Some(MemoryLocation::Device(bench.setup.test.ordinal())));
    assert_eq!(preferred(&buffer.raw().slice(COUNT * 2..).unwrap()), None);
    drop(half);
    drop(buffer);
    bench.finish();
}

#[test]
fn what_is_there_already_is_neither_advised_nor_prefetched_again_until_the_host_touches_it() {
    everywhere(|bench| {
        let buffer = bench.buffer::<f32>(COUNT);
        let calls = |role| {
            let trace = trace::start();
            drop(buffer.acquire_for_device(&bench.stream, role).unwrap());
            let calls = trace.calls_of_this_thread();
            let count = |part: &str| calls.iter().filter(|call| call.name.starts_with(part)).count();
            (count("cuMemAdvise"), count("cuMemPrefetchAsync"))
        };
        let moves = usize::from(bench.is_managed());
        assert_eq!(calls(Role::Input), (moves, moves), "{bench}");
        assert_eq!(calls(Role::Input), (0, 0), "{bench}");
        drop(buffer.read_range(5..6).unwrap());
        assert_eq!(calls(Role::Input), (0, moves), "{bench}: the host touched a page");
        assert_eq!(calls(Role::Resident), (2 * moves, 0), "{bench}: it is there");
        buffer.prefetch_to_host().wait().unwrap();
        assert_eq!(calls(Role::Resident), (0, moves), "{bench}");
        buffer.advise(MemoryAdvice::UnsetPreferredLocation).unwrap();
        assert!(calls(Role::Resident).0 >= moves, "{bench}: somebody else advised");
        drop(buffer);
    });
}

#[test]
fn an_executor_gives_the_roles_of_a_launch_before_it() {
    everywhere(|bench| {
        let kernel = saxpy_of(&bench.setup);
        let executor = LaunchExecutor::new(&bench.setup.device).unwrap();
        let (x, y) = (bench.buffer::<f32>(COUNT), bench.buffer::<f32>(COUNT));
        x.write().unwrap().fill(2.0);
        let advised = |x: &UnifiedBuffer<f32>, y: &UnifiedBuffer<f32>| {
            let launch = kernel.launch(LaunchConfig::for_elements(COUNT as u64, 256)).arg(1.0_f32);
            let launch = launch.reads(x.raw()).role(Role::Input).reads_writes(y.raw()).role(Role::Output);
            let launch = launch.arg(COUNT as u64).result_on(DeviceId::Cpu);
            let trace = trace::start();
            // SAFETY: the kernel takes these four parameters and touches `COUNT` numbers of each buffer.
            drop(unsafe { executor.enqueue(launch, &bench.stream) }.unwrap());
            let calls = trace.calls_of_this_thread();
            let last = calls.iter().rposition(|call| call.name.starts_with("cuMemAdvise"));
            let launch = calls.iter().position(|call| call.name == "cuLaunchKernel");
            assert!(last < launch, "{bench}: before the launch");
            last.is_some()
        };
        assert_eq!(advised(&x, &y), bench.is_managed());
        assert!(!advised(&x, &y), "{bench}: the driver knows");
        if bench.is_managed() {
            assert!(believed(&x).read_mostly && believed(&y).accessed_by.len() == 2);
        }
        assert!(y.read().unwrap().iter().all(|number| *number == 4.0), "{bench}");
        drop((x, y, executor, kernel));
    });
}

#[test]
fn roles_that_cannot_be_are_refused_where_the_launch_is_enqueued_and_other_memory_takes_any() {
    everywhere(|bench| {
        let kernel = saxpy_of(&bench.setup);
        let executor = LaunchExecutor::new(&bench.setup.device).unwrap();
        let (x, y) =
            (bench.setup.device(4000), bench.setup.memory.allocate(MemoryKind::Mapped, 4000).unwrap());
        y.write().unwrap().fill(0);
        bench.stream.memset_async(&x, transload_core::Pattern::U8(0)).wait().unwrap();
        let shape = LaunchConfig::for_elements(1000, 128);
        let early = kernel.launch(shape).arg(1.0_f32).role(Role::Input).reads(&x).writes(&y).arg(1000_u64);
        let written = kernel.launch(shape).arg(1.0_f32).reads(&x).writes(&y).role(Role::Input).arg(1000_u64);
        for launch in [early, written] {
            // SAFETY: what is refused is not run.
            let error = unsafe { executor.enqueue(launch, &bench.stream) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let launch = kernel.launch(shape).arg(1.0_f32).reads(&x).role(Role::Input);
        let launch = launch.writes(&y).role(Role::Resident).arg(1000_u64);
        // SAFETY: the kernel takes these four parameters and touches 1000 numbers of each buffer.
        unsafe { executor.enqueue(launch, &bench.stream) }.unwrap().wait().unwrap();
        drop((x, y, executor, kernel));
    });
}
