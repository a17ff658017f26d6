//! Device ids: `cpu`, `cuda:0`, `wgpu:1`, `metal:0`.

use std::{fmt, str::FromStr};

/// A device of this machine. Parses from and prints as `cpu`, `cuda:0`, `wgpu:1`, `metal:0`.
///
/// ```
/// use transload_core::DeviceId;
///
/// let device: DeviceId = "cuda:0".parse()?;
/// assert_eq!(device, DeviceId::Cuda(0));
/// assert_eq!(device.to_string(), "cuda:0");
/// assert_eq!("cuda".parse(), Ok(DeviceId::Cuda(0)));
/// # Ok::<(), transload_core::ParseDeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceId {
    /// The host: its processors and its memory.
    Cpu,
    /// A CUDA device by the driver's ordinal.
    Cuda(u32),
    /// A wgpu adapter by its index.
    Wgpu(u32),
    /// A Metal device by its index.
    Metal(u32),
    /// A device of a third party's backend: its family's name and an ordinal.
    Other(&'static str, u32),
}

impl DeviceId {
    /// Returns the family's name, the part before the colon.
    #[must_use]
    pub fn family(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda(_) => "cuda",
            Self::Wgpu(_) => "wgpu",
            Self::Metal(_) => "metal",
            Self::Other(family, _) => family,
        }
    }

    /// Returns the ordinal within the family; 0 for the host.
    #[must_use]
    pub fn ordinal(self) -> u32 {
        match self {
            Self::Cpu => 0,
            Self::Cuda(n) | Self::Wgpu(n) | Self::Metal(n) | Self::Other(_, n) => n,
        }
    }

    /// Returns whether this is the host.
    #[must_use]
    #[inline]
    pub fn is_cpu(self) -> bool {
        self == Self::Cpu
    }

    /// Returns whether its driver knows memory of the host that has a [device address](crate::RawBuffer::device_address). CUDA's does, which gives these
    /// addresses; wgpu's devices know only what they made themselves. Calls no driver.
    #[must_use]
    #[inline]
    pub fn knows_by_address(self) -> bool {
        !matches!(self, Self::Wgpu(_) | Self::Metal(_))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            other => write!(f, "{}:{}", other.family(), other.ordinal()),
        }
    }
}

/// The error for a text that is not a device id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a device; expected cpu, cuda:N, wgpu:N or metal:N, where N is 0 or more")]
pub struct ParseDeviceError {
    /// The text.
    pub text: String,
}

impl FromStr for DeviceId {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDeviceError { text: text.to_owned() };
        let (family, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        // `parse` would accept "+1".
        if ordinal.is_empty() || !ordinal.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let ordinal: u32 = ordinal.parse().map_err(|_| invalid())?;
        match (family, ordinal) {
            ("cpu", 0) => Ok(Self::Cpu),
            ("cuda", n) => Ok(Self::Cuda(n)),
            ("wgpu", n) => Ok(Self::Wgpu(n)),
            ("metal", n) => Ok(Self::Metal(n)),
            _ => Err(invalid()),
        }
    }
}
