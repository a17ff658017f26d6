//! Feature `calibration`: what transfers take on this machine, measured once and kept in a file.
//!
//! [`Runtime::calibrate`] measures, and stores the result where [`CalibrationStore`] says: by default in the user's cache directory,
//! in a file for each combination of devices, processor, number of cores, threads and limits. Every later [`Runtime::discover`] of the
//! same combination uses it: reports and plans then say `measured here`. A file that is stale, since it was measured with another driver or
//! version of this library, or damaged, or [named](CalibrationStore::File) and of another combination, is ignored with the event
//! [`CALIBRATION_IGNORED`](transload_core::events::CALIBRATION_IGNORED), and replaced by the next `calibrate`.
//!
//! ```no_run
//! use transload::{Runtime, calibration::CalibrationOptions};
//!
//! let rt = Runtime::discover()?;
//! let found = rt.calibrate(&CalibrationOptions::new())?; // Some seconds, on an idle machine.
//! for path in &found.calibration.paths {
//!     for crossing in path.crossings() {
//!         println!("{}: {crossing}", path.path);
//!     }
//! }
//! println!("kept: {:?}", found.stored);
//! # Ok::<(), transload::Error>(())
//! ```

mod key;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, TryLockError},
};

use transload_core::{Error, ErrorKind, Result, events::report};

use crate::Runtime;
use key::Key;

pub use store::CalibrationStore;
pub use transload_transfer::{
    Calibration, CalibrationOptions, CalibrationProgress, Crossing, KeptCalibration, ListCalibration,
    MeasuredList, MeasuredTime, MethodCurve, PathCalibration, StagingCalibration, StagingTime, StagingTuning,
    Unfinished, UnfinishedReason,
};

/// What [`Runtime::calibrate`] measured, and where it is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "it says what could not be measured or kept"]
pub struct Calibrated {
    /// What was measured, and of an earlier calibration the paths that this one did not finish. Transfers are chosen by it now.
    pub calibration: Calibration,
    /// The file, or why there is none. Without one later runtimes do not know of the calibration.
    pub stored: Result<PathBuf>,
}

impl Runtime {
    /// Measures what the methods take on each path, chooses by that from now on, and stores it for later runtimes. See
    /// [`CrossBackendTransferManager::calibrate`](crate::CrossBackendTransferManager::calibrate) for what is measured, and how long
    /// it blocks. That it cannot be stored, as on a full disk, is no error: [`Calibrated::stored`] says so, and the event
    /// [`CALIBRATION_NOT_STORED`](transload_core::events::CALIBRATION_NOT_STORED).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if another call of this process calibrates now, or another process that stores in the
    /// same place: the user's cache directory, or the same file. They would measure each other. Those of the manager's `calibrate`.
    pub fn calibrate(&self, options: &CalibrationOptions) -> Result<Calibrated> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = match ONE.try_lock() {
            Err(TryLockError::WouldBlock) if !transload_core::mutant!("transload/calibration-once") => {
                return Err(Error::new(ErrorKind::Busy, "another call of this process calibrates now"));
            }
            // A callback of the options that panics leaves nothing half done.
            one => one,
        };
        let key = Key::of(self);
        let store = self.calibration_store();
        let path = store.path(&key);
        let lock = match path.as_ref().map(|path| store.lock(path)) {
            Ok(Err(error)) if error.kind() == ErrorKind::Busy => return Err(error),
            Ok(lock) => lock,
            Err(error) => Err(error.clone()),
        };
        let mut calibration = self.manager().calibrate(options)?;
        let stored = path.and_then(|path| {
            if !calibration.unfinished.is_empty() {
                match store::read(&path, &key) {
                    Ok(Some(earlier)) => {
                        let kept = calibration.keep_from(earlier);
                        self.manager().use_kept(&kept);
                    }
                    // It may be a good one.
                    Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                    _ => {}
                }
            }
            let _locked = lock?;
            store::write(&path, &key, &calibration)?;
            Ok(path)
        });
        if let Err(error) = &stored {
            report::calibration_not_stored(error);
        }
        Ok(Calibrated { calibration, stored })
    }

    /// Like [`calibrate`](Self::calibrate), on a thread of its own, from the first poll on. Dropped after that, it is done nevertheless;
    /// the callback of the options ends it.
    ///
    /// # Errors
    /// As for `calibrate`; [`ErrorKind::Io`](crate::ErrorKind::Io) if the system refuses a thread.
    pub fn calibrate_async(
        &self,
        options: &CalibrationOptions,
    ) -> impl Future<Output = Result<Calibrated>> + Send + use<> {
        let (runtime, options) = (self.clone(), options.clone());
        async move {
            let calls = runtime.calls().clone();
            calls.spawn_thread(move || runtime.calibrate(&options)).await?
        }
    }

    /// Reads the stored calibration, which the runtime used when it was made. `None` if nothing is stored.
    ///
    /// # Errors
    /// Why it is ignored: [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is damaged, stale, of another machine or no
    /// regular file, or if its name is not valid; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn stored_calibration(&self) -> Result<Option<Calibration>> {
        let key = Key::of(self);
        self.calibration_store().path(&key).map_or(Ok(None), |path| store::read(&path, &key))
    }

    /// Uses the stored calibration, if there is one that fits.
    pub(crate) fn use_stored_calibration(&self) {
        let key = Key::of(self);
        let store = self.calibration_store();
        // Nothing is stored then; `calibrate` says why.
        let Ok(path) = store.path(&key) else { return };
        let used = store::read(&path, &key)
            .and_then(|stored| stored.map_or(Ok(()), |stored| self.manager().use_calibration(&stored)));
        if let Err(error) = used {
            report::calibration_ignored(&path, &error);
        }
    }
}

/// Names the file in an error's text.
fn named(path: &Path, what: &str) -> String {
    format!("{what} the calibration {}", path.display())
}
