//! Measures by which sizes and numbers of threads staging is fastest over a device's link: one value after another, from the built-in
//! ones on.

use std::{iter, sync::Arc, time::Duration};

use transload_core::{CostBasis, MemoryKind, Place, RawBuffer, TransferMethod, TransferPath};
use transload_executor::processors;

use super::{
    StagingCalibration, StagingTime,
    measure::{Run, Stop},
    sample::Sample,
};
use crate::{StagingTuning, TransferOptions, staging::StagingRing};

const MIB: u64 = 1 << 20;
/// The largest buffers, in bytes: those of copies of 32 MiB.
const LARGEST: u64 = 64 * MIB;
/// The part of a pair's time that the values of one direction may use.
const SHARE: u32 = 20;
/// Copies of each size by each value, after one to warm up.
const ROUNDS: usize = 5;
/// Ratio of times up to which one value is faster than another, and of two sizes both count.
const FASTER: f64 = 0.97;

/// A value of [`StagingTuning`].
struct Value {
    /// Bytes of the copies by which it is chosen. Only those that fit the calibration's buffers are made.
    copies: &'static [u64],
    choices: &'static [u32],
    are_threads: bool,
    set: fn(&mut StagingTuning, u32),
}

/// The values of uploads and of downloads, most important first.
const VALUES: [&[Value]; 2] = [
    &[
        Value {
            copies: &[3 * MIB, 24 * MIB],
            choices: &[256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20],
            are_threads: false,
            set: |tuning, bytes| tuning.upload_segment = bytes.into(),
        },
        Value {
            copies: &[3 * MIB],
            choices: &[1, 2, 4, 6, 8, 12],
            are_threads: true,
            set: |tuning, threads| tuning.short_threads = threads,
        },
        Value {
            copies: &[24 * MIB],
            choices: &[2, 4, 6, 8, 12],
            are_threads: true,
            set: |tuning, threads| tuning.long_threads = threads,
        },
    ],
    &[
        Value {
            copies: &[6 * MIB, 24 * MIB],
            choices: &[256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20],
            are_threads: false,
            set: |tuning, bytes| tuning.download_segment = bytes.into(),
        },
        Value {
            copies: &[32 * MIB],
            choices: &[4, 8, 16],
            are_threads: false,
            set: |tuning, buffers| tuning.download_buffers = buffers,
        },
    ],
];

impl StagingTuning {
    /// Takes the values of uploads, or of downloads, from others.
    fn take(&mut self, other: &Self, of_uploads: bool) {
        if of_uploads {
            (self.upload_segment, self.short_threads, self.long_threads) =
                (other.upload_segment, other.short_threads, other.long_threads);
        } else {
            (self.download_segment, self.download_buffers) = (other.download_segment, other.download_buffers);
        }
    }
}

/// Sets back what a ring's transfers are divided by, when it is dropped.
struct Restored(Arc<StagingRing>, (StagingTuning, CostBasis));

impl Drop for Restored {
    fn drop(&mut self) {
        let Self(ring, (tuning, basis)) = self;
        if !transload_core::mutant!("transfer/tuning-restored") {
            ring.set_tuning(*tuning, *basis);
        }
    }
}

impl Run<'_> {
    /// Finds the values for a device, and uses them for what is measured from now on. They stay what they were if the user set them, if a
    /// copy fails, and where the time is too short.
    pub(super) fn staging(&mut self, all: &[(Place, Place)], largest: u64) {
        let is_staged = |(host, device): &&(Place, Place)| {
            host.device.is_cpu() && host.kind == MemoryKind::Pageable && !device.device.is_cpu()
        };
        let fit =
            |values: &[Value], most| values.iter().flat_map(|value| value.copies).any(|bytes| *bytes <= most);
        let Some((host, device)) = all.iter().find(is_staged).copied() else { return };
        if !VALUES.into_iter().any(|values| fit(values, largest)) {
            return;
        }
        let Ok(ring) = self.manager.staging_ring(device.device) else { return };
        let before = ring.tuning();
        if before.1 == CostBasis::User {
            return;
        }
        // Failures are told by the path's own measurements.
        let Ok(buffers) = self.buffers(host, device, largest.min(LARGEST)) else { return };
        let restored = Restored(Arc::clone(&ring), before);
        let built_in = ring.built_in_tuning();
        let mut found = StagingCalibration { device: device.device, tuning: before.0, times: Vec::new() };
        // What a method lacks is found by its first copy.
        let _ = self.manager.prepare(host, device, &TransferOptions::new());
        let (deadline, mut is_measured) = (self.deadline, false);
        let directions = [(&buffers.0, &buffers.1), (&buffers.1, &buffers.0)].into_iter().zip(VALUES);
        for (ends, values) in directions.filter(|(ends, values)| fit(values, ends.0.len() as u64)) {
            let earlier = found.tuning;
            found.tuning.take(&built_in, ends.0.place().device.is_cpu());
            let (begun, share) = (self.now(), self.options.budget / SHARE);
            let until = |part: u32| deadline.min(begun.saturating_add(share / 4 * part));
            self.deadline = until(3);
            let best = self.best(&ring, ends, values, found.tuning);
            self.deadline = until(4);
            match best.and_then(|best| self.confirm(&ring, ends, (values, best), &mut found)) {
                Ok(()) => is_measured = true,
                Err(stop) => {
                    found.tuning = earlier;
                    is_measured &= !matches!(stop, Stop::Failed(_));
                    if !matches!(stop, Stop::Budget) {
                        break;
                    }
                }
            }
        }
        self.deadline = deadline;
        drop(restored);
        // The user's own stay, and were measured instead of those that are found.
        let is_users = ring.tuning().1 == CostBasis::User;
        if is_measured && !is_users {
            ring.set_tuning(found.tuning, CostBasis::Measured);
            let devices = self.manager.devices();
            self.calibration.simulated |=
                devices.iter().any(|info| info.id == found.device && info.simulated);
            self.calibration.staging.push(found);
        }
    }

    /// Returns the values of a direction that are the fastest, each chosen after the ones before it.
    fn best(
        &mut self,
        ring: &StagingRing,
        ends: (&RawBuffer, &RawBuffer),
        values: &[Value],
        built_in: StagingTuning,
    ) -> Result<StagingTuning, Stop> {
        // The thread that waits copies too.
        let most = processors().min(ring.executor().threads() + 1);
        let mut best = built_in;
        for (number, Value { copies, choices, are_threads, set }) in values.iter().enumerate() {
            let choices = choices.iter().filter(|choice| !are_threads || **choice as usize <= most);
            let others = choices.map(|choice| {
                let mut tuning = best;
                set(&mut tuning, *choice);
                tuning
            });
            let others = others.filter(|tuning| *tuning != best);
            let tunings: Vec<_> = iter::once(best).chain(others).collect();
            let times = match self.times(ring, ends, copies, &tunings) {
                // The values before it are the most important ones.
                Err(Stop::Budget) if number > 0 => break,
                times => times?,
            };
            let Some((of_best, others)) = times.split_first() else { continue };
            let ratios = others.iter().map(|times| ratio(of_best, times));
            let fastest = tunings.iter().skip(1).zip(ratios).min_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((tuning, ratio)) = fastest
                && ratio < FASTER
            {
                best = *tuning;
            }
        }
        Ok(best)
    }

    /// Takes the best values if they are still faster than the built-in ones.
    fn confirm(
        &mut self,
        ring: &StagingRing,
        ends: (&RawBuffer, &RawBuffer),
        (values, best): (&[Value], StagingTuning),
        found: &mut StagingCalibration,
    ) -> Result<(), Stop> {
        if best == found.tuning {
            return Ok(());
        }
        let fits = |bytes: &u64| *bytes <= ends.0.len() as u64;
        let all = values.iter().flat_map(|value| value.copies).copied();
        let mut copies: Vec<u64> = all.filter(fits).collect();
        copies.sort_unstable();
        copies.dedup();
        let times = self.times(ring, ends, &copies, &[found.tuning, best])?;
        let [built_in, tuned] = times.as_slice() else { return Ok(()) };
        if ratio(built_in, tuned) < FASTER {
            found.tuning = best;
            let path = TransferPath::new(ends.0.place(), ends.1.place());
            found.times.extend(copies.iter().zip(built_in.iter().zip(tuned)).map(
                |(bytes, (built_in, tuned))| StagingTime {
                    path,
                    bytes: *bytes,
                    built_in: *built_in,
                    tuned: *tuned,
                },
            ));
        }
        Ok(())
    }

    /// Returns the times of copies of these sizes by each tuning, all in turn. Without sizes that are too large.
    fn times(
        &mut self,
        ring: &StagingRing,
        (src, dst): (&RawBuffer, &RawBuffer),
        copies: &[u64],
        tunings: &[StagingTuning],
    ) -> Result<Vec<Vec<Duration>>, Stop> {
        let copies: Vec<u64> = copies.iter().copied().filter(|bytes| *bytes <= src.len() as u64).collect();
        let mut samples: Vec<Vec<Sample>> =
            tunings.iter().map(|_| copies.iter().map(|_| Sample::default()).collect()).collect();
        if let Some(bytes) = copies.last() {
            self.tell(TransferPath::new(src.place(), dst.place()), *bytes);
        }
        for round in 0..=ROUNDS {
            for (tuning, samples) in tunings.iter().zip(&mut samples) {
                ring.set_tuning(*tuning, CostBasis::Measured);
                for (bytes, sample) in copies.iter().zip(samples) {
                    let len = usize::try_from(*bytes).unwrap_or(usize::MAX);
                    let (src, dst) = (src.slice(..len)?, dst.slice(..len)?);
                    let time = self.timed(&src, &dst, TransferMethod::HostStaged, 1)?;
                    if round > 0 {
                        sample.add(time, 1);
                    }
                }
            }
        }
        let medians = |samples: &Vec<Sample>| {
            samples.iter().zip(&copies).map(|(sample, bytes)| sample.result(*bytes).median).collect()
        };
        Ok(samples.iter().map(medians).collect())
    }
}

/// Returns the geometric mean of times over these, or infinity if one of them is longer by more than noise.
fn ratio(over: &[Duration], times: &[Duration]) -> f64 {
    let ratios = times.iter().zip(over).map(|(time, over)| time.as_secs_f64() / over.as_secs_f64());
    if ratios.clone().any(|ratio| ratio > 1.0 / FASTER) {
        return f64::INFINITY;
    }
    // Of no times it is 1.
    ratios.product::<f64>().powf(1.0 / times.len().max(1) as f64)
}
