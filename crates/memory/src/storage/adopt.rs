//! Adopts memory that other code allocated.

use std::{any::Any, ptr, ptr::NonNull};

use transload_core::{DeviceId, Error, ErrorKind, Fence, MemoryKind, Place, RawBuffer, Result};
use transload_executor::{ExternalMemory, ExternalStorage};

use super::{
    InContext,
    pointer::{allocated_from, pointer_attributes},
};
use crate::{CudaFeature, CudaMemoryManager, error::check_usable};

impl CudaMemoryManager {
    /// Returns a buffer over memory that other code allocated: of this device, managed, or pinned host memory. Copies nothing.
    ///
    /// `owner` keeps the memory alive. It is dropped once the last handle of the buffer was dropped and no operation uses the memory,
    /// on a thread of this library, under no lock and with the device's context current, so its destructor may block and call the driver. If adopting fails, it is dropped there at once.
    /// [`drain`](Self::drain) waits for these drops, and [`resource_counts`](Self::resource_counts) counts the memory until then.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the address 0, for 0 bytes, for a range beyond the address space, for memory that the
    /// driver does not know (such as ordinary host memory), for a last byte that it does not know or of another kind, and for memory of
    /// another device; [`ErrorKind::DeviceLost`]; other errors of the driver. The bytes between are not checked: they may span several
    /// allocations.
    ///
    /// # Safety
    /// * The `bytes` bytes at `address` stay allocated until `owner` is dropped, and no work on them is in flight now.
    /// * Until then nothing else writes them, nor reads what is written through the buffer, except work ordered with the buffer's:
    ///   by an adopted stream, by fences, or by a loan of the buffer.
    /// * Memory that the host can address is initialised.
    pub unsafe fn adopt(&self, address: u64, bytes: usize, owner: impl Any + Send) -> Result<RawBuffer> {
        // SAFETY: the caller's promises.
        unsafe { self.adopt_after(address, bytes, owner, &[]) }
    }

    /// Like [`adopt`](Self::adopt), but over memory with work in flight: users of the buffer wait for the fences, as if that work
    /// wrote all of it. Fences of other code's work come from [`CudaStream::fence`] of an adopted stream.
    ///
    /// [`CudaStream::fence`]: https://docs.rs/transload-streams
    ///
    /// # Errors
    /// As for `adopt`.
    ///
    /// # Safety
    /// * As for `adopt`, but work in flight is complete when the fences are.
    pub unsafe fn adopt_after(
        &self,
        address: u64,
        bytes: usize,
        owner: impl Any + Send,
        after: &[Fence],
    ) -> Result<RawBuffer> {
        let device = self.device();
        let memory = match self.describe(address, bytes) {
            Ok(memory) => memory,
            Err(error) => {
                let after =
                    if transload_core::mutant!("memory/refused-owner-after-work") { &[] } else { after };
                device.drop_later(owner, after.to_vec());
                return Err(error);
            }
        };
        let alloc = self.alloc_context();
        // The count is dropped after the owner.
        let owner = Box::new((device.bound(owner), alloc.counts.add(bytes)));
        // SAFETY: the driver confirmed the description; the caller promises the rest.
        let storage = unsafe { ExternalStorage::new(memory, owner, device.drops()) };
        let after = if transload_core::mutant!("memory/adopt-after-work") { &[] } else { after };
        Ok(RawBuffer::new_after(Box::new(storage), alloc.reclaimer, after))
    }

    fn describe(&self, address: u64, bytes: usize) -> Result<ExternalMemory> {
        let device = self.device();
        let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        if address == 0 || bytes == 0 {
            let what = if address == 0 { "memory at the null address" } else { "0 bytes" };
            let text = format!(
                "{what} cannot be adopted; valid are at least 1 byte at the address of an allocation"
            );
            return Err(invalid(text));
        }
        if usize::try_from(address).ok().and_then(|from| from.checked_add(bytes)).is_none() {
            return Err(invalid(format!("{bytes} bytes at {address:#x} exceed the address space")));
        }
        check_usable(device.context()?)?;
        let Some(known) = pointer_attributes(device, address, bytes)? else {
            return Err(invalid(match allocated_from(device, address)? {
                Some(most) => format!(
                    "{bytes} bytes at {address:#x} leave their allocation: the CUDA driver knows at most {most} bytes from there"
                ),
                None => format!(
                    "the CUDA driver does not know the memory at {address:#x}; valid is what it allocated or registered, unlike \
                     ordinary host memory"
                ),
            }));
        };
        if known.ordinal != device.ordinal() && !known.is_host {
            let text = format!(
                "the memory at {address:#x} belongs to {}; adopt it there, not on {}",
                DeviceId::Cuda(known.ordinal),
                device.id()
            );
            return Err(invalid(text));
        }
        let kind = match (known.is_host, known.is_managed) {
            (true, _) => MemoryKind::Pinned,
            (false, true) => MemoryKind::Unified,
            (false, false) => MemoryKind::Device,
        };
        let host_can = known.is_host
            || known.is_managed && device.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
        let host_address = usize::try_from(address)
            .ok()
            .filter(|_| host_can)
            .and_then(|address| NonNull::new(ptr::with_exposed_provenance_mut(address)));
        let backend_data: Option<Box<dyn Any + Send + Sync>> = match kind {
            // Copies between devices name the contexts of both.
            MemoryKind::Device => Some(Box::new(InContext::new(device.context()?))),
            _ => None,
        };
        Ok(ExternalMemory {
            place: Place::new(if known.is_host { DeviceId::Cpu } else { device.id() }, kind),
            bytes,
            host_address,
            device_address: (!known.is_host).then_some(address),
            writable: true,
            backend_data,
        })
    }
}
