//! Records of engines and the operations that they belong to.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use parking_lot::Mutex;
use transload_core::{
    ClockAnchor, ClockId, DeviceClock, Error, ErrorKind, MemoryKind, Migration, OperationKind, PageFaults,
    Place, Stamp, StreamPriority, next_timeline_id,
};

use super::*;

type Batches = Arc<Mutex<VecDeque<Result<(Vec<EngineRecord>, u64)>>>>;

/// Delivers a batch at each request.
struct Fake {
    clock: Arc<dyn DeviceClock>,
    batches: Batches,
}

impl EngineRecording for Fake {
    fn clock(&self) -> &Arc<dyn DeviceClock> {
        &self.clock
    }

    fn records_migrations(&self) -> Result<()> {
        Ok(())
    }

    fn take(&self, records: &mut Vec<EngineRecord>, _: bool) -> Result<u64> {
        let Some(batch) = self.batches.lock().pop_front() else { return Ok(0) };
        let (batch, lost) = batch?;
        records.extend(batch);
        Ok(lost)
    }
}

const DEVICE: DeviceId = DeviceId::Other("gpu", 0);

fn engines() -> (Engines, Batches) {
    let (patience, batches) = (Patience(Duration::ZERO), Batches::default());
    let mut engines = Engines { patience, ..Engines::default() };
    let clock = Arc::clone(Stamp::of_host(Instant::now()).clock());
    engines.add(Box::new(Fake { clock, batches: Arc::clone(&batches) }), false, Instant::now()).unwrap();
    (engines, batches)
}

/// A clock of the time of day, read once in a second, that may be set.
struct TimeOfDay {
    id: ClockId,
    origin: Instant,
    seconds: AtomicI64,
    set_by: AtomicI64,
}

impl DeviceClock for TimeOfDay {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn resolution(&self) -> Duration {
        Duration::ZERO
    }

    fn time(&self, _: u64) -> Result<Option<i64>> {
        Ok(None)
    }

    fn release(&self, _: u64) {}

    fn anchor(&self) -> Result<ClockAnchor> {
        let seconds = 10_000 + self.seconds.fetch_add(1, Ordering::Relaxed);
        let device = (seconds + self.set_by.load(Ordering::Relaxed)) * 1_000_000_000;
        let now = self.origin + Duration::from_secs(seconds.cast_unsigned());
        Ok(ClockAnchor { device, before: now, after: now })
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }
}

fn work(call: u64, (begin, end): (i64, i64)) -> EngineRecord {
    let (task, engine) = (EngineTask::CopyToDevice, Some(Engine::Copy));
    EngineRecord::Worked(EngineWork { call, device: DEVICE, task, engine, bytes: 10, begin, end })
}

fn called(call: u64, operation: OperationId) -> EngineRecord {
    EngineRecord::Called { call, operation }
}

fn spans(ran: u64) -> EventSpans {
    EventSpans { ran, since_wait: None }
}

/// A timed copy that was enqueued, and ran for so long if it ended.
fn copied(engines: &mut Engines, ran: Option<u64>) -> OperationId {
    let (id, priority) = (next_timeline_id(), StreamPriority::Normal);
    let queue = QueueKey { id, device: DEVICE, priority, simulated: false };
    let path = (Place::new(DeviceId::Cpu, MemoryKind::Pinned), Place::new(DEVICE, MemoryKind::Device));
    let info = OperationInfo { path: Some(path), bytes: 10, ..OperationInfo::of_kind(OperationKind::Copy) };
    let (operation, now) = (OperationId::next(), Instant::now());
    let (name, transfer, id) = (None, None, Some(operation));
    let (point, waits_for) = (None, None);
    let enqueued = Enqueued { queue, name, info, transfer, id, point, waits_for, enqueued: now };
    engines.enqueued(id, &enqueued, now, 64);
    if ran.is_some() {
        engines.ended(id, ran.map(spans));
    }
    operation
}

/// Returns the exact and the events' lengths that one more request tells.
fn collect(engines: &mut Engines) -> Vec<(u64, u64)> {
    engines.collect_once(Request::IfDue, None).iter().map(|it| (it.exact, it.ran)).collect()
}

#[test]
fn records_are_matched_in_any_order() {
    let (mut engines, batches) = engines();
    let (one, two) = (copied(&mut engines, None), copied(&mut engines, Some(700)));
    let batch = |records: Vec<EngineRecord>| batches.lock().push_back(Ok((records, 0)));
    // Work before its call; two pieces of work; and calls without work.
    batch(vec![work(1, (100, 200)), called(3, two), called(4, one)]);
    batch(vec![called(1, one), work(3, (1000, 1300))]);
    batch(vec![called(2, one), work(2, (250, 600))]);
    assert_eq!(collect(&mut engines), []);
    assert_eq!(collect(&mut engines), [], "more of it may come");
    assert_eq!(collect(&mut engines), [(300, 700)]);
    assert_eq!(collect(&mut engines), [], "its end is not known by its stamps");
    engines.ended(Some(one), Some(spans(510)));
    assert_eq!(collect(&mut engines), [(500, 510)]);
    let [report] = &engines.reports()[..] else { panic!() };
    assert_eq!((report.spans, report.bytes, report.busy_ns, report.whole_ns), (3, 30, 750, 1200));
    assert!(engines.timed.is_empty() && engines.waiting.is_empty());
}

#[test]
fn oldest_call_is_forgotten_first_though_its_number_is_high() {
    let (mut engines, batches) = engines();
    let last = u64::from(u32::MAX);
    // The numbers begin again, and the last one is used a second time.
    let earlier = (0..CALLS as u64).map(|index| called(last - index, OperationId::next()));
    let [one, two] = [(); 2].map(|()| copied(&mut engines, Some(100)));
    let records =
        earlier.chain([called(last, two), called(1, one), work(1, (100, 200)), work(last, (300, 400))]);
    batches.lock().push_back(Ok((records.collect(), 0)));
    collect(&mut engines);
    assert_eq!(collect(&mut engines), [(100, 100); 2]);
    assert_eq!((engines.calls.len(), engines.in_order.len()), (CALLS, CALLS), "bounded");
}

#[test]
fn operation_without_records_and_work_of_others_are_not_kept() {
    let (mut engines, batches) = engines();
    let (unrecorded, failed) = (copied(&mut engines, Some(5)), copied(&mut engines, None));
    engines.ended(Some(failed), None);
    batches.lock().push_back(Ok((vec![work(9, (1, 2)), work(8, (3, 4))], 7)));
    batches.lock().push_back(Err(Error::new(ErrorKind::Unsupported, "the library failed")));
    (0..=PATIENCE).for_each(|_| assert_eq!(collect(&mut engines), []));
    assert!(engines.timed.is_empty() && engines.waiting.is_empty());
    assert_eq!((engines.lost(), engines.reports()[0].spans), (9, 2), "with that of the copy");
    // What comes too late is an engine's, and no operation's.
    batches.lock().push_back(Ok((vec![called(5, unrecorded), work(5, (10, 20))], 0)));
    (0..=PATIENCE).for_each(|_| assert_eq!(collect(&mut engines), []));
    assert_eq!(engines.reports()[0].spans, 3);
    let lost = engines.lost();
    (0..100).for_each(|_| _ = copied(&mut engines, None));
    assert_eq!((engines.timed.len(), engines.lost()), (64, lost + 36), "bounded, and told");
    assert_eq!(engines.stop().len(), 1);
    assert!(!engines.is_recording() && engines.timed.is_empty());
    copied(&mut engines, Some(5));
    assert!(engines.timed.is_empty(), "nothing is recorded");
    assert_eq!((collect(&mut engines), engines.reports()[0].spans), (vec![], 3));
}

#[test]
fn records_of_an_operation_that_come_in_two_batches_are_one_span() {
    let (mut engines, batches) = engines();
    let list = copied(&mut engines, Some(510));
    batches.lock().push_back(Ok((vec![called(1, list), work(1, (100, 200))], 0)));
    batches.lock().push_back(Ok((vec![work(1, (250, 600))], 0)));
    assert_eq!((collect(&mut engines), collect(&mut engines)), (vec![], vec![]));
    assert_eq!(collect(&mut engines), [(500, 510)]);
}

#[test]
fn gaps_are_not_known_once_records_are_lost_or_recording_paused() {
    let gaps = |engines: &Engines| engines.reports()[0].gaps.len();
    for lost in [0, 7] {
        let (mut engines, batches) = engines();
        batches.lock().push_back(Ok((vec![work(1, (0, 100)), work(2, (500, 600))], lost)));
        collect(&mut engines);
        assert_eq!(gaps(&engines), usize::from(lost == 0));
        assert_eq!(engines.idle_links().count(), 0);
        drop(engines.stop());
        assert_eq!(gaps(&engines), usize::from(lost == 0));
        let clock = Arc::clone(Stamp::of_host(Instant::now()).clock());
        engines.add(Box::new(Fake { clock, batches }), false, Instant::now()).unwrap();
        assert_eq!(gaps(&engines), 0, "nobody knows what was done between");
    }
}

#[test]
fn operation_is_in_flight_until_its_records_are_known() {
    let (mut engines, batches) = engines();
    let one = copied(&mut engines, None);
    collect(&mut engines);
    assert!(engines.is_in_flight(DEVICE) && !engines.is_in_flight(DeviceId::Cpu));
    engines.ended(Some(one), Some(spans(100)));
    collect(&mut engines);
    assert!(engines.is_in_flight(DEVICE), "its records may still come");
    batches.lock().push_back(Ok((vec![called(1, one), work(1, (100, 200))], 0)));
    (0..2).for_each(|_| _ = collect(&mut engines));
    assert!(!engines.is_in_flight(DEVICE));
    copied(&mut engines, None);
    drop(engines.stop());
    assert!(engines.is_in_flight(DEVICE), "its records never come");
}

#[test]
fn places_are_not_known_once_the_time_of_day_was_set() {
    let second = 1_000_000_000;
    for set_by in [0, -3600, 3600] {
        let (origin, batches) = (Instant::now(), Batches::default());
        let [seconds, none] = [(); 2].map(|()| AtomicI64::new(0));
        let clock = Arc::new(TimeOfDay { id: ClockId::next(), origin, seconds, set_by: none });
        let mut engines = Engines { patience: Patience(Duration::ZERO), ..Engines::default() };
        let fake = Fake { clock: Arc::clone(&clock) as _, batches: Arc::clone(&batches) };
        engines.add(Box::new(fake), false, origin).unwrap();
        let batch = |number: u64, at: i64| {
            let begin = (10_000 + at) * second;
            batches.lock().push_back(Ok((vec![work(number, (begin, begin + second / 10))], 0)));
        };
        batch(1, 0);
        collect(&mut engines);
        clock.set_by.store(set_by, Ordering::Relaxed);
        batch(2, 1 + set_by);
        collect(&mut engines);
        // Also after the end.
        for stopped in [false, true] {
            let [report] = &engines.reports()[..] else { panic!() };
            assert_eq!(
                (report.is_cut, report.gaps.len()),
                (set_by != 0, usize::from(set_by == 0)),
                "{report}"
            );
            if !stopped {
                drop(engines.stop());
            }
        }
    }
}

#[test]
fn work_that_two_recordings_of_a_device_tell_counts_once() {
    let (mut engines, batches) = engines();
    let (other, clock) = (Batches::default(), Arc::clone(Stamp::of_host(Instant::now()).clock()));
    let fake = Fake { clock, batches: Arc::clone(&other) };
    engines.add(Box::new(fake), false, Instant::now()).unwrap();
    let copy = copied(&mut engines, Some(100));
    let migration = |device| {
        let (to_device, by_fault, address, bytes) = (true, false, 0, 10);
        EngineRecord::Migrated(Migration { device, to_device, by_fault, address, bytes, begin: 0, end: 5 })
    };
    let faults = EngineRecord::Faulted(PageFaults { device: None, address: 0, count: 1, served: None });
    let of_both = vec![called(1, copy), work(1, (100, 200)), migration(DEVICE), faults];
    batches.lock().push_back(Ok((of_both.clone(), 0)));
    // It has another device, too.
    let own = migration(DeviceId::Other("gpu", 1));
    other.lock().push_back(Ok((of_both.into_iter().chain([own]).collect(), 0)));
    assert_eq!((collect(&mut engines), collect(&mut engines)), (vec![], vec![(100, 100)]));
    assert_eq!(engines.reports().iter().map(|it| (it.spans, it.bytes)).collect::<Vec<_>>(), [(1, 10)]);
    let told = engines.migrations.reports().into_iter().map(|it| (it.to_device, it.faults));
    assert_eq!(told.collect::<Vec<_>>(), [(0, 1), (1, 0), (1, 0)]);
}

#[test]
fn loss_that_is_told_to_two_recordings_counts_once() {
    let (mut engines, batches) = engines();
    let (other, clock) = (Batches::default(), Arc::clone(Stamp::of_host(Instant::now()).clock()));
    let fake = Fake { clock, batches: Arc::clone(&other) };
    engines.add(Box::new(fake), false, Instant::now()).unwrap();
    // What the library lost between two requests of a round is told to one of them by the next round.
    for (of_one, of_other, lost) in [(7, 7, 7), (0, 2, 9), (2, 0, 9), (0, 0, 9)] {
        batches.lock().push_back(Ok((Vec::new(), of_one)));
        other.lock().push_back(Ok((Vec::new(), of_other)));
        assert_eq!((collect(&mut engines), engines.lost()), (vec![], lost));
    }
    drop(engines.stop());
    assert_eq!(engines.lost(), 9, "what was lost stays");
    let clock = Arc::clone(Stamp::of_host(Instant::now()).clock());
    engines.add(Box::new(Fake { clock, batches: Arc::clone(&batches) }), false, Instant::now()).unwrap();
    batches.lock().push_back(Ok((Vec::new(), 1)));
    assert_eq!((collect(&mut engines), engines.lost()), (vec![], 10));
}
