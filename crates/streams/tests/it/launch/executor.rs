//! The executor prefetches unified memory to the device before a launch, on a stream of its own, and back to the host on
//! request.

use transload_core::{DeviceId, ErrorKind, Fence, MemoryKind, RawBuffer};
use transload_cuda_sim::Residency;
use transload_cuda_sys::{
    AsStream,
    trace::{self, Call},
};
use transload_streams::{CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use crate::{
    launch::{bytes, numbers, saxpy_of, watched},
    support::setup::Setup,
};

const COUNT: usize = 50_000;

fn unified(setup: &Setup, numbers: &[f32]) -> RawBuffer {
    let buffer = setup.memory.allocate(MemoryKind::Unified, numbers.len() * 4).unwrap();
    buffer.write().unwrap().copy_from_slice(&bytes(numbers));
    buffer
}

fn saxpy(
    executor: &LaunchExecutor,
    kernel: &CudaKernel,
    stream: &CudaStream,
    (x, y): (&RawBuffer, &RawBuffer),
    result_on: Option<DeviceId>,
) -> transload_core::Result<Fence> {
    let count = (y.len() / 4) as u64;
    let launch = kernel.launch(LaunchConfig::for_elements(count, 128)).arg(3.0_f32).reads(x).reads_writes(y);
    let launch = launch.arg(count);
    let launch = match result_on {
        Some(device) => launch.result_on(device),
        None => launch,
    };
    // SAFETY: the kernel takes these four parameters and touches `count` numbers of each buffer.
    unsafe { executor.enqueue(launch, stream) }
}

fn positions(calls: &[Call], name: &str) -> Vec<usize> {
    calls.iter().enumerate().filter(|(_, call)| call.name == name).map(|(index, _)| index).collect()
}

/// By the newer or the older call, depending on the driver.
fn prefetches(calls: &[Call]) -> Vec<usize> {
    let is_one = |call: &Call| call.name.starts_with("cuMemPrefetchAsync");
    calls.iter().enumerate().filter(|(_, call)| is_one(call)).map(|(index, _)| index).collect()
}

/// The older call says -1, the newer one type 2.
fn is_to_host(prefetch: &Call) -> bool {
    prefetch.arguments[2] == u64::MAX || prefetch.arguments[2] >> 32 == 2
}

fn stream_of(prefetch: &Call) -> u64 {
    *prefetch.arguments.last().unwrap()
}

#[test]
fn host_writes_are_prefetched_before_the_launch() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (numbers(COUNT, 1), numbers(COUNT, 2));
    let (there_x, there_y) = (unified(&setup, &x), unified(&setup, &y));
    let trace = trace::start();
    drop(saxpy(&executor, &kernel, &stream, (&there_x, &there_y), None).unwrap());
    let calls = trace.calls_of_this_thread();
    let (prefetches, launches) = (prefetches(&calls), positions(&calls, "cuLaunchKernel"));
    assert_eq!((prefetches.len(), launches.len()), (2, 1), "{calls:?}");
    let own = stream.as_raw().addr() as u64;
    for at in prefetches {
        let [address, length, to, ..] = calls[at].arguments[..] else { panic!("at least three arguments") };
        let on = stream_of(&calls[at]);
        assert!(at < launches[0] && on != own, "before the launch, on another stream");
        assert!([&there_x, &there_y].iter().any(|buffer| buffer.device_address() == Some(address)));
        // The newer call's place has its type in the upper half.
        let to = to & u64::from(u32::MAX);
        assert_eq!((length, to), (COUNT as u64 * 4, u64::from(setup.device.ordinal())));
    }
    assert_eq!(calls[launches[0]].arguments[8], own);
    let waits = positions(&calls, "cuStreamWaitEvent");
    assert!(
        waits.iter().any(|at| *at < launches[0] && calls[*at].arguments[0] == own),
        "the launch waits for the prefetch on the device: {calls:?}"
    );
    assert!(calls.iter().all(|call| !call.name.contains("Synchronize")), "and the host for nothing");
    let expected: Vec<_> = x.iter().zip(&y).map(|(x, y)| 3.0 * x + y).collect();
    assert!(*there_y.read().unwrap() == bytes(&expected)[..]);
    drop((there_x, there_y, stream, executor, kernel));
    setup.finish();
}

#[test]
fn resident_memory_is_prefetched_only_after_use_elsewhere() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let (one, two) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (x, y) = (unified(&setup, &[1.0; COUNT]), unified(&setup, &[0.0; COUNT]));
    let prefetches = |stream: &CudaStream, x: &RawBuffer, y: &RawBuffer| {
        let trace = trace::start();
        drop(saxpy(&executor, &kernel, stream, (x, y), None).unwrap());
        prefetches(&trace.calls_of_this_thread()).len()
    };
    assert_eq!(prefetches(&one, &x, &y), 2);
    assert_eq!(prefetches(&one, &x, &y), 0, "both lie there");
    assert_eq!(prefetches(&two, &x, &y), 0, "whatever the stream");
    let (half_x, half_y) = (x.slice(..1000).unwrap(), y.slice(..1000).unwrap());
    assert_eq!(prefetches(&two, &half_x, &half_y), 0, "and so do their parts");
    assert!(*half_x.read().unwrap() == bytes(&[1.0; 250])[..]);
    assert_eq!(prefetches(&one, &x, &y), 1, "the host read one of them");
    drop(two.prefetch_to_host_async(&y));
    assert_eq!(prefetches(&one, &x, &y), 1, "the other one was sent away");
    executor.prefetch_back(&x).unwrap().unwrap().wait().unwrap();
    assert_eq!(prefetches(&two, &x, &y), 1, "as this one was by the executor");
    assert_eq!(prefetches(&two, &x, &y), 0);
    let expected: Vec<f32> = (0..COUNT).map(|at| if at < 250 { 24.0 } else { 21.0 }).collect();
    assert!(*y.read().unwrap() == bytes(&expected)[..], "eight launches on the beginning, seven beyond");
    drop((x, y, half_x, half_y, one, two, executor, kernel));
    setup.finish();
}

#[test]
fn next_launchs_memory_is_prefetched_during_a_launch() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let steps: Vec<_> =
        (0..4).map(|_| (unified(&setup, &[1.0; COUNT]), unified(&setup, &[1.0; COUNT]))).collect();
    let trace = trace::start();
    for (x, y) in &steps {
        drop(saxpy(&executor, &kernel, &stream, (x, y), None).unwrap());
    }
    let calls = trace.calls_of_this_thread();
    let moves = prefetches(&calls);
    assert_eq!(moves.len(), 8);
    let waits = positions(&calls, "cuStreamWaitEvent");
    let held_up = waits.iter().find(|wait| calls[**wait].arguments[0] == stream_of(&calls[moves[0]]));
    assert_eq!(held_up, None, "no prefetch waits for a launch: {calls:?}");
    for (_, y) in &steps {
        assert!(*y.read().unwrap() == bytes(&[4.0; COUNT])[..]);
    }
    drop((steps, stream, executor, kernel));
    setup.finish();
}

#[test]
fn result_for_the_host_is_prefetched_after_the_launch() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (unified(&setup, &[2.0; COUNT]), unified(&setup, &[1.0; COUNT]));
    for round in 1..5_u16 {
        let trace = trace::start();
        let fence = saxpy(&executor, &kernel, &stream, (&x, &y), Some(DeviceId::Cpu)).unwrap();
        let calls = trace.calls_of_this_thread();
        let launch = positions(&calls, "cuLaunchKernel")[0];
        let back: Vec<_> = prefetches(&calls).into_iter().filter(|at| is_to_host(&calls[*at])).collect();
        assert_eq!(back.len(), 1, "what is only read stays: {calls:?}");
        assert!(back[0] > launch);
        let to_device = prefetches(&calls).into_iter().filter(|at| *at < launch);
        let to_device: Vec<_> = to_device.map(|at| stream_of(&calls[at])).collect();
        let own = stream.as_raw().addr() as u64;
        assert!(![to_device[0], own].contains(&stream_of(&calls[back[0]])), "each way has its stream");
        let to_device = to_device.len();
        assert_eq!(to_device, if round == 1 { 2 } else { 1 }, "the input lies there, the result is at home");
        fence.wait().unwrap();
        if let Some(sim) = setup.test.sim() {
            assert_eq!(sim.residency(y.device_address().unwrap()), Some(Residency::Host));
            assert_eq!(sim.residency(x.device_address().unwrap()), Some(Residency::Device(sim.ordinal())));
        }
        assert!(*y.read().unwrap() == bytes(&[1.0 + 6.0 * f32::from(round); COUNT])[..], "round {round}");
    }
    assert!(executor.prefetch_back(&setup.device(64)).unwrap().is_none(), "it does not migrate");
    drop((x, y, stream, executor, kernel));
    setup.finish();
}

#[test]
fn host_view_makes_the_launch_busy_and_residency_correct() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    // The older one is claimed first: if that is refused, the other was prefetched but not claimed.
    let (y, x) = (unified(&setup, &[1.0; COUNT]), unified(&setup, &[2.0; COUNT]));
    let view = y.read().unwrap();
    let error = saxpy(&executor, &kernel, &stream, (&x, &y), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(view);
    // If the refused launch were still predicted, this use would match it.
    drop(x.read().unwrap());
    let trace = trace::start();
    drop(saxpy(&executor, &kernel, &stream, (&x, &y), None).unwrap());
    assert_eq!(prefetches(&trace.calls_of_this_thread()).len(), 2);
    assert!(*y.read().unwrap() == bytes(&[7.0; COUNT])[..]);
    // Concurrent reads do not conflict: only the prefetch is omitted.
    let view = x.read().unwrap();
    let trace = trace::start();
    drop(saxpy(&executor, &kernel, &stream, (&x, &y), None).unwrap());
    assert_eq!(prefetches(&trace.calls_of_this_thread()).len(), 1);
    assert!(*y.read().unwrap() == bytes(&[13.0; COUNT])[..]);
    drop(view);
    let trace = trace::start();
    drop(saxpy(&executor, &kernel, &stream, (&x, &y), None).unwrap());
    let moves = prefetches(&trace.calls_of_this_thread());
    assert_eq!(moves.len(), 2, "what a refused launch expected is not relied on");
    assert!(*y.read().unwrap() == bytes(&[19.0; COUNT])[..]);
    drop((x, y, stream, executor, kernel));
    setup.finish();
}

#[test]
fn concurrent_launches_of_one_executor_lose_no_update() {
    watched(|| {
        let Some(setup) = Setup::sharing() else { return };
        let kernel = saxpy_of(&setup);
        let executor = LaunchExecutor::new(&setup.device).unwrap();
        let (x, y) = (unified(&setup, &[1.0; 2000]), unified(&setup, &[0.0; 2000]));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (setup, executor, kernel, x, y) = (&setup, &executor, &kernel, &x, &y);
                scope.spawn(move || {
                    let stream = CudaStream::new(&setup.device).unwrap();
                    for round in 0..20 {
                        let result_on = ((round + thread) % 4 == 0).then_some(DeviceId::Cpu);
                        drop(saxpy(executor, kernel, &stream, (x, y), result_on).unwrap());
                    }
                });
            }
        });
        assert!(*y.read().unwrap() == bytes(&[360.0; 2000])[..]);
        drop((x, y, executor, kernel));
        setup.finish();
    });
}
