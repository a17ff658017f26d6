//! Imports DLPack tensors as buffers.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use dlpark::tensor::TensorRef;
use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Reclaimer, ResourceCounts, Result,
    events::report,
};
use transload_executor::{DropQueue, ExternalMemory, ExternalStorage};

use crate::{
    DLDataType, DLDevice, DLDeviceType, DLPackVersion, Element, Flags, Form, ImportError, Imported,
    ManagedTensor, device::DeviceName, import_counts::ImportCounts, layout,
};

/// Imports DLPack tensors. For CUDA memory, register the devices by `with_device`; the driver is then asked whether
/// each tensor describes its memory correctly.
///
/// The tensor of a dropped buffer is released on another thread once its work is complete, also after the importer was dropped;
/// [`drain`](Self::drain) waits for that.
#[derive(Debug, Default)]
pub struct Importer {
    reclaimer: Arc<Reclaimer>,
    counts: Arc<ImportCounts>,
    drops: DropQueue,
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    pub(crate) devices: Vec<transload_memory::CudaDevice>,
}

/// The checked description of a tensor.
struct Description {
    memory: ExternalMemory,
    shape: Vec<i64>,
    strides: Vec<i64>,
    dtype: DLDataType,
    flags: Flags,
}

impl Importer {
    /// Returns an importer for host memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Imports a tensor: its memory becomes a buffer whose uses wait for the tensor's fences. Copies nothing. The
    /// buffer's memory is pinned for `kDLCUDAHost` and for host memory that the driver knows as pinned. A driver that fails, or has
    /// no context yet, does not know it.
    ///
    /// # Errors
    /// The error also returns the tensor. [`ErrorKind::Unsupported`] for another major version than 1, a tensor that is
    /// not dense, or CUDA memory without the feature `cuda`; [`ErrorKind::UnknownDevice`] for a device that is not
    /// registered; [`ErrorKind::InvalidArgument`] for an invalid description, or one that the driver contradicts;
    /// [`ErrorKind::OutOfRange`] for one that exceeds the address space.
    pub fn import<M: Form + 'static>(&self, tensor: ManagedTensor<M>) -> Result<Imported, ImportError<M>> {
        self.import_inner(tensor, None)
    }

    /// Like [`import`](Self::import), but only for elements of this type, with its alignment.
    ///
    /// # Errors
    /// Those of `import`; [`ErrorKind::InvalidArgument`] for another type or insufficient alignment.
    pub fn import_as<T: Element, M: Form + 'static>(
        &self,
        tensor: ManagedTensor<M>,
    ) -> Result<Imported, ImportError<M>> {
        self.import_inner(tensor, Some((T::DTYPE, align_of::<T>())))
    }

    /// Returns counts of the imported tensors that are not released yet; those pending free wait for work in flight.
    #[must_use]
    pub fn resource_counts(&self) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        counts.allocations = self.counts.tensors.load(Ordering::Acquire);
        counts.bytes = self.counts.bytes.load(Ordering::Acquire);
        counts.pending_free = (self.reclaimer.len() + self.drops.len()) as u64;
        counts
    }

    /// Waits for the work on dropped buffers and releases their tensors. Also ends exports that the consumer returned
    /// while its stream was being captured, if the capture has ended.
    ///
    /// # Errors
    /// The first error of failed work; all tensors are released nevertheless.
    pub fn drain(&self) -> Result<()> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        transload_streams::CudaStream::retry_loan_ends();
        let drained = self.drops.drain().and(self.reclaimer.drain());
        report::emit_deferred();
        drained
    }

    fn import_inner<M: Form + 'static>(
        &self,
        tensor: ManagedTensor<M>,
        wanted: Option<(DLDataType, usize)>,
    ) -> Result<Imported, ImportError<M>> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        transload_streams::CudaStream::retry_loan_ends();
        self.reclaimer.sweep();
        let found = match self.describe(&tensor, wanted) {
            Ok(found) => found,
            Err(error) => return Err(ImportError::new(error, tensor)),
        };
        let Description { memory, shape, strides, dtype, flags } = found;
        let (version, fences) = (tensor.version(), tensor.fences().to_vec());
        // The count is dropped after the tensor.
        let owner = Box::new((self.bound(memory.place, tensor), self.counts.add(memory.bytes)));
        // SAFETY: the description is true, as promised to `ManagedTensor::from_raw` and, for CUDA memory, confirmed by the driver;
        // the memory lives until the deleter is called, when the tensor is dropped.
        let storage = unsafe { ExternalStorage::new(memory, owner, &self.drops) };
        let fences = if transload_core::mutant!("dlpack/import-after-producer") { &[] } else { &fences[..] };
        let buffer = RawBuffer::new_after(Box::new(storage), &self.reclaimer, fences);
        Ok(Imported { buffer, shape, strides, dtype, version, copied: flags.contains(Flags::IS_COPIED) })
    }

    fn describe<M: Form>(
        &self,
        tensor: &ManagedTensor<M>,
        wanted: Option<(DLDataType, usize)>,
    ) -> Result<Description> {
        // Other fields of another major version must not be read.
        if let Some(version) =
            tensor.version().filter(|version| version.major != DLPackVersion::CURRENT.major)
        {
            let DLPackVersion { major, minor } = version;
            let text =
                format!("the tensor has DLPack version {major}.{minor}; valid: 1.x, or the unversioned form");
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
                let text = format!("expected elements of {expected:?}, got {dtype:?}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            if !address.is_multiple_of(align) {
                let text =
                    format!("the tensor begins at {address:#x}, which is not aligned to {align} bytes");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        let writable = !flags.contains(Flags::READ_ONLY);
        let memory = ExternalMemory { writable, ..self.locate(described.device(), address, bytes)? };
        Ok(Description { memory, shape: described.shape().to_vec(), strides, dtype, flags })
    }

    fn locate(&self, device: DLDevice, address: usize, bytes: usize) -> Result<ExternalMemory> {
        match device.device_type {
            DLDeviceType::CPU if device.device_id == 0 => {
                let pinned = self.is_pinned(address, bytes);
                let kind = if pinned { MemoryKind::Pinned } else { MemoryKind::Pageable };
                Ok(host_memory(kind, address, bytes))
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
        let text = format!("unknown device {}; known: kDLCPU 0{more}", DeviceName(device));
        Error::new(ErrorKind::UnknownDevice, text)
    }

    #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
    #[allow(clippy::unused_self, reason = "as with CUDA")]
    fn bound<T>(&self, _: Place, tensor: T) -> T {
        tensor
    }

    #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
    #[allow(clippy::unused_self, reason = "as with CUDA")]
    fn is_pinned(&self, _: usize, _: usize) -> bool {
        false
    }

    #[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
    #[allow(clippy::unused_self, reason = "as with CUDA")]
    fn locate_cuda(&self, device: DLDevice, _: usize, _: usize) -> Result<ExternalMemory> {
        let text = format!("{} is CUDA memory, but the feature `cuda` is not enabled", DeviceName(device));
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// Describes host memory.
pub(crate) fn host_memory(kind: MemoryKind, address: usize, bytes: usize) -> ExternalMemory {
    let host = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling());
    ExternalMemory {
        place: Place::new(DeviceId::Cpu, kind),
        bytes,
        host_address: Some(host),
        device_address: None,
        writable: true,
        backend_data: None,
    }
}
