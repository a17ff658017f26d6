//! From a device's clock to the host's: interpolation between anchors.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use transload_core::{ClockAnchor, ClockId, DeviceClock, Result};

use crate::ClockReport;

/// Anchors kept; with the usual interval of 2 s, those of the last half minute.
const KEPT: usize = 16;
/// Largest difference between the rates of two clocks that both count nanoseconds. Oscillators differ by some hundred millionths.
const LARGEST_DRIFT: f64 = 2_000e-6;
/// Difference between the rates that is reckoned with until it is known better, and change of it while it is.
const DRIFT: f64 = 500e-6;
const STEADY: f64 = 20e-6;
/// Shortest time between anchors over which the difference is judged: the anchors' own errors are far below the largest one.
const JUDGED_FROM_NS: i64 = 50_000_000;
/// How far back a clock is set at least: readings of one that is not set may differ by less.
const SET_BACK_NS: u64 = 100_000;

/// An instant on the host's clock, in nanoseconds since the profiler began, and the largest error of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostInstant {
    pub(crate) at: i64,
    pub(crate) error: u64,
}

impl HostInstant {
    /// Returns by how much the begin of an operation is later than this: nothing begins before it was enqueued, so a difference up to the error is the
    /// clock's.
    pub(crate) fn late_by(self, enqueued: i64) -> i64 {
        let most = i64::try_from(self.error).unwrap_or(0);
        enqueued.saturating_sub(self.at).clamp(0, most)
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    device: i64,
    host: i64,
    error: u64,
}

/// A clock and what is known of it.
pub(crate) struct ClockMap {
    clock: Arc<dyn DeviceClock>,
    origin: Instant,
    points: VecDeque<Point>,
    read: Instant,
    /// The reading from which its rate is judged next.
    judged: Option<Point>,
    /// Whether its rate is not that of the host's clock, as virtual time's.
    is_unrelated: bool,
    /// Whether it was set while it was read, so that its instants cannot be told apart.
    was_set: bool,
}

impl ClockMap {
    /// Reads the clock once.
    pub(crate) fn new(clock: Arc<dyn DeviceClock>, origin: Instant) -> Result<Self> {
        let anchor = clock.anchor()?;
        let (points, read) = (VecDeque::new(), anchor.after);
        let mut map = Self { clock, origin, points, read, judged: None, is_unrelated: false, was_set: false };
        map.add(anchor);
        Ok(map)
    }

    pub(crate) fn id(&self) -> ClockId {
        self.clock.id()
    }

    /// Returns whether nothing else has the clock of a device: neither its backend nor a stamp.
    pub(crate) fn is_last_holder(&self) -> bool {
        !self.clock.device().is_cpu() && Arc::strong_count(&self.clock) == 1
    }

    pub(crate) fn report(&self) -> ClockReport {
        ClockReport {
            device: self.clock.device(),
            error_ns: self.error(),
            follows_host: !self.is_unrelated(),
        }
    }

    /// Returns whether the clock should be read again.
    pub(crate) fn is_due(&self) -> bool {
        self.clock.anchor_interval().is_some_and(|interval| self.read.elapsed() * 2 >= interval)
    }

    /// Reads the clock again.
    pub(crate) fn read(&mut self) -> Result<()> {
        let anchor = self.clock.anchor()?;
        self.read = anchor.after;
        self.add(anchor);
        Ok(())
    }

    pub(crate) fn add(&mut self, anchor: ClockAnchor) {
        let (before, after) = (self.since_origin(anchor.before), self.since_origin(anchor.after));
        let half = (after - before).max(0) / 2;
        let point = Point { device: anchor.device, host: before + half, error: half.cast_unsigned() };
        if let Some(last) = self.points.back() {
            // A clock runs backwards only if it is set, as the host's time of day may be.
            let back = last.device.saturating_sub(point.device);
            let least = SET_BACK_NS + last.error + point.error;
            self.was_set |= u64::try_from(back).is_ok_and(|back| back > least);
            if point.device <= last.device || point.host <= last.host {
                return;
            }
        }
        // However often it is read.
        let from = *self.judged.get_or_insert(point);
        if point.host - from.host >= JUDGED_FROM_NS {
            let (device, host) = (point.device.saturating_sub(from.device), point.host - from.host);
            let most = host as f64 * LARGEST_DRIFT + (from.error + point.error) as f64;
            self.is_unrelated = device.abs_diff(host) as f64 > most;
            // One of the host has no rate of its own.
            self.was_set |= self.is_unrelated && self.clock.device().is_cpu();
            self.judged = Some(point);
        }
        if self.points.len() == KEPT {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Returns whether the clock counts something else than the host's time.
    pub(crate) fn is_unrelated(&self) -> bool {
        self.is_unrelated || self.was_set
    }

    /// Returns the largest error of the readings that are kept, in nanoseconds, with the clock's resolution: an instant between two has that of the wider one.
    pub(crate) fn error(&self) -> u64 {
        let widest = self.points.iter().map(|point| point.error).max();
        let error = widest.unwrap_or(0).saturating_add(self.resolution());
        if self.was_set { u64::MAX } else { error }
    }

    /// Returns whether an instant lies before the last reading, so that it is interpolated and not extrapolated.
    pub(crate) fn covers(&self, device: i64) -> bool {
        let rate_is_known = self.points.len() > 1;
        self.clock.anchor_interval().is_none()
            || rate_is_known && self.points.back().is_some_and(|last| device <= last.device)
    }

    /// Converts an instant: between two readings by interpolation, else from the nearest one by the rate between the first and the last.
    pub(crate) fn convert(&self, device: i64) -> HostInstant {
        let (Some(&first), Some(&last)) = (self.points.front(), self.points.back()) else {
            return HostInstant { at: device, error: u64::MAX };
        };
        if self.clock.anchor_interval().is_none() && !transload_core::mutant!("profiler/hosts-own-clock") {
            // It is the host's own.
            return HostInstant { at: last.host + (device - last.device), error: self.error() };
        }
        let rate =
            |low: Point, high: Point| (high.host - low.host) as f64 / (high.device - low.device) as f64;
        let index = self.points.partition_point(|point| point.device <= device);
        let before = index.checked_sub(1).and_then(|index| self.points.get(index));
        let (near, rate, error) = match (before, self.points.get(index)) {
            (Some(&low), Some(&high)) => (low, rate(low, high), low.error.max(high.error)),
            (outside, _) => {
                let near = outside.copied().unwrap_or(first);
                let open = first.error.saturating_add(last.error).saturating_add(2 * self.resolution());
                let uncertain = STEADY + open as f64 / (last.host - first.host) as f64;
                let (rate, uncertain) =
                    if uncertain < DRIFT { (rate(first, last), uncertain) } else { (1.0, DRIFT) };
                let beyond = match transload_core::mutant!("profiler/extrapolation") {
                    false => (device - near.device).unsigned_abs() as f64 * uncertain,
                    true => 0.0,
                };
                (near, rate, near.error.saturating_add(beyond as u64))
            }
        };
        let at = near.host + ((device - near.device) as f64 * rate).round() as i64;
        let error = if self.was_set { u64::MAX } else { error.saturating_add(self.resolution()) };
        HostInstant { at, error }
    }

    fn resolution(&self) -> u64 {
        nanoseconds(self.clock.resolution())
    }

    fn since_origin(&self, instant: Instant) -> i64 {
        since(self.origin, instant)
    }
}

/// Returns nanoseconds from `origin` to `instant`; negative if that was before.
pub(crate) fn since(origin: Instant, instant: Instant) -> i64 {
    let whole = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match instant.checked_duration_since(origin) {
        Some(span) => whole(span),
        None => -whole(origin.saturating_duration_since(instant)),
    }
}

pub(crate) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, Stamp};

    use super::*;

    /// The time of day, whose points a test adds.
    struct TimeOfDay(ClockId, Instant);

    impl DeviceClock for TimeOfDay {
        fn id(&self) -> ClockId {
            self.0
        }

        fn device(&self) -> DeviceId {
            DeviceId::Cpu
        }

        fn resolution(&self) -> Duration {
            Duration::from_nanos(1)
        }

        fn time(&self, _: u64) -> Result<Option<i64>> {
            Ok(None)
        }

        fn release(&self, _: u64) {}

        fn anchor(&self) -> Result<ClockAnchor> {
            Ok(ClockAnchor { device: 0, before: self.1, after: self.1 })
        }

        fn anchor_interval(&self) -> Option<Duration> {
            Some(Duration::from_secs(2))
        }
    }

    fn time_of_day(origin: Instant) -> Arc<dyn DeviceClock> {
        Arc::new(TimeOfDay(ClockId::next(), origin))
    }

    #[test]
    fn inexact_readings_do_not_make_a_clock_unrelated() {
        let origin = Instant::now();
        let clock = time_of_day(origin);
        let at = |milliseconds| origin + Duration::from_millis(milliseconds);
        let reading = |device: i64, before, after| ClockAnchor {
            device: device * 1_000_000,
            before: at(before),
            after: at(after),
        };
        let mut map = ClockMap::new(clock, origin).unwrap();
        let begin = 1_000_000;
        map.add(reading(begin, begin as u64, begin as u64));
        // It was read at the begin of 20 ms in which a busy device held it up: a tenth more than the middle says.
        map.add(reading(begin + 100, 1_000_100, 1_000_120));
        assert!(!map.is_unrelated());
        map.add(reading(begin + 400, 1_000_200, 1_000_200));
        assert!(map.is_unrelated(), "it counts something else");
    }

    #[test]
    fn begin_is_no_later_than_its_enqueueing_says_and_only_within_the_error() {
        let late_by = |error, enqueued| HostInstant { at: 100, error }.late_by(enqueued);
        assert_eq!([late_by(10, 50), late_by(10, 105), late_by(10, 200)], [0, 5, 10]);
        assert_eq!(late_by(u64::MAX, 200), 0, "of no bounded error nothing is known");
    }

    #[test]
    fn clock_that_is_set_back_or_forward_states_no_bounded_error_from_then_on() {
        let origin = Instant::now();
        let clock = time_of_day(origin);
        let second = 1_000_000_000;
        let reading = |device: i64, host| ClockAnchor {
            device: device * second,
            before: origin + Duration::from_secs(host),
            after: origin + Duration::from_secs(host),
        };
        for set in [-3600, 3600] {
            let mut map = ClockMap::new(Arc::clone(&clock), origin).unwrap();
            // Far from what it says by itself.
            map.points.clear();
            map.judged = None;
            [100_000, 100_002, 100_004].into_iter().for_each(|at| map.add(reading(at, at.cast_unsigned())));
            assert!(!map.is_unrelated() && map.error() < 2000 && map.convert(100_001 * second).error < 2000);
            map.add(reading(100_006 + set, 100_006));
            assert!(map.is_unrelated() && map.error() == u64::MAX, "set by {set} s");
            map.add(reading(100_008 + set, 100_008));
            // It may be from before.
            assert!(map.is_unrelated() && map.convert((100_007 + set) * second).error == u64::MAX);
        }
    }

    #[test]
    fn instants_of_the_host_are_exact_however_late() {
        let origin = Instant::now();
        let clock = Arc::clone(Stamp::of_host(origin).clock());
        let map = ClockMap::new(Arc::clone(&clock), origin).unwrap();
        let now = clock.anchor().unwrap();
        let hour = 3_600_000_000_000;
        let later = map.convert(now.device + hour);
        assert_eq!(later.error, map.error());
        assert!(later.at.abs_diff(since(origin, now.before) + hour) <= 1_000_000, "{later:?}");
    }

    #[test]
    fn instants_have_the_error_of_the_readings_around_them_or_of_the_extrapolation() {
        let origin = Instant::now();
        let clock = time_of_day(origin);
        let at = |microseconds: i64| origin + Duration::from_micros(microseconds.cast_unsigned());
        // It gains 100 millionths, and is read over so many microseconds.
        let reading = |microseconds: i64, width: i64| ClockAnchor {
            device: microseconds * 1000 + microseconds / 10,
            before: at(microseconds - width / 2),
            after: at(microseconds + width / 2),
        };
        let mut map = ClockMap::new(clock, origin).unwrap();
        map.points.clear();
        map.judged = None;
        let resolution = map.resolution();
        let second = 1_000_000;
        map.add(reading(second, 40));
        // Its rate is not known: half a millisecond a second.
        let live = map.convert(reading(2 * second, 0).device);
        assert_eq!((live.error - resolution) / 1000, 20 + 500);
        assert!(live.at.abs_diff(2_000_000_000) <= live.error);
        for (seconds, width) in [(2, 6), (3, 10)] {
            map.add(reading(seconds * second, width));
        }
        assert_eq!(map.error(), 20_000 + resolution, "the widest of those that are kept");
        // Between two readings it is the wider one's.
        for (microseconds, error) in [(1_500_000, 20_000), (2_500_000, 5_000)] {
            let converted = map.convert(reading(microseconds, 0).device);
            assert_eq!(converted.error, error + resolution);
            assert!(converted.at.abs_diff(microseconds * 1000) <= 1, "{converted:?}");
        }
        // A live value has 20 µs more for each second since the last reading, and what the first and the last one leave open of the rate: 25 µs in 2 s.
        let live = map.convert(reading(5 * second, 0).device);
        assert_eq!((live.error - resolution) / 1000, 5 + 40 + 25, "{live:?}");
        assert!(live.at.abs_diff(5_000_000_000) <= live.error);
    }

    #[test]
    fn extrapolated_instants_lie_within_their_error_whatever_the_readings_were_off_by() {
        let begin = Instant::now();
        let mut map = ClockMap::new(time_of_day(begin), begin).unwrap();
        map.points.clear();
        map.judged = None;
        // The first was read at the begin of its 40 µs, and the second one at the end.
        for (at, [before, after]) in [(1_000_000, [0, 40]), (1_060_000, [40, 0])] {
            let host = |by: u64| Duration::from_micros(by);
            let at = begin + Duration::from_micros(at);
            let (device, before) = (since(begin, at), at - host(before));
            map.add(ClockAnchor { device, before, after: at + host(after) });
        }
        let live = map.convert(2_000_000_000);
        assert!(live.at.abs_diff(2_000_000_000) <= live.error, "{live:?}");
    }

    #[test]
    fn rate_is_judged_however_often_the_clock_is_read() {
        let begin = Instant::now();
        let reading = |milliseconds: u64| ClockAnchor {
            device: 2 * (milliseconds * 1_000_000) as i64,
            before: begin + Duration::from_millis(milliseconds),
            after: begin + Duration::from_millis(milliseconds),
        };
        let mut map = ClockMap::new(time_of_day(begin), begin).unwrap();
        map.points.clear();
        map.judged = None;
        (1..=200).step_by(5).for_each(|at| map.add(reading(at)));
        assert!(map.is_unrelated());
    }
}
