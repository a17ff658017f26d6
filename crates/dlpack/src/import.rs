//! DLPack tensors of others as buffers.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use dlpark::tensor::TensorRef;
use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Reclaimer, ResourceCounts, Result,
};

use crate::{
    DLDataType, DLDevice, DLDeviceType, DLPackVersion, Element, Flags, Form, ImportError, Imported,
    ManagedTensor,
    device::DeviceName,
    imported_storage::{ImportCounts, ImportedStorage, Location},
    layout,
};

/// Takes DLPack tensors in. Host memory needs nothing more; for CUDA memory it is told the devices
/// (`with_device`), and the driver is asked whether each tensor says the truth.
///
/// What is dropped while work is in flight waits here, and is given back by a later [`import`](Self::import) or by
/// [`drain`](Self::drain); without the importer, by any other reclaimer of the process.
#[derive(Debug, Default)]
pub struct Importer {
    reclaimer: Arc<Reclaimer>,
    counts: Arc<ImportCounts>,
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    pub(crate) devices: Vec<transload_memory::CudaDevice>,
}

/// What was read from a tensor and found right.
struct Description {
    location: Location,
    bytes: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    dtype: DLDataType,
    flags: Flags,
}

impl Importer {
    /// For host memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a tensor in: its memory becomes a buffer that begins behind the fences which the tensor was made with. Nothing
    /// is copied. Of both `kDLCUDAHost` and host memory that the driver knows the buffer is pinned.
    ///
    /// # Errors
    /// The tensor comes back with the error. [`ErrorKind::Unsupported`] for another major version than 1, a tensor that is
    /// not dense, or CUDA memory without the feature `cuda`; [`ErrorKind::UnknownDevice`] for a device that is not known here;
    /// [`ErrorKind::InvalidArgument`] for a description that cannot be, or that the driver contradicts;
    /// [`ErrorKind::OutOfRange`] for one that does not fit the address space.
    pub fn import<M: Form + 'static>(&self, tensor: ManagedTensor<M>) -> Result<Imported, ImportError<M>> {
        self.import_inner(tensor, None)
    }

    /// As [`import`](Self::import), only for elements of this type, aligned as it is.
    ///
    /// # Errors
    /// As for `import`; [`ErrorKind::InvalidArgument`] for other elements, or ones at another alignment.
    pub fn import_as<T: Element, M: Form + 'static>(
        &self,
        tensor: ManagedTensor<M>,
    ) -> Result<Imported, ImportError<M>> {
        self.import_inner(tensor, Some((T::DTYPE, align_of::<T>())))
    }

    /// What was taken in and not given back yet; `parked` of it waits for work in flight.
    #[must_use]
    pub fn resource_counts(&self) -> ResourceCounts {
        let mut ledger = ResourceCounts::default();
        ledger.allocations = self.counts.tensors.load(Ordering::Acquire);
        ledger.bytes = self.counts.bytes.load(Ordering::Acquire);
        ledger.parked = self.reclaimer.len() as u64;
        ledger
    }

    /// Waits for the work on tensors whose buffers were dropped, and gives them back. Exports whose consumer was done while its
    /// stream was being captured come back, too, once that capture has ended.
    ///
    /// # Errors
    /// The first error of work that failed; all are given back all the same.
    pub fn drain(&self) -> Result<()> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        crate::cuda::retry_pending_ends();
        self.reclaimer.drain()
    }

    fn import_inner<M: Form + 'static>(
        &self,
        tensor: ManagedTensor<M>,
        wanted: Option<(DLDataType, usize)>,
    ) -> Result<Imported, ImportError<M>> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        crate::cuda::retry_pending_ends();
        self.reclaimer.sweep();
        let found = match self.describe(&tensor, wanted) {
            Ok(found) => found,
            Err(error) => return Err(ImportError::new(error, tensor)),
        };
        let Description { location, bytes, shape, strides, dtype, flags } = found;
        let (version, fences) = (tensor.version(), tensor.fences().to_vec());
        let writable = !flags.contains(Flags::READ_ONLY);
        let storage = ImportedStorage::new(Box::new(tensor), location, bytes, writable, &self.counts);
        let fences = if transload_core::mutant!("dlpack/import-after-producer") { &[] } else { &fences[..] };
        let buffer = RawBuffer::new_after(Box::new(storage), &self.reclaimer, fences);
        Ok(Imported { buffer, shape, strides, dtype, version, copied: flags.contains(Flags::IS_COPIED) })
    }

    fn describe<M: Form>(
        &self,
        tensor: &ManagedTensor<M>,
        wanted: Option<(DLDataType, usize)>,
    ) -> Result<Description> {
        // Nothing else of another major version may be read.
        if let Some(version) =
            tensor.version().filter(|version| version.major != DLPackVersion::CURRENT.major)
        {
            let DLPackVersion { major, minor } = version;
            let text = format!(
                "the tensor is of DLPack {major}.{minor}; valid is 1.x, or the form without a version"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let flags = tensor.form().flags();
        // SAFETY: readable, and unchanged while the tensor is owned, by the promise of `ManagedTensor::from_raw`.
        let described = unsafe { TensorRef::from_raw(tensor.form().tensor()) }.map_err(layout::invalid)?;
        let (bytes, strides) = layout::dense(&described, flags)?;
        let address = layout::address(described.data_ptr(), described.byte_offset(), bytes)?;
        let dtype = described.dtype();
        if let Some((expected, align)) = wanted {
            if dtype != expected {
                let text = format!("the tensor's elements are {dtype:?}, not {expected:?}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            if bytes > 0 && !address.is_multiple_of(align) {
                let text =
                    format!("the tensor begins at {address:#x}, which is not aligned to {align} bytes");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        let location = self.locate(described.device(), address, bytes)?;
        Ok(Description { location, bytes, shape: described.shape().to_vec(), strides, dtype, flags })
    }

    fn locate(&self, device: DLDevice, address: usize, bytes: usize) -> Result<Location> {
        match device.device_type {
            DLDeviceType::CPU if device.device_id == 0 => {
                let pinned = self.is_pinned(address, bytes)?;
                let kind = if pinned { MemoryKind::Pinned } else { MemoryKind::Pageable };
                Ok(host_location(kind, address))
            }
            DLDeviceType::CUDA | DLDeviceType::CUDAHOST | DLDeviceType::CUDAMANAGED => {
                self.locate_cuda(device, address, bytes)
            }
            _ => Err(self.unknown(device)),
        }
    }

    pub(crate) fn unknown(&self, device: DLDevice) -> Error {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        let more: String = self.devices.iter().map(|own| format!(", kDLCUDA {}", own.ordinal())).collect();
        #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
        let more = "";
        let text = format!("no device here is {}; valid are kDLCPU 0{more}", DeviceName(device));
        Error::new(ErrorKind::UnknownDevice, text)
    }

    #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with CUDA")]
    fn is_pinned(&self, _: usize, _: usize) -> Result<bool> {
        Ok(false)
    }

    #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
    #[allow(clippy::unused_self, reason = "as with CUDA")]
    fn locate_cuda(&self, device: DLDevice, _: usize, _: usize) -> Result<Location> {
        let text =
            format!("{} is CUDA's memory, and this build is without the feature `cuda`", DeviceName(device));
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// Host memory of a kind. An empty tensor has an address that is never used.
pub(crate) fn host_location(kind: MemoryKind, address: usize) -> Location {
    let host = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling());
    Location { place: Place::new(DeviceId::Cpu, kind), host: Some(host), device: None, backend_data: None }
}
