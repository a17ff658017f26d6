//! Sinks, which operations they are passed, and stamps of the host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use transload_core::{
    ClockAnchor, ErrorKind, OperationInfo, OperationKind, OperationRecord, OperationSampling, OperationSink,
    QueueTally, SinkSlot, Stamp, StreamPriority, TransferId, TransferScope, Wanted,
};

use crate::mock::MockQueue;

#[derive(Default)]
struct Counter(AtomicU64);

impl OperationSink for Counter {
    fn operation(&self, _: OperationRecord) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn attached(slot: &SinkSlot, one_in: u32) -> (Arc<Self>, Arc<dyn OperationSink>) {
        let counter = Arc::new(Self::default());
        let sink: Arc<dyn OperationSink> = Arc::clone(&counter) as _;
        slot.attach(Arc::clone(&sink), OperationSampling { all_from_bytes: 1 << 20, one_in }).unwrap();
        (counter, sink)
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn copy(bytes: u64) -> OperationInfo {
    OperationInfo { bytes, ..OperationInfo::of_kind(OperationKind::Copy) }
}

/// Enqueues an operation as a queue does; returns whether it was timed.
fn enqueue(slot: &SinkSlot, tally: &Arc<QueueTally>, bytes: u64) -> bool {
    let Some(sample) = slot.sample(tally, || copy(bytes)) else { return false };
    let times = [(); 2].map(|()| Stamp::of_host(Instant::now()));
    let queue = MockQueue::new();
    slot.pass(sample, (queue.line(), StreamPriority::Normal), None, Some(times.into()));
    true
}

#[test]
fn small_operations_are_timed_one_in_many_on_average() {
    // A queue's numbers begin with its address, so each run draws others: 4,000 distances have a mean that is 1 % off, the tenth is 11 times that.
    const TIMED: u64 = 4_000;
    for one_in in [2, 3, 16, 64, 1000] {
        let operations = TIMED * u64::from(one_in);
        let (slot, tally) = (SinkSlot::default(), Arc::default());
        let (counter, _sink) = Counter::attached(&slot, one_in);
        let (mut last, mut distances) = (None, std::collections::BTreeSet::new());
        for index in 0..operations {
            if enqueue(&slot, &tally, 1)
                && let Some(last) = last.replace(index)
            {
                distances.insert(index - last);
            }
        }
        let ratio = operations as f64 / counter.get() as f64;
        assert!((0.9..1.1).contains(&(ratio / f64::from(one_in))), "one in {one_in}: one in {ratio}");
        // Irregular, or operations that alternate could hide.
        assert!(distances.len() as u32 >= one_in.min(100), "one in {one_in}: distances {distances:?}");
    }
}

/// Otherwise twice as many as asked for were timed: those of transfers that are observed, and as many others.
#[test]
fn operations_of_observed_transfers_count_as_those_that_are_timed() {
    const OPERATIONS: u64 = 100_000;
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (counter, _sink) = Counter::attached(&slot, 64);
    for index in 0..OPERATIONS {
        // As irregular as the transfers of which an observer takes one in 64: 1 to 127 apart.
        let is_observed = index % 64 == (index / 64).wrapping_mul(0x9E37_79B9) >> 7 & 63;
        let _scope = is_observed.then(|| TransferScope::enter(TransferId::if_wanted(Wanted::Times)));
        assert!(enqueue(&slot, &tally, 1) || !is_observed, "all of an observed transfer are");
    }
    let one_in = OPERATIONS as f64 / counter.get() as f64;
    assert!((55.0..65.0).contains(&one_in), "one in {one_in}");
}

#[test]
fn one_in_one_is_all_of_them_also_among_observed_transfers() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (_counter, _sink) = Counter::attached(&slot, 1);
    for index in 0..100 {
        let _scope = (index % 2 == 0).then(|| TransferScope::enter(TransferId::if_wanted(Wanted::Times)));
        assert!(enqueue(&slot, &tally, 1), "operation {index}");
    }
}

/// Or kernels among transfers would hardly be timed.
#[test]
fn observed_transfers_do_not_count_for_other_kinds() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (_counter, _sink) = Counter::attached(&slot, 64);
    let kernel = || OperationInfo { bytes: 1, ..OperationInfo::of_kind(OperationKind::Kernel) };
    let (mut kernels, mut timed) = (0, 0);
    for index in 0..100_000_u64 {
        let is_observed = index % 64 == (index / 64).wrapping_mul(0x9E37_79B9) >> 7 & 63;
        let scope = is_observed.then(|| TransferScope::enter(TransferId::if_wanted(Wanted::Times)));
        enqueue(&slot, &tally, 1);
        drop(scope);
        if index % 3 == 0 {
            kernels += 1;
            timed += u64::from(slot.sample(&tally, kernel).is_some());
        }
    }
    let one_in = f64::from(kernels) / timed as f64;
    assert!((55.0..75.0).contains(&one_in), "one in {one_in}");
}

#[test]
fn first_operation_is_timed_and_the_next_rarely() {
    let slot = SinkSlot::default();
    let (_counter, _sink) = Counter::attached(&slot, 64);
    let tallies: [Arc<QueueTally>; 100] = std::array::from_fn(|_| Arc::default());
    let seconds = tallies.iter().filter(|tally| {
        assert!(enqueue(&slot, tally, 1), "the first of a queue");
        enqueue(&slot, tally, 1)
    });
    assert!(seconds.count() < 50, "short-lived queues are timed as often as others");
}

#[test]
fn operations_of_the_threshold_are_all_timed() {
    for one_in in [0, 64] {
        let (slot, tally) = (SinkSlot::default(), Arc::default());
        let (counter, _sink) = Counter::attached(&slot, one_in);
        assert!((0..100).all(|_| enqueue(&slot, &tally, 1 << 20)));
        assert_eq!(counter.get(), 100);
    }
}

#[test]
fn later_sink_does_not_see_earlier_counts() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let attachment = || slot.sample(&tally, || copy(10)).map(|_| ());
    let (_counter, sink) = Counter::attached(&slot, 0);
    assert_eq!(attachment(), Some(()), "the first is timed");
    assert_eq!(attachment(), None, "and no other");
    slot.detach(&sink);
    let (counter, _sink) = Counter::attached(&slot, 0);
    assert!(enqueue(&slot, &tally, 10), "the first of this sink");
    assert!(!enqueue(&slot, &tally, 10));
    assert_eq!(counter.get(), 1);
    // Attachments have the numbers from 1, of which other tests take some.
    let seen: Vec<_> =
        (0..100_000).map(|number| tally.counts(number)[0]).filter(|count| count.operations > 0).collect();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].operations, seen[0].bytes), (2, 20));
}

#[test]
fn refused_operation_is_not_counted() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (_counter, _sink) = Counter::attached(&slot, 0);
    let first = |bytes| slot.sample(&tally, || copy(bytes)).is_some();
    assert!(first(10));
    slot.withdraw(&tally, || copy(10));
    assert!(first(20), "a sink learns of a queue by its first operation that is not refused");
    assert!(!first(30));
    slot.withdraw(&tally, || copy(30));
    assert!(!first(40), "the first one was passed");
    let counts = (0..100_000).map(|number| tally.counts(number)[0]).find(|count| count.operations > 0);
    assert_eq!(counts.map(|count| (count.operations, count.bytes)), Some((2, 60)));
}

#[test]
fn operation_of_an_ended_attachment_is_not_passed() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (first, sink) = Counter::attached(&slot, 1);
    let sample = slot.sample(&tally, || copy(1)).unwrap();
    slot.detach(&sink);
    let (second, _sink) = Counter::attached(&slot, 1);
    let times = [(); 2].map(|()| Stamp::of_host(Instant::now()));
    let queue = MockQueue::new();
    slot.pass(sample, (queue.line(), StreamPriority::Normal), None, Some(times.into()));
    assert_eq!((first.get(), second.get()), (0, 0));
}

#[test]
fn detaching_a_sink_ends_what_it_is_passed() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (counter, sink) = Counter::attached(&slot, 1);
    let other: Arc<dyn OperationSink> = Arc::new(Counter::default());
    assert!(
        slot.attach(Arc::clone(&other), OperationSampling::ALL)
            .is_err_and(|error| error.kind() == ErrorKind::Busy)
    );
    slot.detach(&other);
    assert!(slot.is_attached() && enqueue(&slot, &tally, 1), "another sink's detaching changes nothing");
    slot.detach(&sink);
    assert!(!slot.is_attached() && !enqueue(&slot, &tally, 1));
    assert_eq!(counter.get(), 1);
    assert_eq!(Arc::strong_count(&sink), 2, "the slot keeps no handle of it");
}

/// Panics at each operation and when it is dropped.
struct Panicking;

impl OperationSink for Panicking {
    fn operation(&self, _: OperationRecord) {
        panic!("a sink's panic");
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        assert!(thread::panicking(), "the panic of a sink's drop");
    }
}

#[test]
fn panic_of_a_sink_ends_in_the_slot() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    slot.attach(Arc::new(Panicking), OperationSampling::ALL).unwrap();
    assert!(enqueue(&slot, &tally, 1) && enqueue(&slot, &tally, 1));
    // Not attached while it is dropped.
    drop(slot);
}

#[test]
fn first_operation_that_could_not_be_timed_is_followed_by_one() {
    let (slot, tally) = (SinkSlot::default(), Arc::default());
    let (counter, _sink) = Counter::attached(&slot, 0);
    let queue = MockQueue::new();
    let sample = slot.sample(&tally, || copy(1)).unwrap();
    slot.pass(sample, (queue.line(), StreamPriority::Normal), None, None);
    assert!(enqueue(&slot, &tally, 1), "the sink has not learnt of the queue");
    assert!(!enqueue(&slot, &tally, 1));
    assert_eq!(counter.get(), 1);
}

#[test]
fn scopes_nest_and_belong_to_their_thread() {
    let [outer, inner] = [(); 2].map(|()| TransferId::if_wanted(Wanted::Times).unwrap());
    assert_eq!(TransferScope::current(), None);
    {
        let _outer = TransferScope::enter(Some(outer));
        {
            let _inner = TransferScope::enter(Some(inner));
            assert_eq!(TransferScope::current(), Some(inner));
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(TransferScope::current(), None));
            });
        }
        assert!(TransferScope::enter(None).is_none());
        assert_eq!(TransferScope::current(), Some(outer));
    }
    assert_eq!(TransferScope::current(), None);
}

#[test]
fn stamps_of_the_host_have_its_clock() {
    let now = Instant::now();
    let (one, two) = (Stamp::of_host(now), Stamp::of_host(now + Duration::from_micros(7)));
    assert_eq!(two.time().unwrap().unwrap() - one.time().unwrap().unwrap(), 7_000);
    let (later, pending) = Stamp::of_host_later();
    assert_eq!((later.time().unwrap(), later.clock().id()), (None, one.clock().id()));
    pending.set(now);
    assert_eq!(later.time().unwrap(), one.time().unwrap());
    let (never, pending) = Stamp::of_host_later();
    drop(pending);
    assert_eq!(never.time().unwrap_err().kind(), ErrorKind::Interrupted);
    let anchor = one.clock().anchor().unwrap();
    assert_eq!(Stamp::of_host(anchor.before).time().unwrap(), Some(anchor.device));
}

#[test]
fn narrowest_of_several_readings_of_a_clock_counts() {
    let origin = Instant::now();
    let mut widths = [50, 9, 30, 7, 8, 7, 200].into_iter().enumerate();
    let read = || {
        let (number, width) = widths.next().ok_or("no more readings")?;
        let before = origin + Duration::from_millis(number as u64);
        let after = before + Duration::from_micros(width);
        Ok::<_, &str>((ClockAnchor { device: number as i64, before, after }, number))
    };
    let narrowest = ClockAnchor::narrowest(6, read).map(|(anchor, number)| (anchor.device, number));
    assert_eq!((narrowest, widths.next()), (Ok((3, 3)), Some((6, 200))));
}
