//! A kernel of a loaded module: its limits, its parameters, and launches.

use std::{ffi::CString, fmt, sync::Arc};

use transload_core::{DeviceId, Error, ErrorKind, Result};
use transload_cuda_sys::{DriverError, RelaxedCapture, check, cust::sys::CUfunction, ffi};
use transload_memory::lift_in;

use super::{Launch, LaunchConfig, arguments::Arguments, module::Code};
use crate::submit::loaded_module::{self, MAX_THREADS_PER_BLOCK};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;

/// `CUDA_ERROR_INVALID_VALUE`, and `CUDA_ERROR_NOT_FOUND`.
const INVALID_VALUE: u32 = 1;
const NOT_FOUND: u32 = 500;

/// Upper bound on the number of parameters: they have at most 32,764 bytes.
const MOST_PARAMETERS: usize = 32_764;

/// A kernel of a [`CudaModule`](crate::CudaModule), which it keeps loaded. Clones share it; usable from any thread.
#[derive(Clone)]
pub struct CudaKernel {
    known: Arc<Known>,
}

struct Known {
    code: Arc<Code>,
    raw: CUfunction,
    name: String,
    most_threads: u32,
    most_shared: u32,
    /// Size of each parameter in bytes; `None` before CUDA 12.4.
    parameters: Option<Vec<usize>>,
}

// SAFETY: a function's handle belongs to its module, which `code` keeps, and not to a thread.
unsafe impl Send for Known {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Known {}

impl CudaKernel {
    pub(crate) fn find(code: &Arc<Code>, name: &str) -> Result<Self> {
        // The driver returns another code for an empty name.
        let entry = CString::new(name).ok().filter(|entry| !entry.is_empty());
        let Some(entry) = entry else { return Err(unknown(code, name, None)) };
        let lift = |error| lift_in(&code.module.context, error);
        let _bound = code.module.context.enter().map_err(lift)?;
        let _capture = RelaxedCapture::enter().map_err(lift)?;
        let raw = code.module.function(&entry).map_err(|error| match error.code() {
            Some(NOT_FOUND) => unknown(code, name, Some(error)),
            _ => lift(error),
        })?;
        // SAFETY: the function was just found in the module.
        let attribute_of = |attribute| unsafe { loaded_module::attribute(raw, attribute) }.map_err(lift);
        let known = Known {
            most_threads: attribute_of(MAX_THREADS_PER_BLOCK)?,
            most_shared: attribute_of(MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
            parameters: parameters(raw).map_err(lift)?,
            code: Arc::clone(code),
            raw,
            name: name.to_owned(),
        };
        Ok(Self { known: Arc::new(known) })
    }

    /// Returns a builder for a launch: pass the parameters in order, then call [`enqueue`](Launch::enqueue).
    pub fn launch(&self, config: LaunchConfig) -> Launch<'_> {
        Launch::new(self, config)
    }

    /// Returns the name of its entry point.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.known.name
    }

    /// Returns its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.known.code.device()
    }

    /// Returns the maximum number of threads per block: fewer than 1,024 if it needs many registers.
    #[must_use]
    pub fn max_threads_per_block(&self) -> u32 {
        self.known.most_threads
    }

    /// Returns the maximum dynamic shared memory per block, in bytes.
    #[must_use]
    pub fn max_shared_bytes(&self) -> u32 {
        self.known.most_shared
    }

    /// Returns the size of each parameter in bytes; `None` if the driver cannot report it (before CUDA 12.4).
    #[must_use]
    pub fn parameter_sizes(&self) -> Option<&[usize]> {
        self.known.parameters.as_deref()
    }

    pub(crate) fn code(&self) -> &Code {
        &self.known.code
    }

    /// Returns the driver's handle, valid while `self` lives.
    pub(crate) fn raw(&self) -> CUfunction {
        self.known.raw
    }

    /// Checks the number and sizes of the parameters of a launch, if the kernel's are known.
    pub(crate) fn check_parameters(&self, arguments: &Arguments) -> Result<()> {
        let given = arguments.sizes();
        match self.parameter_sizes() {
            Some(taken) if taken != given => {
                let name = self.name();
                let text = format!("{name} takes parameters of {taken:?} bytes; the launch passes {given:?}");
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
            _ => Ok(()),
        }
    }
}

fn unknown(code: &Code, name: &str, cause: Option<DriverError>) -> Error {
    let text = match code.entries.as_slice() {
        [] => format!("the module has no kernel {name:?}; valid are the names of its entries"),
        entries => format!("the module has no kernel {name:?}; it has {}", entries.join(", ")),
    };
    match cause {
        Some(cause) => Error::caused_by(ErrorKind::InvalidArgument, text, cause),
        None => Error::new(ErrorKind::InvalidArgument, text),
    }
}

/// Returns the size of each parameter, queried one by one until there is none.
fn parameters(function: CUfunction) -> Result<Option<Vec<usize>>, DriverError> {
    let mut sizes = Vec::new();
    while sizes.len() < MOST_PARAMETERS {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: both out pointers are valid, and the function is of a loaded module.
        let code = unsafe { ffi::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size) };
        match check("cuFuncGetParamInfo", code) {
            Ok(()) => sizes.push(size),
            Err(error) if error.code() == Some(INVALID_VALUE) => return Ok(Some(sizes)),
            Err(DriverError::MissingFunction { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl fmt::Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaKernel({}, {})", self.name(), self.device())
    }
}
