//! A registration of host memory with the driver (`cuMemHostRegister`), and the owner that keeps the memory mapped.
//!
//! May be created and released on any thread. The driver may wait for the device on release, so that happens on a
//! thread that may wait.

use std::{any::Any, ptr, time::Instant};

use transload_core::events::report;
use transload_cuda_sys::{Context, DriverError, ffi};

use super::edges;

/// Owner that keeps memory mapped.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// `CU_MEMHOSTREGISTER_DEVICEMAP`: kernels use the memory in place.
#[cfg(target_os = "linux")]
pub(crate) const DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: the device may not write the memory.
pub(crate) const READ_ONLY: u32 = 8;

/// Registered pages of another owner's memory.
pub(crate) struct HostRegistration {
    context: Context,
    start: usize,
    /// Sequence number of the registration.
    number: u64,
    /// Taken when the registration ends; the memory is released after it.
    owner: Option<Owner>,
}

impl HostRegistration {
    /// Registers `bytes` bytes from `start` for every context. `more` are further flags.
    ///
    /// # Errors
    /// The driver's; the owner is dropped then.
    ///
    /// # Safety
    /// * The range is mapped until the owner is dropped.
    pub(crate) unsafe fn new(
        context: &Context,
        start: usize,
        bytes: usize,
        more: u32,
        owner: Owner,
    ) -> Result<Self, DriverError> {
        /// `CU_MEMHOSTREGISTER_PORTABLE`: for every context.
        const PORTABLE: u32 = 1;
        let pointer = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the caller promises that the range is mapped, and a context is current.
        let register = || unsafe { ffi::cuMemHostRegister_v2(pointer, bytes, PORTABLE | more) };
        let begun = Instant::now();
        context.call("cuMemHostRegister_v2", register)?;
        report::host_registered(start, bytes, begun.elapsed());
        let number = edges::enter(start, bytes);
        Ok(Self { context: context.clone(), start, number, owner: Some(owner) })
    }

    /// Sets the owner that keeps the memory mapped.
    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
    }

    /// Returns the address under which devices use the memory in place, if the driver gives one.
    #[cfg(target_os = "linux")]
    pub(crate) fn device_address(&self) -> Option<u64> {
        let mut address = 0;
        let pointer = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the range is registered, and a context is current.
        let ask = || unsafe { ffi::cuMemHostGetDevicePointer_v2(&mut address, pointer, 0) };
        self.context.call("cuMemHostGetDevicePointer_v2", ask).ok().map(|()| address)
    }

    /// Ends the registration and returns the owner, to be dropped where user code may run. A second call does nothing.
    /// The caller ensures that nothing in flight uses the memory.
    ///
    /// # Errors
    /// The driver's; the memory is then leaked, since the device may still access it.
    pub(crate) fn end(&mut self) -> Result<Option<Owner>, DriverError> {
        let Some(owner) = self.owner.take() else { return Ok(None) };
        let pointer = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the range was registered by `new` and is unregistered only once.
        match self.context.call("cuMemHostUnregister", || unsafe { ffi::cuMemHostUnregister(pointer) }) {
            Ok(()) => {
                edges::leave(self.start, self.number);
                report::host_unregistered(self.start, None);
                Ok(Some(owner))
            }
            Err(error) => {
                report::host_unregistered(self.start, Some(&error));
                std::mem::forget(owner);
                Err(error)
            }
        }
    }
}

impl Drop for HostRegistration {
    /// Dropping without `end` leaks memory and registration, which is safe.
    fn drop(&mut self) {
        std::mem::forget(self.owner.take());
    }
}

impl std::fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRegistration({:#x})", self.start)
    }
}
