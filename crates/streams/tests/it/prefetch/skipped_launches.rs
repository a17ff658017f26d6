//! Launches whose memory stays resident are soon skipped by the prediction, and memory that leaves is predicted again.

use std::collections::BTreeSet;

use transload_core::{Access, DeviceId, Operation, Pattern, RawBuffer, Timing, submit};
use transload_cuda_sys::trace;
use transload_memory::{AutoPrefetcher, PredictionLimits};
use transload_streams::{CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use crate::{
    launch::{saxpy_of, watched},
    prefetch::prediction::{CHUNK, chunk, prefetcher, prefetches, unified},
    support::setup::{Setup, noise},
};

const CHUNKS: usize = 12;
/// Elements of a chunk that a launch uses; it declares all of them.
const USED: u64 = 64;

/// Two unified buffers, with prediction by explicit calls or by an executor.
struct Program {
    setup: Setup,
    kernel: CudaKernel,
    stream: CudaStream,
    x: RawBuffer,
    y: RawBuffer,
    auto: AutoPrefetcher,
    executor: Option<LaunchExecutor>,
}

impl Program {
    fn new(with_executor: bool) -> Option<Self> {
        let setup = Setup::sharing()?;
        let limits = PredictionLimits::default();
        let executor = || LaunchExecutor::new(&setup.device).unwrap().with_prediction(limits).unwrap();
        Some(Self {
            kernel: saxpy_of(&setup),
            stream: CudaStream::new(&setup.device).unwrap(),
            x: unified(&setup, CHUNKS),
            y: unified(&setup, CHUNKS),
            auto: prefetcher(&setup, limits),
            executor: with_executor.then(executor),
            setup,
        })
    }

    /// Launches with a chunk of each. Returns which memory was prefetched.
    fn launches(&self, order: impl IntoIterator<Item = usize>) -> Vec<u64> {
        let trace = trace::start();
        for index in order {
            self.launch(&chunk(&self.x, index), &chunk(&self.y, index));
        }
        prefetches(&trace.calls_of_this_thread())
    }

    fn launch(&self, x: &RawBuffer, y: &RawBuffer) {
        if self.executor.is_none() {
            self.auto.observe(&[x, y]);
        }
        self.add(&self.stream, x, y);
    }

    /// Runs y = y + x on the first elements to completion.
    fn add(&self, stream: &CudaStream, x: &RawBuffer, y: &RawBuffer) {
        let launch = self.kernel.launch(LaunchConfig::for_elements(USED, 64));
        let launch = launch.arg(1.0_f32).reads(x).reads_writes(y).arg(USED);
        // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
        let fence = unsafe {
            match &self.executor {
                Some(executor) => executor.enqueue(launch, stream),
                None => launch.enqueue(stream),
            }
        };
        fence.unwrap().wait().unwrap();
    }

    /// Launches declared, skipped and predicted so far.
    fn counts(&self) -> (u64, u64, u64) {
        let executor = self.executor.as_ref().and_then(LaunchExecutor::prediction_statistics);
        let statistics = executor.unwrap_or_else(|| self.auto.statistics());
        let predicted = statistics.prefetches + statistics.resident + statistics.refused;
        (statistics.observed, statistics.skipped, predicted)
    }

    /// Makes all memory resident, known to the prediction.
    fn settle(&self) {
        drop(self.launches((0..CHUNKS).chain(0..CHUNKS)));
    }

    fn finish(self) {
        let Self { setup, kernel, stream, x, y, auto, executor } = self;
        drop((kernel, stream, x, y, auto, executor));
        setup.finish();
    }
}

/// Runs with explicit calls, then with an executor.
fn each(body: impl Fn(&Program) + Send + 'static) {
    watched(move || {
        for with_executor in [false, true] {
            let Some(program) = Program::new(with_executor) else { return };
            body(&program);
            program.finish();
        }
    });
}

#[test]
fn resident_memory_is_skipped_in_any_order_of_use() {
    each(|program| {
        program.settle();
        let any = noise(CHUNKS * 4, 7).into_iter().map(|byte| usize::from(byte) % CHUNKS);
        let orders: [Vec<usize>; 4] =
            [vec![3; 20], (0..CHUNKS).collect(), (0..CHUNKS).rev().step_by(3).collect(), any.collect()];
        let before = program.counts();
        let mut launches = 0;
        for order in orders {
            launches += order.len() as u64;
            assert!(program.launches(order).is_empty());
        }
        let after = program.counts();
        assert_eq!((after.0 - before.0, after.1 - before.1), (2 * launches, 2 * launches), "all passed over");
        assert_eq!(after.2, before.2, "and nothing predicted");
    });
}

#[test]
fn memory_used_by_the_host_is_predicted_by_its_third_chunk() {
    each(|program| {
        program.settle();
        assert!(program.launches((0..CHUNKS).cycle().take(5 * CHUNKS)).is_empty());
        let at = |index: usize| chunk(&program.x, index).device_address().unwrap();
        for by_a_view in [true, false] {
            let before = program.counts();
            if by_a_view {
                program.x.write().unwrap().fill(0);
            } else {
                let there = Operation::Prefetch { buffer: &program.x, to: DeviceId::Cpu };
                submit(&program.stream, &there, Timing::Off).unwrap().wait().unwrap();
            }
            let mut late = BTreeSet::new();
            for index in 0..CHUNKS {
                let sim = program.setup.test.sim();
                let faults = || {
                    sim.map(|sim| sim.migrations(at(index)..at(index) + 4 * CHUNK as u64).unwrap().gpu_faults)
                };
                let faulted = faults();
                let brought = program.launches([index]);
                let by_its_launch = program.executor.is_some() && brought.first() == Some(&at(index));
                if faults() != faulted || by_its_launch {
                    late.insert(index);
                }
            }
            assert!(late.iter().all(|index| *index < 3), "{late:?}");
            let after = program.counts();
            assert!(after.2 > before.2 && after.0 - before.0 == 2 * CHUNKS as u64);
            program.settle();
        }
    });
}

#[test]
fn use_elsewhere_is_noticed_at_the_next_launch() {
    each(|program| {
        let other = unified(&program.setup, 1);
        let stream = CudaStream::new(&program.setup.device).unwrap();
        let looks = |uses: &dyn Fn()| {
            program.settle();
            let before = program.counts();
            uses();
            drop(program.launches([5]));
            let after = program.counts();
            after.1 == before.1
        };
        assert!(!looks(&|| {}));
        assert!(!looks(&|| drop(other.read().unwrap())), "an allocation that no launch uses");
        assert!(looks(&|| drop(chunk(&program.y, 9).read().unwrap())), "a host view of any part");
        assert!(looks(&|| drop(program.x.lend(Access::Read).unwrap())), "a use outside the library");
        assert!(looks(&|| {
            let away = Operation::Prefetch { buffer: &chunk(&program.x, 0), to: DeviceId::Cpu };
            submit(&stream, &away, Timing::Off).unwrap().wait().unwrap();
        }));
        assert!(looks(&|| {
            let away = Operation::PrefetchToNode { buffer: &chunk(&program.x, 0), node: None };
            // Older drivers do not support NUMA nodes.
            let _sent = submit(&stream, &away, Timing::Off).map(|fence| fence.wait());
        }));
        assert!(looks(&|| program.launch(&other, &chunk(&program.y, 0))), "memory that is new");
    });
}

#[test]
fn use_by_the_same_device_costs_no_check_and_no_prefetch() {
    each(|program| {
        let target = program.setup.pinned(&vec![0; CHUNK * 4]);
        let stream = CudaStream::new(&program.setup.device).unwrap();
        program.settle();
        let before = program.counts();
        for index in 0..CHUNKS {
            let (x, y) = (chunk(&program.x, index), chunk(&program.y, index));
            let clear = Operation::Fill { dst: &x, pattern: Pattern::U8(0) };
            submit(&stream, &clear, Timing::Off).unwrap();
            stream.copy_to_host_async(&y, &target).wait().unwrap();
            assert!(program.launches([index]).is_empty());
        }
        let after = program.counts();
        assert_eq!((after.1 - before.1, after.2), (2 * CHUNKS as u64, before.2), "all passed over");
    });
}

#[test]
fn use_elsewhere_rechecks_each_range_until_its_next_use() {
    each(|program| {
        let scattered = [5, 0, 9, 2, 7, 11, 4, 1, 10, 3, 8, 6];
        for _ in 0..2 {
            program.settle();
            let before = program.counts();
            program.y.write().unwrap().fill(0);
            drop(program.launches(scattered));
            assert_eq!(program.counts().1, before.1, "none is passed over");
        }
    });
}

#[test]
fn completed_prefetch_soon_blocks_no_launch() {
    each(|program| {
        drop(program.launches((0..CHUNKS).chain(0..CHUNKS)));
        assert!(program.counts().2 > 0, "something was prefetched");
        let known_over =
            || [&program.x, &program.y].iter().all(|buffer| buffer.in_flight().unwrap().is_empty());
        // It may take a while to complete; an occasional launch polls it.
        while !known_over() {
            drop(program.launches((0..CHUNKS).chain(0..CHUNKS)));
        }
        let trace = trace::start();
        program.launch(&chunk(&program.x, 0), &chunk(&program.y, 0));
        let calls = trace.calls_of_this_thread();
        assert!(calls.iter().all(|call| call.name != "cuStreamWaitEvent"), "{calls:?}");
    });
}

#[test]
fn memory_that_stayed_resident_is_not_prefetched_again() {
    each(|program| {
        let other = unified(&program.setup, 1);
        program.settle();
        for _ in 0..4 {
            assert!(program.launches((0..CHUNKS).cycle().take(3 * CHUNKS)).is_empty());
            drop(other.write().unwrap());
            program.launch(&other, &chunk(&program.y, 0));
            let brought = program.launches((0..CHUNKS).chain(0..CHUNKS));
            assert!(brought.is_empty(), "{brought:?}");
        }
    });
}

#[test]
fn moving_layers_among_resident_memory_are_predicted() {
    watched(|| {
        let Some(program) = Program::new(true) else { return };
        let executor = program.executor.as_ref().unwrap();
        let layers: Vec<_> = (0..3).map(|_| unified(&program.setup, 1)).collect();
        let mut late = Vec::new();
        for step in 0..10 {
            for (number, layer) in layers.iter().enumerate() {
                let trace = trace::start();
                program.add(&program.stream, layer, &chunk(&program.y, 0));
                let calls = trace.calls_of_this_thread();
                let first = calls.iter().position(|call| call.name == "cuLaunchKernel").unwrap();
                if prefetches(&calls[..first]).contains(&layer.device_address().unwrap()) {
                    late.push(step);
                }
                executor.prefetch_back(layer).unwrap().unwrap().wait().unwrap();
                // Many launches in between, of which the prediction checks the first few; these predict what comes next.
                drop(program.launches((4 * number..CHUNKS).chain(0..CHUNKS)));
            }
        }
        assert!(late.iter().all(|step| *step < 5), "each is on its way before its launch: {late:?}");
        assert!(program.counts().1 > 0, "some launches were passed over");
        drop(layers);
        program.finish();
    });
}

#[test]
fn concurrent_declarations_lose_only_predictions() {
    each(|program| {
        program.settle();
        let sums: Vec<RawBuffer> = (0..3).map(|_| unified(&program.setup, 1)).collect();
        std::thread::scope(|scope| {
            for sum in &sums {
                scope.spawn(move || {
                    let stream = CudaStream::new(&program.setup.device).unwrap();
                    for index in 0..3 * CHUNKS {
                        let x = chunk(&program.x, index % CHUNKS);
                        if program.executor.is_none() {
                            program.auto.observe(&[&x, sum]);
                        }
                        program.add(&stream, &x, sum);
                    }
                });
            }
        });
        for sum in &sums {
            let expected = (1.0 + 3.0 * CHUNKS as f32).to_le_bytes();
            assert!(sum.read().unwrap().chunks_exact(4).take(USED as usize).all(|number| number == expected));
        }
    });
}
