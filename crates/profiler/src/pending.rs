//! Operations until they are counted: first with the stamps of the device, then with instants that wait for a reading of their clock.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::Arc,
    time::Instant,
};

use transload_core::{ClockId, DeviceClock, OperationId, OperationInfo, Stamp, TimelineId, TransferId};

use crate::{clock_map::ClockMap, inbox::QueueKey};

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

/// An operation whose instants are not known.
pub(crate) struct Pending {
    pub(crate) operation: Enqueued,
    pub(crate) begin: Stamp,
    pub(crate) end: Stamp,
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
    pub(crate) resolved: VecDeque<Resolved>,
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
                Some(place.insert(Self { map, resolved: VecDeque::new(), is_unread: false }))
            }
        }
    }

    /// Reads the clock if that is due, if `all` is wanted, or if what waits takes too much room. Moves what can be counted to `ready`.
    pub(crate) fn take_ready(&mut self, all: bool, is_crowded: bool, ready: &mut Vec<(ClockId, Resolved)>) {
        if all || is_crowded && !self.resolved.is_empty() || self.map.is_due() {
            self.is_unread = self.map.read().is_err();
        }
        // Without a reading, times are extrapolated: of a clock that is lost, none will come.
        let all = all || self.is_unread || self.map.is_last_holder();
        let count = self.resolved.iter().take_while(|one| all || self.map.covers(one.end)).count();
        let id = self.map.id();
        ready.extend(self.resolved.drain(..count).map(|resolved| (id, resolved)));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64, Ordering},
        time::Duration,
    };

    use transload_core::{
        ClockAnchor, DeviceId, Error, ErrorKind, KnownCosts, OperationKind, OperationSampling, Result,
        StreamPriority, TimelineId, next_timeline_id,
    };

    use super::*;
    use crate::{
        collector::Collector,
        inbox::{Inbox, Message, NamedOperation, NamedTime},
    };

    /// Of which a token is the instant itself.
    struct Clock {
        id: ClockId,
        interval: Duration,
        is_reached: AtomicBool,
        is_lost: AtomicBool,
        read: AtomicU64,
        origin: Instant,
    }

    impl Clock {
        fn new(interval: Duration) -> Arc<Self> {
            let [is_reached, is_lost] = [true, false].map(AtomicBool::new);
            let (id, read, origin) = (ClockId::next(), AtomicU64::new(0), Instant::now());
            Arc::new(Self { id, interval, is_reached, is_lost, read, origin })
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
            Ok(Some(token.cast_signed()).filter(|_| self.is_reached.load(Ordering::Relaxed)))
        }

        fn release(&self, _: u64) {}

        fn anchor(&self) -> Result<ClockAnchor> {
            if self.is_lost.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Device, "lost"));
            }
            self.read.fetch_add(1, Ordering::Relaxed);
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
            let inbox = Inbox::new(64, OperationSampling::ALL);
            Self { inbox, collector: Collector::new(Instant::now(), 64) }
        }

        fn operation(&self, clock: &Arc<Clock>, at: u64) -> TimelineId {
            self.span(clock, (at, at))
        }

        fn span(&self, clock: &Arc<Clock>, (begin, end): (u64, u64)) -> TimelineId {
            let (id, priority) = (next_timeline_id(), StreamPriority::Normal);
            let queue = QueueKey { id, device: clock.device(), priority, simulated: false };
            let mut named = NamedOperation::new(queue, "one".into(), OperationKind::Kernel, 0);
            let [begin, end] = [begin, end].map(|at| Stamp::new(Arc::clone(clock) as _, at));
            named.time = NamedTime::Stamped(begin, end);
            self.inbox.push(Message::Named(named, 1));
            id
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
        clock.is_reached.store(false, Ordering::Relaxed);
        let stream = profiled.operation(&clock, 0);
        profiled.timed(stream);
        assert_eq!(clock.read.load(Ordering::Relaxed), 1);
    }
}
