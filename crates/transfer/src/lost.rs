//! Devices that were lost, each with the first cause: told once, and from then on refused early.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Result};

#[derive(Debug, Default)]
pub(crate) struct LostDevices {
    /// Makes the usual answer a single load.
    any: AtomicBool,
    causes: Mutex<Vec<(DeviceId, Error)>>,
}

impl LostDevices {
    /// Keeps the cause if the error says that the device is lost and none is known yet.
    pub(crate) fn note(&self, device: DeviceId, error: &Error) {
        if error.kind() != ErrorKind::DeviceLost || transload_core::mutant!("transfer/loss-noted") {
            return;
        }
        let mut causes = self.causes.lock();
        if !causes.iter().any(|(lost, _)| *lost == device) {
            causes.push((device, error.clone()));
            self.any.store(true, Ordering::Release);
        }
    }

    /// # Errors
    /// [`ErrorKind::DeviceLost`] with the first cause, where one of the devices was lost.
    pub(crate) fn check(&self, devices: [DeviceId; 3]) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.causes.lock().iter().find(|(lost, _)| devices.contains(lost)) {
            Some((device, cause)) => Err(Error::caused_by(
                ErrorKind::DeviceLost,
                format!("{device} was lost before and takes no more transfers; the first cause"),
                cause.clone(),
            )),
            None => Ok(()),
        }
    }
}
