//! Driver errors: why no driver is available, and the driver's error codes.

use std::fmt;

use crate::driver::{Version, code, ffi};

/// The result of a call into this crate.
pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// Why a driver call could not be made or did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// No CUDA driver library could be opened.
    #[error("no CUDA driver found; tried {}", tried.join(", "))]
    NotFound {
        /// Each file that was tried, with the loader's reason.
        tried: Vec<String>,
    },
    /// The driver reports no usable device.
    #[error("the CUDA driver reports no device (is one attached, and visible through CUDA_VISIBLE_DEVICES?)")]
    NoDevice,
    /// The driver is older than this crate supports.
    #[error("the CUDA driver supports CUDA {found}; {needed} or newer is needed")]
    TooOld {
        /// The CUDA version that the driver supports.
        found: Version,
        /// The oldest version that this crate works with.
        needed: Version,
    },
    /// The running driver does not have this function.
    #[error("the running CUDA driver has no function {name}")]
    MissingFunction {
        /// Name of the function as exported by the driver.
        name: &'static str,
    },
    /// No device has this ordinal.
    #[error("there is no CUDA device {ordinal}; valid ordinals are 0 to {}", count - 1)]
    UnknownDevice {
        /// The requested ordinal.
        ordinal: u32,
        /// Number of devices, at least 1.
        count: u32,
    },
    /// An event can only be recorded on a stream of its own context; streams of other contexts can wait for it.
    #[error(
        "an event of CUDA device {event} cannot be recorded on a stream of device {stream}; make it on that device"
    )]
    OtherContext {
        /// Ordinal of the event's device.
        event: u32,
        /// Ordinal of the stream's device.
        stream: u32,
    },
    /// The driver answers no call for this device any more, whatever the code: the GPU has fallen off the bus, or the driver is stuck. Found by
    /// [`Context::judge`](crate::Context::judge).
    #[error("CUDA device {ordinal} answers no call any more: {cause}")]
    Unresponsive {
        /// Ordinal of the device.
        ordinal: u32,
        /// The error that was judged.
        cause: Box<DriverError>,
    },
    /// The driver returned an error code.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The driver function.
        call: &'static str,
        /// The driver's code, even if a binding's enum does not list it.
        code: u32,
        /// The driver's name of the code, or `unknown CUDA error`.
        name: String,
    },
}

impl DriverError {
    /// Returns the driver's numeric code, if the driver returned one.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Unresponsive { cause, .. } => cause.code(),
            _ => None,
        }
    }

    /// Returns whether the driver ran out of memory (`CUDA_ERROR_OUT_OF_MEMORY`).
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(code::OUT_OF_MEMORY)
    }

    /// Returns whether the context is unusable (a sticky error): only a new process, or a reset of the primary context
    /// by its owner, recovers.
    ///
    /// Also true if the driver has shut down, as at process exit, and of [`Unresponsive`](Self::Unresponsive).
    ///
    /// Source: the CUDA driver API's descriptions of these codes ("To continue using CUDA, the process must be
    /// terminated and relaunched").
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        matches!(self, Self::Unresponsive { .. })
            || matches!(self.code(), Some(code) if code::STICKY.contains(&code) || code::GONE.contains(&code))
    }
}

/// The error of [`install`](crate::install).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process has chosen its CUDA driver already ({in_use}); install another one before the first driver call, such as \
     that of `Runtime::discover`"
)]
pub struct InstallError {
    /// Name of the driver in use.
    pub in_use: &'static str,
}

/// Converts a code returned by a function of [`ffi`] to a typed error.
///
/// # Errors
/// [`DriverError::NotFound`] without a driver, [`DriverError::MissingFunction`] if the driver lacks `call`, otherwise
/// [`DriverError::Call`] for every code but `CUDA_SUCCESS`.
#[inline]
pub fn check(call: &'static str, code: u32) -> Result<()> {
    if code == code::SUCCESS { Ok(()) } else { Err(describe(call, code)) }
}

#[cold]
fn describe(call: &'static str, code: u32) -> DriverError {
    match code {
        code::ABSENT_DRIVER => DriverError::NotFound { tried: crate::driver::tried() },
        code::ABSENT_FUNCTION => DriverError::MissingFunction { name: call },
        code::NO_DEVICE => DriverError::NoDevice,
        _ => DriverError::Call { call, code, name: name_of(code) },
    }
}

/// Returns the driver's name of a code.
fn name_of(code: u32) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the out pointer is valid; on success the driver stores a pointer to a static, NUL-terminated string.
    let found = unsafe { ffi::cuGetErrorName(code, &mut text) };
    if found != code::SUCCESS || text.is_null() {
        return "unknown CUDA error".to_owned();
    }
    // SAFETY: as above; the string lives as long as the driver, which is never unloaded.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}
