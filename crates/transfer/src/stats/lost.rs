//! Lost devices, each with the first cause. Later transfers are refused early.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Result};

use crate::report_events;

/// Names the device in an error of kind [`ErrorKind::DeviceLost`], for transfers that use several. Returns other errors
/// unchanged.
pub(crate) fn name_lost_device(device: DeviceId, error: Error) -> Error {
    if error.kind() != ErrorKind::DeviceLost || transload_core::mutant!("transfer/loss-names-device") {
        return error;
    }
    Error::caused_by(ErrorKind::DeviceLost, format!("{device} was lost"), NamedLoss { device, error })
}

/// The cause of an error that names its device.
#[derive(Debug)]
struct NamedLoss {
    device: DeviceId,
    error: Error,
}

impl fmt::Display for NamedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NamedLoss {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[derive(Debug, Default)]
pub(crate) struct LostDevices {
    /// Whether any device is lost: makes the common check a single load.
    any: AtomicBool,
    causes: Mutex<Vec<(DeviceId, Error)>>,
}

impl LostDevices {
    /// Records the first cause of a lost device: the one that the error [names](name_lost_device), else `lane`. Ignores
    /// other errors.
    pub(crate) fn note(&self, lane: DeviceId, error: &Error) {
        if error.kind() != ErrorKind::DeviceLost || transload_core::mutant!("transfer/loss-noted") {
            return;
        }
        let named = error.cause().and_then(|cause| cause.downcast_ref::<NamedLoss>());
        let device = named.map_or(lane, |loss| loss.device);
        let is_new = {
            let mut causes = self.causes.lock();
            let is_new = !causes.iter().any(|(lost, _)| *lost == device);
            if is_new {
                causes.push((device, error.clone()));
                self.any.store(true, Ordering::Release);
            }
            is_new
        };
        if is_new {
            report_events::device_lost(device, error);
        }
    }

    /// Returns whether any device is lost.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// # Errors
    /// [`ErrorKind::DeviceLost`] with the first cause, if one of the devices was lost.
    pub(crate) fn check(&self, devices: [&DeviceId; 3]) -> Result<()> {
        if !self.are_any() {
            return Ok(());
        }
        match self.causes.lock().iter().find(|(lost, _)| devices.contains(&lost)) {
            Some((device, cause)) => Err(Error::caused_by(
                ErrorKind::DeviceLost,
                format!("{device} was lost before and takes no more transfers; the first cause"),
                NamedLoss { device: *device, error: cause.clone() },
            )),
            None => Ok(()),
        }
    }
}
