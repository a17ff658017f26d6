//! What staging is divided by over each device's link.

use std::time::Duration;

use transload_core::{DeviceId, Error, ErrorKind, Result, TransferPath};

use super::result::{LONGEST, is_size};
use crate::StagingTuning;

/// How staging is fastest over a device's link.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StagingCalibration {
    /// The device.
    pub device: DeviceId,
    /// The fastest values. A direction has the built-in ones if no others are at least 3 % faster, and the earlier ones if there was no time
    /// for it.
    pub tuning: StagingTuning,
    /// Times of copies in the directions for which others than the built-in values were found.
    pub times: Vec<StagingTime>,
}

/// Medians of staged copies of one size, one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StagingTime {
    /// Source and destination.
    pub path: TransferPath,
    /// Bytes of each copy.
    pub bytes: u64,
    /// With the built-in values.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "built_in_seconds", with = "transload_core::serde_seconds")
    )]
    pub built_in: Duration,
    /// With the values that were found.
    #[cfg_attr(feature = "serde", serde(rename = "tuned_seconds", with = "transload_core::serde_seconds"))]
    pub tuned: Duration,
}

impl StagingCalibration {
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it can be no measurement, or staging cannot use its values.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |text: String| {
            let text = format!("no calibration: staging of {} has {text}", self.device);
            Err(Error::new(ErrorKind::InvalidArgument, text))
        };
        if self.device.is_cpu() {
            return invalid("no link".to_owned());
        }
        let is_time = |time: &StagingTime| {
            let are_times = [time.built_in, time.tuned].iter().all(|time| *time <= LONGEST);
            is_size(time.bytes) && are_times
        };
        if let Some(StagingTime { bytes, built_in, tuned, .. }) =
            self.times.iter().find(|time| !is_time(time))
        {
            return invalid(format!("times of {built_in:?} and {tuned:?} for {bytes} bytes"));
        }
        self.tuning.check().or_else(|error| invalid(error.to_string()))
    }
}
