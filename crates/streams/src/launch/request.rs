//! One launch: parameters, declared memory, and the way onto a stream.

use smallvec::SmallVec;
use transload_core::{Access, Claims, DeviceId, Error, ErrorKind, Fence, RawBuffer, Result, Timing};
use transload_cuda_sys::AsStream;
use transload_memory::Role;

use super::{
    CudaKernel, KernelArg, LaunchConfig,
    arguments::Arguments,
    reach,
    uses::{self, Roles, Uses},
};
use crate::{CudaStream, submit::driver_calls::DriverCalls};

/// A launch in the making. Parameters are passed in the order of the calls; buffers are declared as they are passed, and
/// from that the launch is put behind earlier work in conflict and before later such work, on whatever streams, and its
/// memory stays alive until it is over.
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
    /// What was wrong with a parameter: told when the launch is enqueued.
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

    /// Passes the buffer's address; the kernel reads and writes the buffer. For the order of work it is the same as
    /// [`writes`](Self::writes).
    pub fn reads_writes(self, buffer: &'a impl AsRef<RawBuffer>) -> Self {
        self.passes(buffer.as_ref(), Access::Write)
    }

    /// Passes nothing; the kernel reaches the buffer in another way, through a table of addresses say, and uses it so.
    pub fn declares(mut self, buffer: &'a impl AsRef<RawBuffer>, access: Access) -> Self {
        let _address = self.declare(buffer.as_ref(), access);
        self
    }

    /// Passes an address that no buffer of this library stands for. What the kernel does there is the caller's concern.
    pub fn address(self, address: u64) -> Self {
        self.arg(address)
    }

    /// What the buffer that was declared last is used for. Where it is unified memory, [`LaunchExecutor::enqueue`] gives the
    /// driver the advice that goes with the role, before the launch; without an executor nothing is advised.
    ///
    /// [`LaunchExecutor::enqueue`]: crate::LaunchExecutor::enqueue
    pub fn role(mut self, role: Role) -> Self {
        match uses::of_the_last(&self.uses, role) {
            Ok(declared) => self.roles.push(declared),
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
        self
    }

    /// Where what the launch writes is wanted next: unified buffers among it are prefetched there behind the launch, by
    /// [`LaunchExecutor::enqueue`](crate::LaunchExecutor::enqueue). Without an executor nothing is prefetched.
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
                let text = "the launch writes a buffer that wraps memory that may not be written";
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

    /// The settled uses; see [`check`](Self::check).
    pub(crate) fn uses(&self) -> &Uses<'a> {
        &self.uses
    }

    pub(crate) fn roles(&self) -> &Roles<'a> {
        &self.roles
    }

    pub(crate) fn wanted_on(&self) -> Option<DeviceId> {
        self.result_on
    }

    /// Refuses what can be refused before anything is claimed, and settles the uses.
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
        kernel.takes(&self.arguments)?;
        uses::settle(&mut self.uses)
    }

    /// Enqueues the launch behind all earlier work that conflicts with what it declares, without waiting for it to be done.
    /// The host waits only for earlier work of another backend. The fence is over when the kernel is.
    ///
    /// # Errors
    /// `Unsupported` for memory that the device does not reach; `InvalidArgument` for an empty or too large grid or block,
    /// too much shared memory, a stream of another device, parameters of other sizes than the kernel's (where the driver
    /// tells those), a buffer that may not be written; `Overlap` for ranges that conflict and overlap in part; `Busy` where a
    /// host view is open on a declared range; the driver's. On an error nothing was enqueued.
    ///
    /// # Safety
    /// * The parameters are those of the kernel's signature, in number, order and type.
    /// * The kernel, with these parameters and this shape, touches no memory but: its parameters, its module's own
    ///   variables, local and shared memory; bytes of buffers declared here, writing only those that are declared as
    ///   written; and memory whose lifetime and order of uses the caller sees to.
    /// * Where launches that may run at the same time use variables of the module, they are made for that.
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
        // SAFETY: the function is of a loaded module of the stream's context; each parameter is a word that outlives the call.
        // The kernel uses what was claimed, by the caller's promise; the claims keep every use in conflict away, and
        // the fence does so from its commit on, and keeps the memory alive.
        let fence = claims.inherit(unsafe { stream.enqueue_calls(launch, claims.after(), Timing::Off) }?);
        self.kernel.code().launched(&fence);
        // SAFETY: the fence is over after the kernel, which the stream runs behind `after`; what was taken out of that was
        // known to be over.
        unsafe { claims.commit(&fence) };
        Ok(fence)
    }
}
