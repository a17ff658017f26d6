//! What a profiler takes at most. A binary of its own, for its allocator.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use transload_core::{
    Backend, ClockAnchor, ClockId, DeviceClock, DeviceId, DeviceInfo, Engine, EngineRecord, EngineRecording,
    EngineTask, EngineWork, Error, ErrorKind, MemoryInfo, MemoryKind, OperationId, OperationInfo,
    OperationKind, OperationSampling, OperationSink, PathCost, Place, QueueLease, QueueTally, RawBuffer,
    ResourceCounts, Result, SinkSlot, Stamp, StreamPriority, Timeline, TimelineId, TransferEvent, TransferId,
    TransferMethod, TransferPath, TransferReport, TransferScope, Wanted, WorkloadType, next_timeline_id,
};
use transload_profiler::{KindReport, ProfilerOptions, StreamProfiler, TraceFormat, TraceOptions};

struct Counting;

/// Bytes of all threads, and most of them since this was set.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as i64;
        PEAK.fetch_max(LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Each stamp is the instant itself.
struct Clock {
    id: ClockId,
    device: DeviceId,
    origin: Instant,
    /// Instants before it are reached.
    reached: AtomicU64,
}

impl DeviceClock for Clock {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn resolution(&self) -> Duration {
        Duration::ZERO
    }

    fn time(&self, token: u64) -> Result<Option<i64>> {
        Ok((token < self.reached.load(Ordering::Relaxed)).then(|| token.cast_signed()))
    }

    fn release(&self, _: u64) {}

    fn anchor(&self) -> Result<ClockAnchor> {
        let now = Instant::now();
        let device = i64::try_from(now.duration_since(self.origin).as_nanos()).unwrap();
        Ok(ClockAnchor { device, before: now, after: now })
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }
}

struct Queue {
    id: TimelineId,
    device: DeviceId,
    tally: Arc<QueueTally>,
}

// SAFETY: it has no points.
unsafe impl Timeline for Queue {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        0
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Tells of much work that is nobody's.
struct Records {
    clock: Arc<dyn DeviceClock>,
    /// Calls that were told.
    calls: AtomicU64,
}

impl EngineRecording for Records {
    fn clock(&self) -> &Arc<dyn DeviceClock> {
        &self.clock
    }

    fn records_migrations(&self) -> Result<()> {
        Ok(())
    }

    fn take(&self, records: &mut Vec<EngineRecord>, _: bool) -> Result<u64> {
        // Then there is room for no more.
        let from = self.calls.fetch_add(10_000, Ordering::Relaxed).min(50_000);
        for call in from..(from + 10_000).min(50_000) {
            let (device, task, engine) = (DEVICES[0], EngineTask::CopyToDevice, Some(Engine::Copy));
            let (begin, end) = (10_000 + 2 * call.cast_signed(), 10_001 + 2 * call.cast_signed());
            let call = (1 << 40) + call;
            records.push(EngineRecord::Worked(EngineWork {
                call,
                device,
                task,
                engine,
                bytes: 1,
                begin,
                end,
            }));
            records.push(EngineRecord::Called { call: call + (1 << 40), operation: OperationId::next() });
        }
        Ok(0)
    }
}

const DEVICES: [DeviceId; 4] = [
    DeviceId::Other("gpu", 0),
    DeviceId::Other("gpu", 1),
    DeviceId::Other("gpu", 2),
    DeviceId::Other("gpu", 3),
];
const PRIORITY: StreamPriority = StreamPriority::Normal;

/// Its operations are those that the test passes to the slot.
struct Passed(SinkSlot);

fn none<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "none"))
}

impl Backend for Passed {
    fn name(&self) -> &'static str {
        "passed"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        DEVICES.iter().map(|device| DeviceInfo::new(*device, "passed")).collect()
    }

    fn allocate(&self, _: DeviceId, _: MemoryKind, _: usize) -> Result<RawBuffer> {
        none()
    }

    fn memory_info(&self, _: DeviceId) -> Result<MemoryInfo> {
        none()
    }

    fn lease_queue(&self, _: DeviceId, _: StreamPriority, _: WorkloadType) -> Result<QueueLease> {
        none()
    }

    fn copier(&self, _: Place, _: Place) -> Option<DeviceId> {
        None
    }

    fn default_costs(&self) -> Vec<PathCost> {
        Vec::new()
    }

    fn resource_counts(&self) -> ResourceCounts {
        ResourceCounts::default()
    }

    fn drain(&self) -> Result<()> {
        Ok(())
    }

    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        self.0.attach(Arc::clone(sink), sampling)
    }

    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        self.0.detach(sink);
    }

    fn record_engines(&self) -> Result<Box<dyn EngineRecording>> {
        Ok(Box::new(Records {
            clock: Arc::clone(Stamp::of_host(Instant::now()).clock()),
            calls: AtomicU64::new(0),
        }))
    }
}

struct Test {
    backend: Arc<Passed>,
    profiler: StreamProfiler,
    clocks: [Arc<Clock>; DEVICES.len()],
    /// Operations that were passed, and after how many they are collected.
    passed: u64,
    collected: u64,
}

impl Test {
    fn operate(&mut self, queue: &Queue, info: OperationInfo, (begin, end): (u64, u64)) {
        let clock = self.clocks.iter().find(|clock| clock.device == queue.device).unwrap();
        let sample = self.backend.0.sample(&queue.tally, || info).unwrap();
        let stamps = [begin, end].map(|at| Stamp::new(Arc::clone(clock) as _, at)).into();
        self.backend.0.pass(sample, (queue, PRIORITY), Some(OperationId::next()), Some(stamps));
        self.passed += 1;
        // There is room for so many.
        if self.passed.is_multiple_of(self.collected) {
            drop(self.profiler.get_comprehensive_report());
        }
    }

    /// A whole transfer of one operation.
    fn transfer(&mut self, queue: &Queue, path: TransferPath, method: TransferMethod, bytes: u64, took: u64) {
        let mut report = TransferReport::planned(path, method, queue.device, bytes);
        report.id = TransferId::if_wanted(Wanted::Times);
        let times = [Duration::from_nanos(took / 10), Duration::from_nanos(took)].map(Some);
        [report.submitting, report.elapsed] = times;
        report.moving = report.elapsed;
        let observer = self.profiler.observer();
        observer.transfer(TransferEvent::Submitted { report: &report, begun: Instant::now(), end: None });
        let scope = TransferScope::enter(report.id);
        let kind = OperationKind::Copy;
        let info = OperationInfo { path: Some((path.src, path.dst)), bytes, ..OperationInfo::of_kind(kind) };
        self.operate(queue, info, (10, 10 + took));
        drop(scope);
        observer.transfer(TransferEvent::Completed(&report));
    }
}

const DAY: u64 = 86_400_000_000_000;

/// From 10 ns to a day.
fn lengths() -> impl Iterator<Item = u64> {
    (1..=13).map(|decade| 10_u64.pow(decade)).chain([DAY])
}

#[test]
fn profiler_takes_at_most_64_mib() {
    let origin = Instant::now();
    let clock =
        |device| Arc::new(Clock { id: ClockId::next(), device, origin, reached: AtomicU64::new(u64::MAX) });
    let (clocks, backend) = (DEVICES.map(clock), Arc::new(Passed(SinkSlot::default())));
    let queue = |index: usize| {
        let device = DEVICES[index % DEVICES.len()];
        Queue { id: next_timeline_id(), device, tally: Arc::default() }
    };
    let queues: Vec<_> = (0..400).map(queue).collect();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    // All are timed, and the memory is that of the default.
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    profiler.record_engines().unwrap();
    profiler.start_trace(std::io::sink(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let mut test = Test { backend, profiler, clocks, passed: 0, collected: 5000 };

    for took in lengths() {
        for queue in &queues {
            for kind in OperationKind::ALL {
                test.operate(
                    queue,
                    OperationInfo { bytes: took, ..OperationInfo::of_kind(kind) },
                    (10, 10 + took),
                );
            }
        }
    }
    let all = test.profiler.get_comprehensive_report();
    let kinds: Vec<_> = all.streams.iter().flat_map(|stream| &stream.kinds).collect();
    let sum = kinds.iter().map(|kind| kind.running.count).sum::<u64>();
    let expected = (lengths().count() * queues.len() * OperationKind::ALL.len()) as u64;
    assert_eq!((sum, all.lost, all.outstanding), (expected, 0, 0));
    let total = kinds.iter().map(|kind| kind.running.total_ns).sum::<u64>();
    let each = (queues.len() * OperationKind::ALL.len()) as u64;
    assert_eq!(total, lengths().sum::<u64>() * each);
    // None is of a part.
    let day = |kind: &&KindReport| kind.running.percentiles.is_some_and(|it| it.max_ns >= DAY);
    let with = kinds.iter().filter(|kind| kind.running.percentiles.is_some()).count();
    assert!(0 < with && with < kinds.len() && kinds.into_iter().filter(day).count() == with);
    assert!(all.to_string().contains("no percentiles: the memory for distributions was full"));
    drop(all);

    for (index, device) in DEVICES.into_iter().enumerate() {
        for (src, dst) in MemoryKind::ALL.iter().flat_map(|src| MemoryKind::ALL.map(|dst| (*src, dst))) {
            for method in [TransferMethod::DirectCopy, TransferMethod::ZeroCopy] {
                for class in [4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 1 << 30] {
                    for up in [true, false] {
                        let host = Place::new(DeviceId::Cpu, src);
                        let there = Place::new(device, dst);
                        let path = match up {
                            true => TransferPath::new(host, there),
                            false => TransferPath::new(there, host),
                        };
                        for took in lengths().step_by(3) {
                            test.transfer(&queues[index], path, method, class, took);
                        }
                    }
                }
            }
        }
    }
    drop(test.profiler.get_comprehensive_report());
    // As many are under way as there may be, of several streams in turns.
    test.collected = u64::MAX;
    for queue in queues.iter().step_by(100) {
        test.clocks.iter().for_each(|clock| clock.reached.store(0, Ordering::Relaxed));
        for _ in 0..1 << 14 {
            test.operate(queue, OperationInfo::of_kind(OperationKind::Kernel), (0, 1));
        }
        test.clocks.iter().for_each(|clock| clock.reached.store(u64::MAX, Ordering::Relaxed));
        drop(test.profiler.get_comprehensive_report());
    }
    let peak = PEAK.load(Ordering::Relaxed) - before;
    let live = LIVE.load(Ordering::Relaxed) - before;
    assert!(peak <= 64 << 20, "{live} bytes, at most {peak}");
    test.profiler.finish_trace().unwrap();
}
