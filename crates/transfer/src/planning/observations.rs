//! How long the transfers by a method took on a path, compared with the predictions.

use std::{ops::RangeInclusive, time::Duration};

use transload_core::{SpinLock, TransferReport};

use crate::planning::engine_queue::COUNTED_FROM;

/// Ranges of sizes from [`COUNTED_FROM`] on: each ends at twice its beginning, the last one never.
const RANGES: usize = 15;
/// Transfers of which the median counts.
const MANY: usize = 9;
/// Ratio of the median to the prediction, or the other way round, from which on the prediction is wrong.
const DRIFT: f64 = 1.15;
/// Bytes from which a lane's own time is that of the transfer, but for a few percent.
const LANE_TIMED_FROM: u64 = 16 << 20;
/// The time within which a thread that waits sees an end.
const SEEN_AT_ONCE: Duration = Duration::from_micros(10);

/// Observed times over predicted ones, by range of sizes. Locked by measured transfers only, and never waited for.
#[derive(Default)]
pub(crate) struct Observations(SpinLock<[Window; RANGES]>);

#[derive(Clone, Copy, Default)]
struct Window {
    ratios: [f64; MANY],
    count: usize,
    /// What the next try counts as, over its prediction, unless that was less before corrections.
    charge: f64,
}

impl Observations {
    /// Adds a ratio. Returns the median of the latest ones, once there are enough, if it is far from 1.
    pub(crate) fn add(&self, bytes: u64, ratio: f64) -> Option<f64> {
        let range = range_of(bytes)?;
        // If another thread adds one now, that one counts.
        let mut windows = self.0.try_lock()?;
        let window = windows.get_mut(range)?;
        *window.ratios.get_mut(window.count)? = ratio;
        window.count += 1;
        if ratio < 1.0 / DRIFT {
            window.charge = ratio;
        }
        if window.count < MANY {
            return None;
        }
        window.count = 0;
        window.ratios.sort_unstable_by(f64::total_cmp);
        let median = *window.ratios.get(MANY / 2)?;
        (!(1.0 / DRIFT..=DRIFT).contains(&median)).then_some(median)
    }

    /// Returns what the next try of a method counts as, over its prediction: `least` at first, then twice as much with each, or as the last
    /// one took if that was much less. So a correction by what was over soon is found to be wrong soon, and others cost little.
    pub(crate) fn charge(&self, bytes: u64, least: f64) -> f64 {
        let charge = |range: usize| Some(self.0.try_lock()?.get(range)?.charge);
        let known = range_of(bytes).filter(|_| !transload_core::mutant!("transfer/tries-count-as-before"));
        known.and_then(charge).map_or(1.0, |charge| charge.max(least).min(1.0))
    }

    /// Notes that a method is tried, which counts as so much.
    pub(crate) fn note_try(&self, bytes: u64, charge: f64) {
        if let Some(range) = range_of(bytes)
            && let Some(mut windows) = self.0.try_lock()
            && let Some(window) = windows.get_mut(range)
            && !transload_core::mutant!("transfer/tries-become-dear")
        {
            window.charge = 2.0 * charge;
        }
    }
}

fn range_of(bytes: u64) -> Option<usize> {
    let number = bytes.checked_ilog2()?.checked_sub(COUNTED_FROM.ilog2())?;
    usize::try_from(number).ok().map(|number| number.min(RANGES - 1))
}

/// Returns the sizes, in bytes, that have one median with `bytes`.
pub(crate) fn sizes_with(bytes: u64) -> RangeInclusive<u64> {
    let start = COUNTED_FROM << range_of(bytes).unwrap_or(0);
    let is_last = start >= COUNTED_FROM << (RANGES - 1);
    start..=if is_last { u64::MAX } else { 2 * start - 1 }
}

/// Returns the time of a measured transfer, as a calibration would have measured it. `None` if that is not known: the submission waited
/// for other work, or the end was seen late, so the time until then says nothing, and the lane's own time is not all.
pub(crate) fn time_of(report: &TransferReport) -> Option<Duration> {
    let (submitting, elapsed) = (report.submitting?, report.elapsed?);
    let moving = report.moving?;
    // A driver copies pageable memory while the transfer is submitted, but no longer than that.
    if submitting > moving + moving / 16 + SEEN_AT_ONCE
        && !transload_core::mutant!("transfer/waiting-is-not-the-link")
    {
        return None;
    }
    let lane = moving.max(submitting);
    if elapsed <= lane + lane / 16 + SEEN_AT_ONCE {
        return Some(elapsed.max(lane));
    }
    (report.bytes >= LANE_TIMED_FROM).then_some(lane)
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place, TransferMethod, TransferPath};

    use super::*;

    #[test]
    fn ranges_have_no_gaps_and_no_end() {
        assert_eq!(range_of(COUNTED_FROM - 1), None);
        for bytes in [COUNTED_FROM, COUNTED_FROM + 1, 3 << 20, (1 << 30) - 1, 1 << 30, 5 << 30, u64::MAX] {
            assert!(sizes_with(bytes).contains(&bytes), "{bytes}");
            assert_eq!(range_of(*sizes_with(bytes).start()), range_of(bytes));
            assert_eq!(range_of(*sizes_with(bytes).end()), range_of(bytes));
        }
    }

    #[test]
    fn median_of_nine_counts_and_only_if_it_is_far() {
        let seen = Observations::default();
        let add = |ratios: [f64; MANY]| {
            let mut last = None;
            for (number, ratio) in ratios.into_iter().enumerate() {
                last = seen.add(1 << 20, ratio);
                assert!(last.is_none() || number == MANY - 1, "{number}");
            }
            last
        };
        assert_eq!(add([1.0, 1.1, 0.9, 30.0, 1.0, 40.0, 50.0, 1.1, 1.0]), None, "few are far");
        assert_eq!(add([3.0, 3.0, 3.1, 1.0, 3.0, 2.9, 99.0, 3.0, 1.0]), Some(3.0));
        assert_eq!(add([0.5; MANY]), Some(0.5));
        // Sizes do not mix.
        (0..100).for_each(|power| assert_eq!(seen.add(COUNTED_FROM << (power % RANGES), 2.0), None));
    }

    #[test]
    fn only_the_links_own_time_counts() {
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
        let path = TransferPath::new(host, Place::new(DeviceId::Cuda(0), MemoryKind::Device));
        let micros = |micros: u64| Some(Duration::from_micros(micros));
        let report = |bytes, submitting, moving, elapsed| {
            let mut report =
                TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cuda(0), bytes);
            (report.submitting, report.moving, report.elapsed) =
                (micros(submitting), micros(moving), micros(elapsed));
            time_of(&report)
        };
        assert_eq!(report(1 << 20, 2, 20, 26), micros(26));
        // The caller did something else first.
        assert_eq!(report(1 << 20, 2, 20, 100), None);
        assert_eq!(report(256 << 20, 2, 5_000, 90_000), micros(5_000));
        // By a driver that copies meanwhile.
        assert_eq!(report(1 << 20, 85, 84, 88), micros(88));
        // The driver, or the submission, waited for other work.
        assert_eq!(report(256 << 10, 5_000, 30, 5_004), None);
        assert_eq!(report(256 << 20, 9_000, 5_000, 9_004), None);
        let mut unmeasured =
            TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cuda(0), 1 << 20);
        (unmeasured.submitting, unmeasured.elapsed) = (micros(1), micros(2));
        assert_eq!(time_of(&unmeasured), None);
    }
}
