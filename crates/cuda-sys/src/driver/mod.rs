//! Loading the driver, looking up its functions, and tracing its calls.

pub(crate) mod code;
#[allow(nonstandard_style, unused_imports, clippy::too_many_arguments, clippy::missing_safety_doc)]
mod generated;
mod library;
mod loader;
#[allow(nonstandard_style, clippy::too_many_arguments)]
mod newer;
mod table;
pub mod trace;

pub use library::Library;
pub(crate) use loader::tried;
pub use loader::{SymbolSource, install};

use std::sync::OnceLock;

use crate::{DriverError, Result, check};

/// Every driver function, as an `unsafe fn` with the C signature that returns the driver's code as an integer.
///
/// Each function looks its symbol up at the first call and caches it. Without a driver, or if it lacks the function, a
/// code is returned that [`check`] turns into a typed error.
pub mod ffi {
    pub use super::generated::*;
    pub use super::newer::*;
}

/// A CUDA version as the driver encodes it: `1000 * major + 10 * minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub i32);

impl Version {
    /// Returns the major version.
    #[must_use]
    pub fn major(self) -> i32 {
        self.0 / 1000
    }

    /// Returns the minor version.
    #[must_use]
    pub fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }
}

/// Proof that a driver is loaded and initialised.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: Version,
}

impl Driver {
    /// The oldest supported CUDA version: the first that has every function that the handles need.
    pub const OLDEST: Version = Version(11_000);

    /// Loads and initialises the driver at the first call; later calls return the cached result.
    ///
    /// The library is loaded from the path in `TRANSLOAD_CUDA_DRIVER` if set, otherwise by its usual names.
    ///
    /// # Errors
    /// [`DriverError::NotFound`], [`DriverError::NoDevice`] (the driver refuses to initialise without one),
    /// [`DriverError::TooOld`], or the code with which initialisation failed.
    pub fn get() -> Result<Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        table::anchor();
        DRIVER.get_or_init(Self::initialise).clone()
    }

    fn initialise() -> Result<Self> {
        // SAFETY: `cuInit` takes a flags word that must be 0.
        check("cuInit", unsafe { ffi::cuInit(0) })?;
        let mut version = 0;
        // SAFETY: the out pointer is valid for the call.
        check("cuDriverGetVersion", unsafe { ffi::cuDriverGetVersion(&mut version) })?;
        let found = Version(version);
        if found < Self::OLDEST {
            return Err(DriverError::TooOld { found, needed: Self::OLDEST });
        }
        Ok(Self { version: found })
    }

    /// Returns the newest CUDA version that the driver supports.
    #[must_use]
    pub fn version(self) -> Version {
        self.version
    }

    /// Returns the number of devices visible to this process.
    ///
    /// # Errors
    /// The driver's code.
    pub fn device_count(self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the out pointer is valid for the call.
        check("cuDeviceGetCount", unsafe { ffi::cuDeviceGetCount(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns whether the driver is simulated: results obtained on it must be labelled so.
    #[must_use]
    pub fn is_simulated(self) -> bool {
        loader::is_simulated()
    }

    /// Returns where the driver was loaded from: a file name, or the name of an installed implementation.
    #[must_use]
    pub fn origin(self) -> &'static str {
        loader::origin()
    }

    /// Returns the implementation installed in place of the system's driver, if any. It provides the tools libraries'
    /// functions itself, or has none.
    #[must_use]
    pub fn installed(self) -> Option<&'static dyn SymbolSource> {
        loader::installed()
    }

    /// Returns whether the driver exports the function `name`.
    #[must_use]
    pub fn has(self, name: &std::ffi::CStr) -> bool {
        loader::symbol(name).is_some()
    }
}
