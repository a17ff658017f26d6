//! Page faults of launches, as counted by the driver's tools, on the software driver and on a real one
//! (`TRANSLOAD_TEST_DRIVER=real`). A process of its own, since the counters must be enabled before the first context.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaMemoryManager, MigrationCounts, MigrationTracker, PredictionLimits,
};
use transload_streams::{CudaKernel, CudaModule, CudaStream, Launch, LaunchConfig, LaunchExecutor};

const SAXPY: &str = include_str!("../examples/kernels/saxpy.ptx");
/// Elements of a buffer: 2 MiB, which the driver migrates as one page if it can.
const COUNT: usize = 1 << 19;

/// Tests of this file run one at a time: a tracker counts the whole process.
static TURN: Mutex<()> = Mutex::new(());

struct Setup {
    test: TestDevice,
    device: CudaDevice,
    memory: CudaMemoryManager,
    kernel: CudaKernel,
    stream: CudaStream,
    tracker: MigrationTracker,
    _turn: MutexGuard<'static, ()>,
}

impl Setup {
    /// `None`, with a printed reason, if there are no counters.
    fn new() -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let test = harness::device();
        let device = CudaDevice::new(test.ordinal()).unwrap();
        let tracker = match MigrationTracker::start(&device) {
            Ok(tracker) => tracker,
            Err(error) => {
                assert!(error.kind() == ErrorKind::Unsupported && !test.is_simulated(), "{error}");
                println!("skipped: {error}");
                return None;
            }
        };
        let memory = CudaMemoryManager::new(&device).unwrap();
        let kernel = CudaModule::from_ptx(&device, SAXPY).unwrap().kernel("transload_saxpy").unwrap();
        let stream = CudaStream::new(&device).unwrap();
        Some(Self { test, device, memory, kernel, stream, tracker, _turn: turn })
    }

    /// Unified memory resident on the host.
    fn written(&self, bytes: usize) -> RawBuffer {
        let buffer = self.memory.allocate(MemoryKind::Unified, bytes).unwrap();
        buffer.write().unwrap().fill(0);
        buffer
    }

    /// y = x + y.
    fn launch<'a>(&'a self, x: &'a RawBuffer, y: &'a RawBuffer) -> Launch<'a> {
        let count = (y.len() / 4) as u64;
        let launch = self.kernel.launch(LaunchConfig::for_elements(count, 256)).arg(1.0_f32);
        launch.reads(x).reads_writes(y).arg(count)
    }

    fn plain(&self, x: &RawBuffer, y: &RawBuffer) {
        // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
        unsafe { self.launch(x, y).enqueue(&self.stream) }.unwrap().wait().unwrap();
    }

    fn counts(&self, buffer: &RawBuffer) -> MigrationCounts {
        let counts = self.tracker.counts(buffer).unwrap();
        assert_eq!(counts.lost, 0, "{counts}");
        counts
    }

    fn finish(self) {
        let Self { test, device, memory, kernel, stream, tracker, _turn } = self;
        drop((tracker, kernel, stream));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop((memory, device));
        test.assert_no_live_objects();
    }
}

#[test]
fn prefetched_launch_has_no_page_faults() {
    let Some(setup) = Setup::new() else { return };
    let executor = LaunchExecutor::new(&setup.device).unwrap();
    let (x, y) = (setup.written(COUNT * 4), setup.written(COUNT * 4));
    setup.tracker.reset().unwrap();
    // SAFETY: as in `plain`.
    unsafe { executor.enqueue(setup.launch(&x, &y).result_on(DeviceId::Cpu), &setup.stream) }
        .unwrap()
        .wait()
        .unwrap();
    for (buffer, back) in [(&x, 0), (&y, COUNT as u64 * 4)] {
        let counts = setup.counts(buffer);
        assert!(counts.is_without_faults(), "{counts}");
        assert_eq!((counts.bytes_to_device, counts.bytes_to_host), (COUNT as u64 * 4, back), "{counts}");
    }
    assert!(y.read().unwrap().iter().all(|byte| *byte == 0));
    assert!(setup.counts(&y).is_without_faults(), "the result was brought back before it was read");
    // The same data, migrated by page faults.
    setup.tracker.reset().unwrap();
    setup.plain(&x, &y);
    let counts = setup.counts(&y);
    assert!(counts.gpu_fault_groups > 0 && counts.bytes_to_device == COUNT as u64 * 4, "{counts}");
    let counts = setup.counts(&x);
    assert!(counts.is_without_faults() && counts.bytes_to_device == 0, "it was left there: {counts}");
    assert!(y.read().unwrap().iter().all(|byte| *byte == 0));
    let counts = setup.counts(&y);
    assert!(counts.cpu_faults > 0 && counts.bytes_to_host == COUNT as u64 * 4, "{counts}");
    drop((x, y, executor));
    setup.finish();
}

#[test]
fn fault_on_the_first_page_of_a_slice_counts_for_the_slice() {
    let Some(setup) = Setup::new() else { return };
    let [x, y] = [0, 1].map(|_| setup.written(COUNT * 4).slice(100..500).unwrap());
    setup.tracker.reset().unwrap();
    setup.plain(&x, &y);
    for part in [&x, &y] {
        let counts = setup.counts(part);
        assert!(counts.to_device_by_faults > 0 && !counts.is_without_faults(), "{counts}");
        assert!(part.read().unwrap().iter().all(|byte| *byte == 0));
    }
    assert!(setup.counts(&y).cpu_faults > 0);
    assert!(setup.tracker.total().unwrap().gpu_fault_groups > 0);
    drop((x, y));
    setup.finish();
}

#[test]
fn predicted_sweep_faults_in_its_first_chunks_only() {
    const CHUNKS: usize = 8;
    let Some(setup) = Setup::new() else { return };
    let queue = Arc::new(CudaStream::new(&setup.device).unwrap());
    let auto = AutoPrefetcher::new(&setup.device, queue, PredictionLimits::default()).unwrap();
    let (x, y) =
        (setup.written(CHUNKS * COUNT * 4), setup.memory.allocate(MemoryKind::Device, COUNT * 4).unwrap());
    setup.tracker.reset().unwrap();
    let chunk = |index: usize| x.slice(index * COUNT * 4..(index + 1) * COUNT * 4).unwrap();
    for index in 0..CHUNKS {
        auto.observe(&[&chunk(index)]);
        setup.plain(&chunk(index), &y);
    }
    for index in 0..CHUNKS {
        let counts = setup.counts(&chunk(index));
        assert_eq!(counts.gpu_fault_groups > 0, index < 3, "chunk {index}: {counts}");
        assert_eq!(counts.bytes_to_device, COUNT as u64 * 4, "chunk {index}: {counts}");
    }
    assert_eq!(auto.statistics().misses, 0);
    drop((x, y, auto));
    setup.finish();
}
