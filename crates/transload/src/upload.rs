//! Arrays in the memory of any device, of a slice's elements or of zeros.

use std::future::ready;

use transload_core::{DeviceId, MemoryKind, Pod, Result, borrow, mutant};
use transload_executor::block_on;

use crate::{Array, Runtime};

impl Runtime {
    /// Allocates memory of a device and copies elements into it, by the method predicted to be fastest. Blocks until that is done. For the
    /// host it is pageable memory; [`host`](Self::host) takes a vector over without a copy. A task, which must not block, awaits a
    /// [`copy`](Self::copy) from an array of `host` to one of [`alloc`](Self::alloc).
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// for device in rt.devices() {
    ///     let there = rt.upload(device.id, &[1.0_f32, 2.0, 3.0])?;
    ///     assert_eq!(*rt.download(&there).wait()?, [1.0, 2.0, 3.0]);
    /// }
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and those of a transfer; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a worker of
    /// an executor of this library, which must not block.
    pub fn upload<T: Pod>(&self, device: DeviceId, elements: &[T]) -> Result<Array<T>> {
        // Not later, when memory would be allocated in vain.
        block_on(ready(()))?;
        let array = self.alloc(device, own_kind(device), elements.len())?;
        if !elements.is_empty() {
            // SAFETY: the value is dropped at the end of this block. The transfer keeps handles of the buffer, but nothing uses it
            // after the transfer's end.
            let source = unsafe { borrow(elements) };
            self.manager().copy(&source, array.raw()).wait()?;
        }
        Ok(array)
    }

    /// Allocates `len` elements of a device's memory, for the host pageable, and sets all bytes to zero. Blocks until that is done.
    /// [`zeros`](Self::zeros) is the same for the host.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// for device in rt.devices() {
    ///     let there = rt.zeros_on::<f32>(device.id, 3)?;
    ///     assert_eq!(*rt.download(&there).wait()?, [0.0; 3]);
    /// }
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and the driver's.
    pub fn zeros_on<T: Pod>(&self, device: DeviceId, len: usize) -> Result<Array<T>> {
        let array = self.alloc::<T>(device, own_kind(device), len)?;
        // Of elements of any size it is one fill.
        if !mutant!("transload/zeros-are-written") {
            array.cast::<u8>()?.fill(0)?;
        }
        Ok(array)
    }
}

/// Returns the kind of a device's own memory.
pub(crate) fn own_kind(device: DeviceId) -> MemoryKind {
    if device.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device }
}
