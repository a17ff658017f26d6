//! Copies, fills and prefetches of raw addresses, for frameworks with their own ordering.
//!
//! None of them has a fence; use [`CudaStream::fence`](crate::CudaStream::fence) after them.

use transload_core::{DeviceId, Error, ErrorKind, Pattern, Result};
use transload_cuda_sys::{ContextGuard, RawStream, check, ffi};
use transload_memory::{MemoryLocation, PrefetchTarget, explain_hint, lift};

use crate::{
    CudaStream,
    submit::{addresses::DriverAddress, driver_calls::copy_once, fills::Fill},
};

impl CudaStream {
    /// Enqueues a copy between raw addresses of unified addressing, whatever memory they are in.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * Both ranges are valid for `bytes` bytes on this stream's device (host memory must be pinned or stay alive and
    ///   untouched until the stream has done the copy), and do not overlap.
    /// * Nothing uses them in conflict until then. Buffers of this library do not know about this copy.
    pub unsafe fn copy_raw_async(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        let (_bound, stream) = self.before_raw("a copy", bytes)?;
        // SAFETY: the caller's promise.
        check("cuMemcpyAsync", unsafe { ffi::cuMemcpyAsync(dst, src, bytes, stream) })
            .map_err(|error| self.own.lift(error))
    }

    /// Enqueues a copy from host memory to this stream's device.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * As for [`copy_raw_async`](Self::copy_raw_async); `src` is host memory, `dst` device or unified memory.
    pub unsafe fn copy_from_host_raw_async(&self, dst: u64, src: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.copy_sides(DriverAddress::Host(src.cast_mut().cast()), DriverAddress::Device(dst), bytes)
        }
    }

    /// Enqueues a copy from this stream's device to host memory.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * As for [`copy_raw_async`](Self::copy_raw_async); `src` is device or unified memory, `dst` host memory.
    pub unsafe fn copy_to_host_raw_async(&self, dst: *mut u8, src: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_sides(DriverAddress::Device(src), DriverAddress::Host(dst.cast()), bytes) }
    }

    /// Enqueues a copy within this stream's device.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * As for [`copy_raw_async`](Self::copy_raw_async); both are device or unified memory.
    pub unsafe fn copy_device_to_device_raw_async(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_sides(DriverAddress::Device(src), DriverAddress::Device(dst), bytes) }
    }

    /// Enqueues a fill of device or unified memory with a pattern of 1, 2, 4, 8 or 16 bytes. The first one of 8 or 16 bytes
    /// in a context loads this library's kernels, which takes some milliseconds. While the stream is being captured, or if
    /// the driver rejects the kernels, such a fill is made of copies, which is slower.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, and if address or length is no multiple of the pattern's length; the driver's: part of
    /// the memory may be filled then.
    ///
    /// # Safety
    /// * The range is valid for `bytes` bytes on this stream's device until the stream has done the fill.
    /// * Nothing uses it in conflict until then. Buffers of this library do not know about this fill.
    pub unsafe fn memset_raw_async(&self, dst: u64, pattern: Pattern, bytes: usize) -> Result<()> {
        let width = pattern.width();
        if !bytes.is_multiple_of(width) || !dst.is_multiple_of(width as u64) {
            let text =
                format!("{bytes} bytes at {dst:#x} are not whole patterns of {width} at a multiple of that");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let (_bound, stream) = self.before_raw("a fill", bytes)?;
        let fill = Fill::new(dst, bytes, pattern, || {
            // A captured graph may outlive the stream, which owns the kernels.
            if self.own.is_captured() { Ok(None) } else { self.own.fill_kernels() }
        })?;
        let mut _in_flight = false;
        // SAFETY: the caller's promise; length and address were checked.
        unsafe { fill.make(stream, &mut _in_flight) }.map_err(|error| self.own.lift(error))
    }

    /// Enqueues the migration of unified memory to a device; `None` means the stream's own.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * The range is a part of a managed allocation, which stays alive until the stream has done the migration.
    /// * Where the device cannot share it with the host, the host does not touch the allocation until then.
    pub unsafe fn prefetch_to_device_raw_async(
        &self,
        address: u64,
        bytes: usize,
        ordinal: Option<u32>,
    ) -> Result<()> {
        let to = ordinal.map_or(self.device(), DeviceId::Cuda);
        self.prefetch_raw(address, bytes, to)
    }

    /// Enqueues the migration of unified memory to the host.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * As for [`prefetch_to_device_raw_async`](Self::prefetch_to_device_raw_async).
    pub unsafe fn prefetch_to_host_raw_async(&self, address: u64, bytes: usize) -> Result<()> {
        self.prefetch_raw(address, bytes, DeviceId::Cpu)
    }

    fn prefetch_raw(&self, address: u64, bytes: usize, to: DeviceId) -> Result<()> {
        let location = MemoryLocation::try_from(to)?;
        let target = PrefetchTarget::new(location)?;
        let (_bound, stream) = self.before_raw("a prefetch", bytes)?;
        if transload_core::mutant!("streams/raw-prefetch-is-enqueued") {
            return Ok(());
        }
        // SAFETY: the stream is alive; the callers of the public forms promise the rest.
        unsafe { target.enqueue(address, bytes, stream) }
            .map_err(|error| explain_hint(error, address, bytes, location))
    }

    /// # Safety
    /// * As for [`copy_raw_async`](Self::copy_raw_async).
    unsafe fn copy_sides(&self, src: DriverAddress, dst: DriverAddress, bytes: usize) -> Result<()> {
        let (_bound, stream) = self.before_raw("a copy", bytes)?;
        // SAFETY: the caller's promise.
        unsafe { copy_once(src, dst, bytes, stream) }.map_err(|error| self.own.lift(error))
    }

    /// Prepares a raw operation: it has no point, and earlier fences must not cover it.
    fn before_raw(&self, what: &str, bytes: usize) -> Result<(ContextGuard<'_>, RawStream)> {
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{what} needs at least 1 byte")));
        }
        self.own.check_usable()?;
        let bound = self.own.context().enter().map_err(lift)?;
        self.own.flush_batch().map_err(|error| self.own.lift(error))?;
        Ok((bound, self.own.raw()))
    }
}
