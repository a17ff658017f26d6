//! Devices whose operations cannot be profiled, next to others that are.

use std::{fmt, sync::Arc};

use transload_core::{Backend, DeviceId, Error, ErrorKind, OperationSampling, OperationSink, Result};

/// A device of an attached backend that is not profiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct UnavailableDevice {
    /// The device.
    pub device: DeviceId,
    /// Why, such as a driver without timestamps.
    pub reason: String,
}

impl UnavailableDevice {
    fn new(device: DeviceId, error: &Error) -> Self {
        Self { device, reason: error.to_string() }
    }
}

impl fmt::Display for UnavailableDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: unavailable: {}", self.device, self.reason)
    }
}

/// Attaches a sink to the devices of a backend. Returns those that cannot be profiled, perhaps all.
///
/// # Errors
/// Those of [`Backend::attach_sink`], but for [`ErrorKind::Unsupported`].
pub(crate) fn attach(
    backend: &Arc<dyn Backend>,
    sink: &Arc<dyn OperationSink>,
    sampling: OperationSampling,
) -> Result<Vec<UnavailableDevice>> {
    match backend.attach_sink(sink, sampling) {
        Ok(()) => {
            let left_out = backend.unprofiled_devices();
            Ok(left_out.iter().map(|(device, error)| UnavailableDevice::new(*device, error)).collect())
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let all = backend.devices();
            Ok(all.iter().map(|info| UnavailableDevice::new(info.id, &error)).collect())
        }
        Err(error) => Err(error),
    }
}

/// # Errors
/// [`ErrorKind::Unsupported`] with the reasons, if these are all devices of the backends, and there are any.
pub(crate) fn check(backends: &[Arc<dyn Backend>], unavailable: &[UnavailableDevice]) -> Result<()> {
    let devices: usize = backends.iter().map(|backend| backend.devices().len()).sum();
    if unavailable.is_empty() || unavailable.len() < devices {
        return Ok(());
    }
    let reasons: Vec<_> = unavailable.iter().map(ToString::to_string).collect();
    Err(Error::new(ErrorKind::Unsupported, reasons.join("; ")))
}
