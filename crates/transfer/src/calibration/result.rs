//! What a calibration found.

use std::{sync::Arc, time::Duration};

use transload_core::{
    CostBasis, CostModel, Error, ErrorKind, KnownCosts, ListCost, PathCost, Result, TransferMethod,
    TransferPath,
};

use super::{
    crossing::{Crossing, find},
    lists::ListCalibration,
    measure_beside, measure_lists,
    staging::StagingCalibration,
};
use crate::CrossBackendTransferManager;

/// Sizes above this are no measurements, in bytes.
pub(super) const LARGEST: u64 = 1 << 50;
/// A size beyond all others, in bytes.
const FAR: u64 = 1 << 60;
/// Times above this are no measurements of a copy.
pub(super) const LONGEST: Duration = Duration::from_secs(1 << 20);

/// What [`CrossBackendTransferManager::calibrate`] measured. With the feature `serde` it can be kept, on the same machine.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "it says which paths could not be finished"]
pub struct Calibration {
    /// The paths that were measured.
    pub paths: Vec<PathCalibration>,
    /// The lists that were measured.
    pub lists: Vec<ListCalibration>,
    /// What staging is divided by over each device's link. A device is missing if the user set its values, if a copy failed, or if none of the
    /// copies that they are chosen by fits [`CalibrationOptions::largest`](super::CalibrationOptions::largest).
    pub staging: Vec<StagingCalibration>,
    /// The paths that were not finished. They keep the costs that they had, unless they are in [`paths`](Self::paths) too, with the sizes for which
    /// memory was free, or in [`lists`](Self::lists), of which some could not be measured.
    pub unfinished: Vec<Unfinished>,
    /// Time of the calibration.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_seconds", with = "transload_core::serde_seconds"))]
    pub elapsed: Duration,
    /// Whether any of its copies ran on a software driver.
    pub simulated: bool,
}

/// Measured times of the methods of a path.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PathCalibration {
    /// Source and destination.
    pub path: TransferPath,
    /// A curve for each method that could be used.
    pub methods: Vec<MethodCurve>,
}

/// Measured times of one method.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MethodCurve {
    /// Transfer method.
    pub method: TransferMethod,
    /// Times by ascending size.
    pub times: Vec<MeasuredTime>,
}

/// The time of copies of one size, from before the submission until the thread that waited goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MeasuredTime {
    /// Bytes of each copy.
    pub bytes: u64,
    /// The median.
    #[cfg_attr(feature = "serde", serde(rename = "median_seconds", with = "transload_core::serde_seconds"))]
    pub median: Duration,
    /// Half the width of the interval in which the true median lies with a probability of 95 %: the noise.
    #[cfg_attr(feature = "serde", serde(rename = "noise_seconds", with = "transload_core::serde_seconds"))]
    pub noise: Duration,
    /// Number of measurements.
    pub repetitions: u32,
}

/// A path that a calibration did not finish.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Unfinished {
    /// Source and destination.
    pub path: TransferPath,
    /// Whether its lists were not, while single copies were.
    pub lists_only: bool,
    /// Why it was not finished.
    pub reason: UnfinishedReason,
}

/// Why a path was not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum UnfinishedReason {
    /// The budget of its pair of devices was spent.
    Budget,
    /// The callback ended the calibration.
    Cancelled,
    /// Too little memory was free: the error's text.
    OutOfMemory(String),
    /// An allocation or a copy failed otherwise: the error's text.
    Failed(String),
}

impl std::fmt::Display for UnfinishedReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Budget => f.write_str("the time for its pair of devices was spent"),
            Self::Cancelled => f.write_str("the calibration was cancelled"),
            Self::OutOfMemory(error) | Self::Failed(error) => f.write_str(error),
        }
    }
}

impl Calibration {
    /// Returns the measured costs.
    #[must_use]
    pub fn costs(&self) -> Vec<PathCost> {
        self.paths.iter().flat_map(PathCalibration::costs).collect()
    }

    /// Returns the measured costs of lists.
    #[must_use]
    pub fn list_costs(&self) -> Vec<ListCost> {
        list_costs(&self.lists, &self.paths).collect()
    }

    /// Adds the paths, the lists of paths on idle devices and those beside kernels, and the devices' values of staging, of an earlier
    /// calibration that this one does not have. An unfinished path has the earlier times if these are of larger copies. Returns what was added.
    pub fn keep_from(&mut self, earlier: Self) -> KeptCalibration {
        let is_longer = |new: &mut PathCalibration| {
            let is_longer = |old: &PathCalibration| old.path == new.path && old.largest() > new.largest();
            self.unfinished.iter().any(|unfinished| !unfinished.lists_only && unfinished.path == new.path)
                && earlier.paths.iter().any(is_longer)
        };
        let replaced = self.paths.extract_if(.., is_longer).map(|path| path.path).collect();
        let missing = |old: &ListCalibration| !self.has_lists(old.path, old.exclusive);
        let lists: Vec<_> = earlier.lists.into_iter().filter(missing).collect();
        let missing = |old: &PathCalibration| self.paths.iter().all(|new| new.path != old.path);
        let kept: Vec<_> = earlier.paths.into_iter().filter(missing).collect();
        let missing = |old: &StagingCalibration| self.staging.iter().all(|new| new.device != old.device);
        let staging: Vec<_> = earlier.staging.into_iter().filter(missing).collect();
        let is_kept = !(kept.is_empty() && lists.is_empty() && staging.is_empty());
        self.simulated |= earlier.simulated && is_kept;
        self.paths.extend(kept.iter().cloned());
        self.lists.extend(lists.iter().cloned());
        self.staging.extend(staging.iter().cloned());
        let is_of_lists = |measured: &&PathCalibration| lists.iter().any(|list| list.path == measured.path);
        let singles = self.paths.iter().filter(is_of_lists).cloned().collect();
        KeptCalibration { paths: kept, replaced, lists, singles, staging }
    }

    /// Returns why single copies of a path were not finished.
    pub(super) fn unfinished_of(&self, path: TransferPath) -> Option<&Unfinished> {
        self.unfinished.iter().find(|unfinished| !unfinished.lists_only && unfinished.path == path)
    }

    /// Returns whether it has all lists of a path on an idle device, or beside kernels. Those on an idle device may be measured while there is no
    /// time left for the others.
    fn has_lists(&self, path: TransferPath, exclusive: bool) -> bool {
        // Copies may be too short for any list.
        let can_have = |measured: &PathCalibration| match (exclusive, measured.largest().unwrap_or(0)) {
            _ if transload_core::mutant!("transfer/short-calibration-forgets-lists") => true,
            (true, most) => measure_lists::shapes(most).next().is_some(),
            (false, most) => measure_beside::shapes(most).next().is_some(),
        };
        let is_finished = self.paths.iter().any(|measured| measured.path == path && can_have(measured))
            && self.unfinished.iter().all(|unfinished| unfinished.path != path);
        is_finished || self.lists.iter().any(|list| (list.path, list.exclusive) == (path, exclusive))
    }

    /// Checks that it can be what a machine was measured to do.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if not, with the path and the value.
    pub fn check(&self) -> Result<()> {
        for PathCalibration { path, methods } in &self.paths {
            for MethodCurve { method, times } in methods {
                let invalid = |text: String| {
                    Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!("no calibration: {path} by {method} has {text}"),
                    ))
                };
                if !TransferMethod::ALL.contains(method) {
                    return invalid("no path: it is no method of transfers".to_owned());
                }
                if !times.is_sorted_by(|a, b| a.bytes < b.bytes) || times.len() < 2 {
                    return invalid("times that are not at least two of ascending sizes".to_owned());
                }
                if let Some(time) = times.iter().find(|time| !is_time(time)) {
                    return invalid(format!("a time of {:?} for {} bytes", time.median, time.bytes));
                }
            }
        }
        self.lists.iter().try_for_each(ListCalibration::check)?;
        self.staging.iter().try_for_each(StagingCalibration::check)
    }
}

/// What a calibration has of an earlier one.
#[derive(Clone, Debug)]
pub struct KeptCalibration {
    paths: Vec<PathCalibration>,
    /// Those of them of which the later one has measured shorter copies only.
    replaced: Vec<TransferPath>,
    lists: Vec<ListCalibration>,
    /// The single copies of the paths of these lists, kept or not.
    singles: Vec<PathCalibration>,
    staging: Vec<StagingCalibration>,
}

/// Returns the costs of lists of these paths.
fn list_costs<'a>(
    lists: impl IntoIterator<Item = &'a ListCalibration>,
    paths: &[PathCalibration],
) -> impl Iterator<Item = ListCost> {
    let singles = |path| paths.iter().find(|measured| measured.path == path);
    lists.into_iter().filter_map(move |list| list.cost_beside(singles(list.path)))
}

/// Returns whether it can be the size of a copy, in bytes.
pub(super) fn is_size(bytes: u64) -> bool {
    (1..=LARGEST).contains(&bytes)
}

/// Returns whether it can be the time of a copy.
pub(super) fn is_time(time: &MeasuredTime) -> bool {
    is_size(time.bytes) && (Duration::from_nanos(1)..=LONGEST).contains(&time.median)
}

impl PathCalibration {
    fn costs(&self) -> impl Iterator<Item = PathCost> {
        let path = self.path;
        self.methods
            .iter()
            .filter_map(move |curve| Some(PathCost { path, method: curve.method, model: curve.model()? }))
    }

    /// Returns the fastest method of a single copy, and its time, as a function of the bytes. ZeroCopy, which is not chosen by its times,
    /// counts only if it is the only one.
    pub(super) fn fastest(&self) -> impl Fn(u64) -> Option<(TransferMethod, Duration)> + use<> {
        let models = self.methods.iter().filter_map(|curve| Some((curve.method, curve.model()?)));
        let models: Vec<_> = models.collect();
        move |bytes| {
            let times = models.iter().map(|(method, model)| (*method, model.predict(bytes)));
            times.min_by_key(|(method, time)| (*method == TransferMethod::ZeroCopy, *time))
        }
    }

    /// Returns the bytes of the largest measured copy.
    fn largest(&self) -> Option<u64> {
        self.methods.iter().filter_map(|curve| curve.times.last()).map(|time| time.bytes).max()
    }

    /// Returns the sizes at which the fastest method changes, by the measured times. ZeroCopy, which is not chosen by them, counts only
    /// if it is the only one.
    #[must_use]
    pub fn crossings(&self) -> Vec<Crossing> {
        let fastest = self.fastest();
        let none = || Error::new(ErrorKind::Unsupported, "no method");
        // Without a method nothing crosses.
        find(|bytes| fastest(bytes).map(|(method, _)| method).ok_or_else(none)).unwrap_or_default()
    }
}

impl MethodCurve {
    /// Returns the curve through the times. Below the first size it is constant. Beyond the last it is proportional to the size, so
    /// that noise in the last times cannot change which method is the fastest there.
    fn model(&self) -> Option<CostModel> {
        let mut points: Vec<_> = self.times.iter().map(|time| (time.bytes, time.median)).collect();
        let (first, last) = (*points.first()?, *points.last()?);
        let far = last.1.as_secs_f64() * (FAR as f64 / last.0 as f64);
        points.push((0, first.1));
        points.push((FAR, Duration::try_from_secs_f64(far).unwrap_or(Duration::MAX)));
        CostModel::through(&points)
    }
}

impl CrossBackendTransferManager {
    /// Uses the costs and the values of staging of a calibration, from now on, with [`CostBasis::Measured`]. Those of the user, set by
    /// [`set_costs`](Self::set_costs) and [`set_staging_tuning`](Self::set_staging_tuning), stay. Of the paths that it has, what was measured
    /// before and is not in it is no longer used: such a method, or way of lists, could not be used any more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it can be no measurement, such as one read from a damaged file; nothing changes then.
    pub fn use_calibration(&self, calibration: &Calibration) -> Result<()> {
        calibration.check()?;
        self.registry.set_costs(calibration.costs(), CostBasis::Measured);
        let are_replaced = |path, exclusive| calibration.has_lists(path, exclusive);
        self.context.costs.set_measured_lists(calibration.list_costs(), are_replaced);
        for StagingCalibration { device, tuning, .. } in &calibration.staging {
            // Without its backend, nothing goes to or from a device.
            if let Ok(ring) = self.staging_ring(*device) {
                ring.set_tuning(*tuning, CostBasis::Measured);
            }
        }
        Ok(())
    }

    /// Uses what a calibration of this manager that is in use now has [kept](Calibration::keep_from) of an earlier one, which is
    /// [no damaged one](Calibration::check). What is measured, corrected or set by the user stays.
    pub fn use_kept(&self, kept: &KeptCalibration) {
        let KeptCalibration { paths, replaced, lists, singles, staging } = kept;
        let known = self.costs();
        let is_known = |path: TransferPath| {
            known.iter().any(|(cost, basis)| cost.path == path && *basis != CostBasis::BuiltIn)
        };
        let used = paths.iter().filter(|of| {
            replaced.contains(&of.path)
                || !is_known(of.path)
                || transload_core::mutant!("transfer/newer-costs-stay")
        });
        self.registry.set_costs(used.flat_map(PathCalibration::costs).collect(), CostBasis::Measured);
        let known = self.list_costs();
        let is_known = |path: TransferPath, exclusive: bool| {
            let of_path = |cost: &ListCost| (cost.path, cost.exclusive) == (path, exclusive);
            known.iter().any(|(cost, basis)| of_path(cost) && *basis != CostBasis::BuiltIn)
        };
        let used = lists.iter().filter(|list| !is_known(list.path, list.exclusive));
        self.context.costs.set_lists(list_costs(used, singles).collect(), CostBasis::Measured);
        for StagingCalibration { device, tuning, .. } in staging {
            if let Ok(ring) = self.staging_ring(*device)
                && ring.tuning().1 == CostBasis::BuiltIn
            {
                ring.set_tuning(*tuning, CostBasis::Measured);
            }
        }
    }

    /// Returns the costs that methods are chosen by, each with its origin, sorted by path and method. Methods without an entry count
    /// as slow: 100 µs and 1 GB/s.
    #[must_use]
    pub fn costs(&self) -> Vec<(PathCost, CostBasis)> {
        self.registry.costs()
    }

    /// Returns the costs that the ways of lists are chosen by, each with its origin, sorted by path and way.
    #[must_use]
    pub fn list_costs(&self) -> Vec<(ListCost, CostBasis)> {
        self.context.costs.table().all_lists()
    }

    /// Returns a function that returns [`costs`](Self::costs) and [`list_costs`](Self::list_costs) as they are then, such as for a profiler's
    /// advice. It keeps neither the manager nor a backend alive: `None` once all handles of the manager were dropped.
    pub fn costs_reader(&self) -> impl Fn() -> Option<KnownCosts> + Send + use<> {
        let context = Arc::downgrade(&self.context);
        move || {
            let table = context.upgrade()?.costs.table();
            Some(KnownCosts { paths: table.list(), lists: table.all_lists() })
        }
    }

    /// Sets costs of lists, which stay, whatever is measured, like those of [`set_costs`](Self::set_costs).
    pub fn set_list_costs(&self, costs: Vec<ListCost>) {
        self.context.costs.set_lists(costs, CostBasis::User);
    }
}
