//! Operations until they are counted: first with the stamps of the device, then with instants that wait for a reading of their clock.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, OnceLock},
    time::Instant,
};

use transload_core::{
    ClockId, DeviceClock, OperationId, OperationInfo, Result, Stamp, TimelineId, TransferId,
};

use crate::{
    clock_map::ClockMap,
    engines::has_records,
    inbox::QueueKey,
    slots::{List, Slots},
};

pub(crate) struct Enqueued {
    pub(crate) queue: QueueKey,
    pub(crate) name: Option<Cow<'static, str>>,
    pub(crate) info: OperationInfo,
    pub(crate) transfer: Option<TransferId>,
    /// Its id in records of engines.
    pub(crate) id: Option<OperationId>,
    /// Its point on the queue's timeline.
    pub(crate) point: Option<u64>,
    /// Of a wait, for which point it waits.
    pub(crate) waits_for: Option<(TimelineId, u64)>,
    pub(crate) enqueued: Instant,
}

/// The begin of an operation that may end much later.
#[derive(Debug)]
pub(crate) struct OpenBegin {
    stamp: Stamp,
    /// Once it was seen.
    at: OnceLock<i64>,
}

impl OpenBegin {
    pub(crate) fn new(stamp: Stamp) -> Arc<Self> {
        Arc::new(Self { stamp, at: OnceLock::new() })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn DeviceClock> {
        self.stamp.clock()
    }

    /// Returns the instant once the queue has reached it, which is asked for once.
    ///
    /// # Errors
    /// The driver's, if it will never be known.
    pub(crate) fn time(&self) -> Result<Option<i64>> {
        if let Some(at) = self.at.get() {
            return Ok(Some(*at));
        }
        let time = self.stamp.time()?;
        Ok(time.map(|at| *self.at.get_or_init(|| at)))
    }
}

/// Where an operation began.
pub(crate) enum Begin {
    Stamp(Stamp),
    Open(Arc<OpenBegin>),
}

/// An operation whose instants are not known.
pub(crate) struct Pending {
    pub(crate) operation: Enqueued,
    begin: Begin,
    pub(crate) end: Stamp,
    /// The begin, once it was seen.
    begun: Option<i64>,
}

impl Pending {
    pub(crate) fn new(operation: Enqueued, begin: Begin, end: Stamp) -> Self {
        Self { operation, begin, end, begun: None }
    }

    /// Returns both instants once they are known. The begin is asked for as soon as the queue reached it: a driver tells what is long ago in coarser steps.
    ///
    /// # Errors
    /// The driver's, if they will never be known.
    pub(crate) fn times(&mut self) -> Result<Option<(i64, i64)>> {
        if self.begun.is_none() {
            self.begun = match &self.begin {
                Begin::Stamp(stamp) => stamp.time(),
                Begin::Open(begin) => begin.time(),
            }?;
        }
        let Some(begun) = self.begun else { return Ok(None) };
        let Some(ended) = self.end.time()? else { return Ok(None) };
        let stamp = i64::try_from(self.end.clock().stamp_length().as_nanos()).unwrap_or(i64::MAX);
        // The operation begins when the stamp before it is done.
        let begin = begun.saturating_add(stamp).min(ended);
        let Enqueued { id, info, .. } = &self.operation;
        let is_recorded = id.is_some() && has_records(info.kind);
        let after = if is_recorded { stamp } else { 0 };
        Ok(Some((begin, ended.saturating_sub(after).max(begin))))
    }
}

/// An operation with its instants. It keeps no stamp, so that the device's events are used again.
pub(crate) struct Resolved {
    pub(crate) operation: Enqueued,
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

/// A clock, and operations that wait for its next reading.
pub(crate) struct KnownClock {
    pub(crate) map: ClockMap,
    pub(crate) resolved: List,
    /// Whether the last reading failed.
    is_unread: bool,
}

impl KnownClock {
    /// Returns the clock of `clocks`. The first call reads it, which should come before the instants that it is asked for. `None` if it cannot be read.
    pub(crate) fn of<'a>(
        clocks: &'a mut BTreeMap<ClockId, Self>,
        clock: &Arc<dyn DeviceClock>,
        origin: Instant,
    ) -> Option<&'a mut Self> {
        match clocks.entry(clock.id()) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let map = ClockMap::new(Arc::clone(clock), origin).ok()?;
                Some(place.insert(Self { map, resolved: List::default(), is_unread: false }))
            }
        }
    }

    /// Reads the clock if that is due. Instants are asked for after that: a driver tells those far from its last reading in coarse steps.
    pub(crate) fn renew(&mut self) {
        if self.map.is_due() {
            self.read();
        }
    }

    fn read(&mut self) {
        self.is_unread = self.map.read().is_err();
    }

    /// Reads the clock if `all` is wanted, or if what waits takes too much room. Moves what can be counted to `ready`.
    pub(crate) fn take_ready(
        &mut self,
        all: bool,
        is_crowded: bool,
        resolved: &mut Slots<Resolved>,
        ready: &mut Vec<(ClockId, Resolved)>,
    ) {
        if all || is_crowded && !self.resolved.is_empty() {
            self.read();
        }
        // Without a reading, times are extrapolated: of a clock that is lost, none will come.
        let all = all || self.is_unread || self.map.is_last_holder();
        while resolved.first(&self.resolved).is_some_and(|one| all || self.map.covers(one.end)) {
            ready.extend(resolved.pop(&mut self.resolved).map(|resolved| (self.map.id(), resolved)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64, Ordering},
        time::Duration,
    };

    use transload_core::{
        ClockAnchor, DeviceId, Error, ErrorKind, KnownCosts, OperationKind, OperationSampling,
        StreamPriority, next_timeline_id,
    };

    use super::*;
    use crate::{
        collector::{Collector, FORMER_CLOCKS},
        inbox::{Inbox, Message, NamedOperation, NamedTime},
    };

    /// Of which a token is the instant itself.
    struct Clock {
        id: ClockId,
        interval: Duration,
        /// Tokens below it are reached.
        reached: AtomicU64,
        /// Whether it has steps of 0.25 ms until it is read again.
        is_coarse: AtomicBool,
        is_lost: AtomicBool,
        read: AtomicU64,
        origin: Instant,
    }

    impl Clock {
        fn new(interval: Duration) -> Arc<Self> {
            let [is_coarse, is_lost] = [(); 2].map(|()| AtomicBool::new(false));
            let [read, reached] = [0, u64::MAX].map(AtomicU64::new);
            let (id, origin) = (ClockId::next(), Instant::now());
            Arc::new(Self { id, interval, reached, is_coarse, is_lost, read, origin })
        }
    }

    impl DeviceClock for Clock {
        fn id(&self) -> ClockId {
            self.id
        }

        fn device(&self) -> DeviceId {
            DeviceId::Other("clock", 0)
        }

        fn resolution(&self) -> Duration {
            Duration::ZERO
        }

        fn time(&self, token: u64) -> Result<Option<i64>> {
            let step = if self.is_coarse.load(Ordering::Relaxed) { 250_000 } else { 1 };
            let is_reached = token < self.reached.load(Ordering::Relaxed);
            Ok(is_reached.then(|| (token / step * step).cast_signed()))
        }

        fn release(&self, _: u64) {}

        fn anchor(&self) -> Result<ClockAnchor> {
            if self.is_lost.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Device, "lost"));
            }
            self.read.fetch_add(1, Ordering::Relaxed);
            self.is_coarse.store(false, Ordering::Relaxed);
            let now = Instant::now();
            let device = i64::try_from(now.duration_since(self.origin).as_nanos()).unwrap();
            Ok(ClockAnchor { device, before: now, after: now })
        }

        fn anchor_interval(&self) -> Option<Duration> {
            Some(self.interval)
        }
    }

    const SELDOM: Duration = Duration::from_secs(1 << 30);
    /// An instant that no reading comes after.
    const FAR: u64 = 1 << 60;

    struct Profiled {
        inbox: Inbox,
        collector: Collector,
    }

    impl Profiled {
        fn new() -> Self {
            Self::of(64)
        }

        fn of(capacity: usize) -> Self {
            let inbox = Inbox::new(capacity, OperationSampling::ALL);
            Self { inbox, collector: Collector::new(Instant::now(), capacity) }
        }

        fn operation(&self, clock: &Arc<Clock>, at: u64) -> TimelineId {
            self.span(clock, (at, at))
        }

        fn span(&self, clock: &Arc<Clock>, span: (u64, u64)) -> TimelineId {
            let id = next_timeline_id();
            self.push(id, clock, span);
            id
        }

        fn push(&self, id: TimelineId, clock: &Arc<Clock>, (begin, end): (u64, u64)) {
            let queue =
                QueueKey { id, device: clock.device(), priority: StreamPriority::Normal, simulated: false };
            let mut named = NamedOperation::new(queue, "one".into(), OperationKind::Kernel, 0);
            let [begin, end] = [begin, end].map(|at| Stamp::new(Arc::clone(clock) as _, at));
            named.time = NamedTime::Stamped(OpenBegin::new(begin), end);
            self.inbox.push(Message::Named(named, 1));
        }

        fn time_of(&self, stream: TimelineId) -> u64 {
            let report = self.collector.stream_report(stream, OperationSampling::ALL, 0);
            report.unwrap().kinds[0].running.total_ns
        }

        /// Collects as the profiler's thread does, and returns how many operations of a stream have times.
        fn timed(&mut self, stream: TimelineId) -> u64 {
            self.collector.collect(&self.inbox, false);
            let report = self.collector.stream_report(stream, OperationSampling::ALL, 0);
            report.unwrap().kinds[0].running.count
        }
    }

    #[test]
    fn operation_that_waits_for_its_clock_holds_up_no_other() {
        let mut profiled = Profiled::new();
        let (one, two) = (Clock::new(SELDOM), Clock::new(Duration::ZERO));
        let waits = profiled.operation(&one, FAR);
        assert_eq!(profiled.timed(waits), 0);
        let other = profiled.operation(&two, 0);
        profiled.timed(other);
        assert_eq!(profiled.timed(other), 1, "its clock is read by each collection");
        assert_eq!(profiled.timed(waits), 0);
    }

    #[test]
    fn times_of_two_clocks_of_a_device_are_not_mixed() {
        let mut profiled = Profiled::new();
        // Two backends, one after the other: each clock counts from its own beginning.
        let clocks = [(); 2].map(|()| Clock::new(Duration::ZERO));
        clocks.iter().for_each(|clock| _ = profiled.span(clock, (0, 1000)));
        profiled.collector.collect(&profiled.inbox, true);
        let report = profiled.collector.report(OperationSampling::ALL, 0, &KnownCosts::default());
        let busy = report.directions.iter().map(|it| (it.busy_ns, it.total_ns));
        assert_eq!(busy.collect::<Vec<_>>(), [(1000, 1000); 2]);
    }

    #[test]
    fn gaps_of_a_device_with_two_clocks_are_not_known() {
        let mut profiled = Profiled::new();
        let gaps_with = |clock: &Arc<Clock>| {
            [(0, 1000), (5000, 6000)].iter().for_each(|span| _ = profiled.span(clock, *span));
            profiled.collector.collect(&profiled.inbox, true);
            let report = profiled.collector.report(OperationSampling::ALL, 0, &KnownCosts::default());
            report.directions.iter().map(|it| it.gaps.len()).collect::<Vec<_>>()
        };
        let clocks = [(); 2].map(|()| Clock::new(Duration::ZERO));
        // What one backend does may be in the gaps of the other.
        assert_eq!(clocks.each_ref().map(gaps_with), [vec![1], vec![0, 0]]);
    }

    #[test]
    fn directions_of_as_many_clocks_as_are_reported_are_kept() {
        let mut profiled = Profiled::of(1 << 14);
        let id = next_timeline_id();
        for _ in 0..FORMER_CLOCKS + 10 {
            profiled.push(id, &Clock::new(Duration::ZERO), (0, 1000));
        }
        // Their backends are gone.
        profiled.collector.collect(&profiled.inbox, true);
        let report = profiled.collector.report(OperationSampling::ALL, 0, &KnownCosts::default());
        assert_eq!((report.clocks.len(), report.directions.len()), (FORMER_CLOCKS, FORMER_CLOCKS));
        assert!(report.directions.iter().all(|it| it.busy_ns == 1000));
    }

    #[test]
    fn operation_of_a_lost_clock_is_counted_without_a_reading() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(Duration::ZERO);
        let stream = profiled.operation(&clock, FAR);
        assert_eq!(profiled.timed(stream), 0);
        clock.is_lost.store(true, Ordering::Relaxed);
        assert_eq!(profiled.timed(stream), 1);
        assert!(!profiled.collector.is_waiting());
    }

    #[test]
    fn clock_is_read_when_what_waits_takes_half_the_room() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(SELDOM);
        (0..31).for_each(|_| _ = profiled.operation(&clock, 0));
        profiled.collector.collect(&profiled.inbox, false);
        assert!(profiled.collector.is_waiting(), "the clock is not due");
        profiled.operation(&clock, 0);
        profiled.collector.collect(&profiled.inbox, false);
        assert!(!profiled.collector.is_waiting());
        assert_eq!((clock.read.load(Ordering::Relaxed), profiled.inbox.lost()), (2, 0));
    }

    #[test]
    fn clock_is_read_before_the_first_operation_ends() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(SELDOM);
        clock.reached.store(0, Ordering::Relaxed);
        let stream = profiled.operation(&clock, 0);
        profiled.timed(stream);
        assert_eq!(clock.read.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn old_clock_is_read_before_instants_are_asked_for() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(Duration::ZERO);
        profiled.span(&clock, (0, 0));
        profiled.collector.collect(&profiled.inbox, true);
        clock.is_coarse.store(true, Ordering::Relaxed);
        let stream = profiled.span(&clock, (1_000_000, 1_010_000));
        profiled.collector.collect(&profiled.inbox, true);
        assert_eq!(profiled.time_of(stream), 10_000);
    }

    #[test]
    fn begin_of_a_long_operation_is_as_exact_as_its_end() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(SELDOM);
        clock.reached.store(110_001, Ordering::Relaxed);
        let stream = profiled.span(&clock, (110_000, 900_000));
        assert_eq!(profiled.timed(stream), 0, "it runs");
        // By now it is long ago.
        clock.reached.store(u64::MAX, Ordering::Relaxed);
        clock.is_coarse.store(true, Ordering::Relaxed);
        profiled.collector.collect(&profiled.inbox, true);
        assert_eq!(profiled.time_of(stream), 750_000 - 110_000);
    }

    #[test]
    fn begin_is_asked_for_before_the_operation_is_ended() {
        let mut profiled = Profiled::new();
        let clock = Clock::new(SELDOM);
        let (id, device, priority) = (next_timeline_id(), clock.device(), StreamPriority::Normal);
        let queue = QueueKey { id, device, priority, simulated: false };
        let mut named = NamedOperation::new(queue, "one".into(), OperationKind::Kernel, 0);
        let begin = OpenBegin::new(Stamp::new(Arc::clone(&clock) as _, 110_000));
        profiled.inbox.begun(&begin);
        clock.reached.store(0, Ordering::Relaxed);
        profiled.collector.collect(&profiled.inbox, false);
        clock.reached.store(u64::MAX, Ordering::Relaxed);
        profiled.collector.collect(&profiled.inbox, false);
        // By now it is long ago.
        clock.is_coarse.store(true, Ordering::Relaxed);
        named.time = NamedTime::Stamped(begin, Stamp::new(Arc::clone(&clock) as _, 900_000));
        profiled.inbox.push(Message::Named(named, 1));
        profiled.collector.collect(&profiled.inbox, true);
        assert_eq!(profiled.time_of(id), 750_000 - 110_000);
    }

    #[test]
    fn spans_of_streams_that_are_read_one_after_the_other_are_all_busy() {
        const EACH: u64 = 3000;
        let mut profiled = Profiled::of(1 << 13);
        let clock = Clock::new(Duration::ZERO);
        let queues = [(); 2].map(|()| next_timeline_id());
        for at in (0..EACH).map(|index| index * 100) {
            profiled.push(queues[0], &clock, (at, at + 10));
            profiled.push(queues[1], &clock, (at + 50, at + 60));
        }
        profiled.collector.collect(&profiled.inbox, true);
        let report = profiled.collector.report(OperationSampling::ALL, 0, &KnownCosts::default());
        let busy = report.directions.iter().map(|it| (it.busy_ns, it.is_cut));
        assert_eq!(busy.collect::<Vec<_>>(), [(2 * EACH * 10, false)]);
    }
}
