//! Last user of unified memory, as seen by later launches: long views and loans, raw graphs, refused prefetches.

use transload_core::{
    Access, DeviceId, ErrorKind, Operation, Pattern, RawBuffer, StreamPriority, Timing, TryLockResult, Turns,
    submit, try_submit,
};
use transload_cuda_sim::harness;
use transload_cuda_sys::{check, ffi, trace};
use transload_memory::{PredictionLimits, UnifiedMode, lift};
use transload_streams::{CudaGraph, CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use crate::{
    launch::{saxpy_of, watched},
    prefetch::prediction::{chunk, prefetcher, prefetches, unified},
    support::setup::Setup,
};

const USED: u64 = 64;

struct Program {
    setup: Setup,
    kernel: CudaKernel,
    stream: CudaStream,
    executor: LaunchExecutor,
    x: RawBuffer,
    y: RawBuffer,
}

impl Program {
    fn new() -> Option<Self> {
        let setup = Setup::sharing()?;
        Some(Self {
            kernel: saxpy_of(&setup),
            stream: CudaStream::new(&setup.device).unwrap(),
            executor: LaunchExecutor::new(&setup.device).unwrap(),
            x: unified(&setup, 4),
            y: unified(&setup, 1),
            setup,
        })
    }

    /// Runs y = y + x to completion. Returns which memory was prefetched.
    fn launch(&self, x: &RawBuffer) -> Vec<u64> {
        let trace = trace::start();
        let launch = self.kernel.launch(LaunchConfig::for_elements(USED, 64));
        let launch = launch.arg(1.0_f32).reads(x).reads_writes(&self.y).arg(USED);
        // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
        unsafe { self.executor.enqueue(launch, &self.stream) }.unwrap().wait().unwrap();
        prefetches(&trace.calls_of_this_thread())
    }

    fn moves(&self) -> u64 {
        self.x.use_epoch_for(self.setup.device.id())
    }

    fn finish(self) {
        let Self { setup, kernel, stream, executor, x, y } = self;
        drop((kernel, stream, executor, x, y));
        setup.finish();
    }
}

#[test]
fn host_views_and_loans_count_as_a_use_at_both_ends() {
    watched(|| {
        let Some(program) = Program::new() else { return };
        drop(program.launch(&program.x));
        let ended = |open: Box<dyn FnOnce() + '_>| {
            drop(program.launch(&program.x));
            let before = program.moves();
            open();
            assert_ne!(program.moves(), before);
        };
        let began = |before| assert_ne!(program.moves(), before);
        let before = program.moves();
        let view = program.x.read().unwrap();
        began(before);
        ended(Box::new(move || drop(view)));
        drop(program.launch(&program.x));
        let before = program.moves();
        let hold = loop {
            match program.x.try_lock_range(Access::Read).unwrap() {
                TryLockResult::Locked(hold) => break hold,
                TryLockResult::Blocked(prefetch) => prefetch.wait().unwrap(),
            }
        };
        began(before);
        ended(Box::new(move || drop(hold)));
        let loan = program.x.lend(Access::Read).unwrap();
        ended(Box::new(move || drop(loan)));
        let mut loan = program.x.lend(Access::Read).unwrap();
        ended(Box::new(move || loan.end_after(&[])));
        let fill = Operation::Fill { dst: &program.y, pattern: Pattern::U8(0) };
        let over = submit(&program.stream, &fill, Timing::Off).unwrap();
        over.wait().unwrap();
        let mut loan = program.x.lend(Access::Read).unwrap();
        ended(Box::new(move || loan.end_after(&[over])));
        program.finish();
    });
}

#[test]
fn raw_graph_invalidates_residency_a_recorded_one_does_not() {
    watched(|| {
        let Some(program) = Program::new() else { return };
        let Program { setup, stream, x, .. } = &program;
        let (priority, address) = (StreamPriority::Normal, x.device_address().unwrap());
        let fill = Operation::Fill { dst: x, pattern: Pattern::U8(0) };
        let mut recorded = CudaGraph::record(&setup.device, priority, &[fill]).unwrap();
        // SAFETY: the work touches only the declared buffer.
        let raw = unsafe {
            CudaGraph::capture_raw(&setup.device, priority, &[(x, Access::Write)], |stream| {
                let _bound = setup.device.context().unwrap().enter().map_err(lift)?;
                check("cuMemsetD8Async", ffi::cuMemsetD8Async(address, 0, 64, stream)).map_err(lift)
            })
        }
        .unwrap();
        drop(program.launch(x));
        for _ in 0..2 {
            recorded.launch(stream).unwrap().wait().unwrap();
            assert!(program.launch(x).is_empty(), "the device alone used it");
            raw.launch(stream).unwrap().wait().unwrap();
            assert_eq!(program.launch(x), [address], "a host's function in the graph may have used it");
        }
        recorded.update(&[fill]).unwrap();
        recorded.launch(stream).unwrap().wait().unwrap();
        assert!(program.launch(x).is_empty(), "the device alone used it");
        drop((recorded, raw));
        program.finish();
    });
}

#[test]
fn open_view_of_one_range_causes_no_prefetch_of_others() {
    watched(|| {
        let Some(program) = Program::new() else { return };
        let (seen, other) = (chunk(&program.x, 0), chunk(&program.x, 2));
        let view = seen.read().unwrap();
        assert!(program.launch(&other).contains(&other.device_address().unwrap()));
        for _ in 0..3 {
            assert!(program.launch(&seen).is_empty(), "the host has a view of it");
            assert!(program.launch(&other).is_empty(), "it was there and stayed there");
        }
        drop(view);
        assert!(program.launch(&seen).contains(&seen.device_address().unwrap()));
        drop((seen, other));
        program.finish();
    });
}

#[test]
fn refused_prefetch_changes_no_residency() {
    watched(|| {
        let Some(program) = Program::new() else { return };
        let view = program.x.read().unwrap();
        drop(program.launch(&program.x));
        let before = program.moves();
        let away = Operation::Prefetch { buffer: &program.x, to: DeviceId::Cpu };
        let error = submit(&program.stream, &away, Timing::Off).unwrap_err();
        assert_eq!((error.kind(), program.moves()), (ErrorKind::Busy, before));
        assert!(try_submit(&program.stream, &away, Timing::Off, &Turns::default()).is_err());
        assert_eq!(program.moves(), before);
        drop(view);
        drop(program.launch(&program.x));
        let before = program.moves();
        drop(submit(&program.stream, &away, Timing::Off).unwrap());
        assert_ne!(program.moves(), before, "this one moved it");
        program.finish();
    });
}

/// Launches through a raw handle, known only by their declaration.
#[test]
fn declared_memory_is_predicted_after_each_host_use() {
    watched(|| {
        let Some(setup) = Setup::sharing() else { return };
        let auto = prefetcher(&setup, PredictionLimits { depth: 1, ..PredictionLimits::default() });
        let layers: Vec<_> = (0..4).map(|_| unified(&setup, 1)).collect();
        let mut prefetched = Vec::new();
        for _ in 0..8 {
            prefetched.push(layers.iter().map(|layer| auto.observe(&[layer])).sum::<usize>());
            layers.iter().for_each(|layer| layer.write().unwrap().fill(0));
        }
        assert!(prefetched[4..].iter().all(|count| *count >= 3), "{prefetched:?}");
        drop((auto, layers));
        setup.finish();
    });
}

#[test]
fn alternating_devices_prefetch_once_per_turn() {
    watched(|| {
        let Some(devices) = harness::devices(2) else { return };
        let setups: Vec<Setup> = devices.into_iter().map(Setup::on).collect();
        if UnifiedMode::of(&setups[0].device).unwrap() != UnifiedMode::Managed {
            println!("skipped: the device has no concurrent access to unified memory");
            return;
        }
        let x = unified(&setups[0], 1);
        let sides: Vec<_> = setups
            .iter()
            .map(|setup| {
                let executor = LaunchExecutor::new(&setup.device).unwrap();
                (saxpy_of(setup), CudaStream::new(&setup.device).unwrap(), executor, setup.device(64))
            })
            .collect();
        for _ in 0..3 {
            for (kernel, stream, executor, y) in &sides {
                for turn in 0..3 {
                    let trace = trace::start();
                    let launch = kernel.launch(LaunchConfig::for_elements(16, 32)).arg(1.0_f32);
                    let launch = launch.reads(&x).reads_writes(y).arg(16_u64);
                    // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
                    unsafe { executor.enqueue(launch, stream) }.unwrap().wait().unwrap();
                    let brought = prefetches(&trace.calls_of_this_thread());
                    assert_eq!(brought.len(), usize::from(turn == 0), "turn {turn}");
                }
            }
        }
        drop((sides, x));
        setups.into_iter().for_each(Setup::finish);
    });
}
