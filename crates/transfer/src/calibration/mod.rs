//! Calibration: what each method takes on each path of this machine, measured by copies of the manager itself.

mod crossing;
mod list_parts;
mod lists;
mod load;
mod measure;
mod measure_beside;
mod measure_lists;
mod measure_memory;
mod measure_staging;
mod options;
mod result;
mod sample;
mod sizes;
mod staging;

pub use crossing::Crossing;
pub use lists::{ListCalibration, MeasuredList};
pub(crate) use measure_lists::MOST_SINGLES;
pub use options::{CalibrationOptions, CalibrationProgress};
pub use result::{
    Calibration, KeptCalibration, MeasuredTime, MethodCurve, PathCalibration, Unfinished, UnfinishedReason,
};
pub use staging::{StagingCalibration, StagingTime};

use std::sync::atomic::{AtomicBool, Ordering};

use transload_core::{Error, ErrorKind, Result};

use crate::CrossBackendTransferManager;

impl CrossBackendTransferManager {
    /// Measures each method on each path between two devices, and within one, and chooses methods by that from now on. Blocks for up
    /// to 6 seconds for each pair of devices, by default.
    ///
    /// Each time is that of copies one after another, each waited for, on an idle machine: other work on its devices makes it wrong.
    /// Sizes are steps of 4 from 256 bytes on, and finer where another method may be the fastest. Paths with unified memory are not measured,
    /// since their times depend on where the pages are, and those with pinned memory have the times of mapped memory, where the same methods may be used. Lists of copies between the host and a device, and within one, are measured by each
    /// [way](transload_core::ListWay), over the number of pieces and their length, and those between the host and a device also beside kernels that occupy all of
    /// the device ([`CalibrationOptions::kernel`]). Before all that, sizes and numbers of threads of HostStaged are chosen for each
    /// device ([`StagingTuning`](crate::StagingTuning)). ZeroCopy is measured,
    /// but chosen as before: a copy kernel that is fast on an idle device waits for the kernels of others. Costs set by
    /// [`set_costs`](Self::set_costs) stay. The copies count in the
    /// statistics, and an observer is told of them.
    ///
    /// A path that could not be finished is in [`Calibration::unfinished`] with the reason: the time was spent, a device failed, or too little
    /// memory was free for the largest copies. It keeps the costs that it had, but has those of the sizes and lists that were measured.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for options that leave nothing to measure; [`ErrorKind::Busy`] while another call of this manager calibrates,
    /// such as that whose callback this is: they would measure each other.
    pub fn calibrate(&self, options: &CalibrationOptions) -> Result<Calibration> {
        let calibrating = &self.context.calibrating;
        if calibrating.swap(true, Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Busy, "another call of this manager calibrates now"));
        }
        let _ends = Ends(calibrating);
        let calibration = measure::all(self, options)?;
        self.use_calibration(&calibration)?;
        Ok(calibration)
    }
}

/// The end of a calibration.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
