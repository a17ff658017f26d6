//! Builds and enqueues a launch: parameters and declared memory.

use smallvec::SmallVec;
use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, OperationInfo, OperationKind, RawBuffer, Result,
    Timing,
};
use transload_cuda_sys::AsStream;
use transload_memory::Role;

use super::{
    CudaKernel, KernelArg, LaunchConfig,
    arguments::Arguments,
    reach,
    uses::{self, Roles, Uses},
};
use crate::{CudaStream, submit::driver_calls::DriverCalls};

/// Builds a launch. Parameters are passed in the order of the calls, and passing a buffer declares its use: the launch
/// runs after earlier and before later conflicting work, on any stream, and its memory stays alive until it is complete.
///
/// The buffers may be dropped as soon as the launch is enqueued.
#[derive(Debug)]
#[must_use = "a launch does nothing until it is enqueued"]
pub struct Launch<'a> {
    kernel: &'a CudaKernel,
    config: LaunchConfig,
    arguments: Arguments,
    uses: Uses<'a>,
    roles: Roles<'a>,
    /// The first error of a parameter, returned when the launch is enqueued.
    refused: Option<Error>,
    result_on: Option<DeviceId>,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(kernel: &'a CudaKernel, config: LaunchConfig) -> Self {
        Self {
            kernel,
            config,
            arguments: Arguments::default(),
            uses: Uses::new(),
            roles: Roles::new(),
            refused: None,
            result_on: None,
        }
    }

    /// Passes a number.
    pub fn arg(mut self, value: impl KernelArg) -> Self {
        self.arguments.push(value);
        self
    }

    /// Passes the buffer's address; the kernel reads the buffer.
    pub fn reads(self, buffer: &'a impl AsRef<RawBuffer>) -> Self {
        self.passes(buffer.as_ref(), Access::Read)
    }

    /// Passes the buffer's address; the kernel writes the buffer, or both reads and writes it.
    pub fn writes(self, buffer: &'a impl AsRef<RawBuffer>) -> Self {
        self.passes(buffer.as_ref(), Access::Write)
    }

    /// Passes the buffer's address; the kernel reads and writes the buffer. The order is that of
    /// [`writes`](Self::writes).
    pub fn reads_writes(self, buffer: &'a impl AsRef<RawBuffer>) -> Self {
        self.passes(buffer.as_ref(), Access::Write)
    }

    /// Declares a use without passing the address: the kernel gets it in another way, for example from a table.
    pub fn declares(mut self, buffer: &'a impl AsRef<RawBuffer>, access: Access) -> Self {
        let _address = self.declare(buffer.as_ref(), access);
        self
    }

    /// Passes an address outside this library's buffers. The caller orders the uses of that memory.
    pub fn address(self, address: u64) -> Self {
        self.arg(address)
    }

    /// Sets the role of the last declared buffer. For unified memory, [`LaunchExecutor::enqueue`] gives the driver the
    /// advice for that role before the launch; without an executor, no advice is given.
    ///
    /// [`LaunchExecutor::enqueue`]: crate::LaunchExecutor::enqueue
    pub fn role(mut self, role: Role) -> Self {
        match uses::role_of_last(&self.uses, role) {
            Ok(declared) => self.roles.push(declared),
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
        self
    }

    /// Sets where the results are used next: [`LaunchExecutor::enqueue`](crate::LaunchExecutor::enqueue) prefetches the
    /// written unified buffers there after the launch. Without an executor, nothing is prefetched.
    pub fn result_on(mut self, device: DeviceId) -> Self {
        self.result_on = Some(device);
        self
    }

    fn passes(mut self, buffer: &'a RawBuffer, access: Access) -> Self {
        let address = self.declare(buffer, access);
        self.arg(address)
    }

    fn declare(&mut self, buffer: &'a RawBuffer, access: Access) -> u64 {
        let address = reach::address(buffer, &self.kernel.code().module.context).and_then(|address| {
            if access == Access::Write && !buffer.is_writable() {
                let text = "the launch writes a buffer of read-only memory";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            Ok(address)
        });
        self.uses.push((buffer, access));
        address.unwrap_or_else(|error| {
            self.refused.get_or_insert(error);
            0
        })
    }

    pub(crate) fn kernel(&self) -> &CudaKernel {
        self.kernel
    }

    /// Returns the declared uses, without conflicts among them after [`check`](Self::check).
    pub(crate) fn uses(&self) -> &Uses<'a> {
        &self.uses
    }

    pub(crate) fn roles(&self) -> &Roles<'a> {
        &self.roles
    }

    pub(crate) fn wanted_on(&self) -> Option<DeviceId> {
        self.result_on
    }

    /// Validates the launch before anything is claimed, and merges conflicting uses.
    pub(crate) fn check(&mut self, stream: &CudaStream) -> Result<()> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let kernel = self.kernel;
        if stream.context().as_raw() != kernel.code().module.context.as_raw() {
            let (name, own, other) = (kernel.name(), kernel.device(), stream.device());
            let text = format!("{name} is loaded for {own}; it cannot be launched on a stream of {other}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.config.check(kernel.name(), kernel.max_threads_per_block(), kernel.max_shared_bytes())?;
        kernel.check_parameters(&self.arguments)?;
        uses::merge_conflicting(&mut self.uses)
    }

    /// Enqueues the launch after all earlier work that conflicts with its declared uses. The calling thread waits for such work of
    /// other backends and of staged transfers (those of pageable memory), which ends on the host, and for no other. The fence completes
    /// with the kernel.
    ///
    /// # Errors
    /// `Unsupported` for memory that the device cannot access; `InvalidArgument` for an empty or too large grid or block,
    /// too much shared memory, a stream of another device, parameters whose sizes are not the kernel's (if known), and
    /// writes of read-only memory; `Overlap` for conflicting ranges that overlap partially; `Busy` if a host view is open
    /// on a declared range; the driver's. Unless the error [is partial](transload_core::Error::is_partial), nothing was enqueued then; else what
    /// the launch writes counts as damaged.
    ///
    /// # Safety
    /// * The parameters are those of the kernel's signature, in number, order and type.
    /// * The kernel, with these parameters and this shape, touches no memory but: its parameters, its module's variables,
    ///   local and shared memory; the buffers declared here, of which it writes only those declared as written; and memory
    ///   whose lifetime and order of uses the caller ensures.
    /// * Concurrent launches that use variables of the module are designed for that.
    pub unsafe fn enqueue(mut self, stream: &CudaStream) -> Result<Fence> {
        self.check(stream)?;
        // SAFETY: the caller's promise; the launch was just checked.
        unsafe { self.enqueue_checked(stream) }
    }

    /// # Safety
    /// * As for [`enqueue`](Self::enqueue), and [`check`](Self::check) has passed for this stream.
    pub(crate) unsafe fn enqueue_checked(&mut self, stream: &CudaStream) -> Result<Fence> {
        let mut claims = Claims::updating(&mut self.uses)?;
        claims.wait_for_foreign_fences(stream);
        let mut parameters: SmallVec<[_; 8]> = self.arguments.pointers();
        let launch = DriverCalls::Kernel(self.kernel.raw(), self.config, &mut parameters);
        let info = || OperationInfo::of_kind(OperationKind::Kernel);
        // SAFETY: the function is of a loaded module of the stream's context; the parameters outlive the call. By the
        // caller's promise the kernel uses only claimed memory. The claims exclude conflicting uses until the commit, the
        // fence does from then on, and it keeps the memory alive.
        let enqueued = unsafe { stream.enqueue_calls(launch, claims.after(), Timing::Off, info) };
        // SAFETY: it is the queue's error.
        let fence = enqueued.inspect_err(|error| unsafe { claims.fail(error) })?;
        let fence = claims.inherit(fence);
        self.kernel.code().record_launch(&fence);
        // SAFETY: the fence completes after the kernel, which runs after `after`; fences removed from that were known to
        // be complete.
        unsafe { claims.commit(&fence) };
        Ok(fence)
    }
}
