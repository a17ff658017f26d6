//! One CUDA device, by type.

use std::{any::Any, fmt, ptr, sync::Arc};

use transload_backend_cuda::{
    AdvancedStreamPool, CudaBackend, CudaDevice, CudaFeature, CudaMemoryManager, CudaStream, UnifiedBuffer,
};
use transload_core::{
    Access, Backend, Buffer, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Pod, RawBuffer,
    Result, StreamPriority, bytes_of_elements,
};
use transload_streams::{CudaGraph, CudaKernel, CudaModule, StreamOrderedAllocator, StreamUse};

use crate::{Array, Runtime};

/// A CUDA device of a [`Runtime`]: its memory, streams and raw handles. Returned by [`Runtime::cuda`]. Clones are cheap.
#[derive(Clone)]
pub struct CudaGpu {
    backend: Arc<CudaBackend>,
    /// Whether it exists was checked.
    device: CudaDevice,
}

impl Runtime {
    /// Returns the CUDA device with this ordinal. Feature `cuda`, on Linux and Windows.
    ///
    /// # Errors
    /// That of [`explain`](Self::explain) if there is none; [`ErrorKind::Unsupported`] if its backend is no [`CudaBackend`].
    pub fn cuda(&self, ordinal: u32) -> Result<CudaGpu> {
        let id = self.device(DeviceId::Cuda(ordinal))?.id;
        let backend = self.manager().backend(id)?;
        let name = backend.name();
        let Ok(backend) = (backend as Arc<dyn Any + Send + Sync>).downcast::<CudaBackend>() else {
            let text = format!("{id} is a device of the backend {name}, which is no `CudaBackend`");
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let device = backend.device(ordinal)?.clone();
        Ok(CudaGpu { backend, device })
    }
}

impl CudaGpu {
    /// Returns the device's identifier.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.device.id()
    }

    /// Returns the device, to make streams, events and kernels with.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Allocates `len` elements in the device's memory. Their content is undefined. An array without elements keeps the memory of one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `T` has no size or the size in bytes overflows; [`ErrorKind::OutOfMemory`] with the bytes
    /// requested, free and in all; the driver's.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Array<T>> {
        self.alloc_as(MemoryKind::Device, len)
    }

    /// Allocates `bytes` of the device's memory. Their content is undefined.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes; those of [`alloc`](Self::alloc).
    pub fn alloc_bytes(&self, bytes: usize) -> Result<RawBuffer> {
        self.backend.allocate(self.id(), MemoryKind::Device, bytes)
    }

    /// Allocates `len` elements in the device's memory and sets all bytes to zero. Blocks until that is done.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    pub fn zeros<T: Pod>(&self, len: usize) -> Result<Array<T>> {
        let array = self.alloc(len)?;
        array.fill(T::zeroed())?;
        Ok(array)
    }

    /// Allocates `len` elements in pinned memory of the host, which the device's copy engines access directly. Their content is
    /// undefined.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<Array<T>> {
        self.alloc_as(MemoryKind::Pinned, len)
    }

    fn alloc_as<T: Pod>(&self, kind: MemoryKind, len: usize) -> Result<Array<T>> {
        // No memory has 0 bytes.
        self.array(self.backend.allocate(self.id(), kind, bytes_of_elements::<T>(len.max(1))?)?)?.slice(..len)
    }

    fn array<T: Pod>(&self, raw: RawBuffer) -> Result<Array<T>> {
        Array::new(raw, Arc::clone(&self.backend) as _)
    }

    /// Allocates `len` elements that the host and the device share, all bytes zero.
    ///
    /// # Errors
    /// As for [`CudaBackend::allocate_unified`].
    pub fn unified<T: Pod>(&self, len: usize) -> Result<UnifiedBuffer<T>> {
        self.backend.allocate_unified(self.device.ordinal(), len)
    }

    /// Allocates memory of the device and copies elements into it, by one copy of the driver. Blocks until that is done.
    /// [`Runtime::upload`] takes the method that is predicted to be fastest, and [`Runtime::copy`] need not block.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and those of a transfer.
    pub fn upload<T: Pod>(&self, elements: &[T]) -> Result<Array<T>> {
        let array = self.alloc(elements.len())?;
        array.copy_from_host(elements)?;
        Ok(array)
    }

    /// Compiles PTX for the device, some milliseconds unless the driver has the result cached.
    ///
    /// # Errors
    /// As for [`CudaModule::from_ptx`].
    pub fn module(&self, ptx: &str) -> Result<CudaModule> {
        CudaModule::from_ptx(&self.device, ptx)
    }

    /// Compiles PTX like [`module`](Self::module), and returns its kernel of this name.
    ///
    /// # Errors
    /// As for `module`; [`ErrorKind::InvalidArgument`] if there is no such kernel.
    pub fn kernel(&self, ptx: &str, name: &str) -> Result<CudaKernel> {
        self.module(ptx)?.kernel(name)
    }

    /// Records operations, to be launched together, any number of times.
    ///
    /// # Errors
    /// As for [`CudaGraph::record`].
    pub fn graph(&self, operations: &[Operation<'_>]) -> Result<CudaGraph> {
        CudaGraph::record(&self.device, StreamPriority::Normal, operations)
    }

    /// Creates a stream of normal priority.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<CudaStream> {
        CudaStream::new(&self.device)
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream_with_priority(&self, priority: StreamPriority) -> Result<CudaStream> {
        CudaStream::new_with_priority(&self.device, priority)
    }

    /// Returns an array over memory that other code allocated: of this device, managed, or pinned host memory. Copies nothing.
    /// `owner` keeps the memory alive; once the array was dropped and its last work is complete, a thread of this library drops it,
    /// under no lock. [`Runtime::drain`] waits for that, and the memory counts as the runtime's until then.
    ///
    /// # Errors
    /// As for [`CudaMemoryManager::adopt`]; [`ErrorKind::InvalidArgument`] for a size that overflows and for an address that is not
    /// aligned for `T`. The owner is dropped then, in the same way.
    ///
    /// # Safety
    /// * The `len` elements at `address` stay allocated until `owner` is dropped, and no work on them is in flight now.
    /// * Until then nothing else writes them, nor reads what is written through the array, except work ordered with the array's:
    ///   by an adopted stream, by fences, or by [`Array::used_on`].
    /// * Memory that the host can address is initialised.
    pub unsafe fn adopt<T: Pod>(&self, address: u64, len: usize, owner: impl Any + Send) -> Result<Array<T>> {
        // SAFETY: the caller's promises.
        unsafe { self.adopt_after(address, len, owner, &[]) }
    }

    /// Like [`adopt`](Self::adopt), but over memory with work in flight: uses of the array wait for the fences, such as those of
    /// [`CudaStream::fence`] of an adopted stream.
    ///
    /// # Errors
    /// As for `adopt`.
    ///
    /// # Safety
    /// * As for `adopt`, but work in flight is complete when the fences are.
    pub unsafe fn adopt_after<T: Pod>(
        &self,
        address: u64,
        len: usize,
        owner: impl Any + Send,
        after: &[Fence],
    ) -> Result<Array<T>> {
        match self.memory().and_then(|memory| Ok((memory, bytes_of_elements::<T>(len)?))) {
            Ok((memory, bytes)) => {
                // SAFETY: the caller's promises.
                self.array(unsafe { memory.adopt_after(address, bytes, owner, after) }?)
            }
            Err(error) => {
                self.device.drop_later(owner, after.to_vec());
                Err(error)
            }
        }
    }

    /// Takes in a stream of other code, by its handle (a `CUstream`, or 0 for the default stream). See [`CudaStream::adopt`].
    ///
    /// # Errors
    /// As for `CudaStream::adopt`.
    ///
    /// # Safety
    /// * As for `CudaStream::adopt`.
    pub unsafe fn adopt_stream(&self, handle: usize, owner: impl Any + Send) -> Result<CudaStream> {
        let raw = ptr::with_exposed_provenance_mut(handle);
        // SAFETY: the caller's promises.
        unsafe { CudaStream::adopt(&self.device, raw, owner) }
    }

    /// Returns a fence of what an event of other code (a `CUevent`) recorded last, to pass to
    /// [`CopyBuilder::after`](crate::CopyBuilder::after). The event may be destroyed or recorded again once this returns. It
    /// uses a stream that is kept, unless eight such fences of the device are pending or being created: then it creates a stream. For an event of ours that other code waits for see
    /// [`FenceEvent`](crate::cuda::FenceEvent).
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// * `handle` is a live event of this process. It was not recorded last by a stream that is being captured into a graph: the capture would
    ///   end with an error.
    pub unsafe fn fence_of_event(&self, handle: usize) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.fence_of_event(self.device.ordinal(), handle) }
    }

    /// Returns the streams that transfers use, to lease some for one's own kernels.
    ///
    /// # Errors
    /// None at present.
    pub fn streams(&self) -> Result<&AdvancedStreamPool> {
        self.backend.streams(self.device.ordinal())
    }

    /// Returns the allocator of the device's memory in the order of streams, like `cudaMallocAsync`.
    ///
    /// # Errors
    /// The driver's.
    pub fn allocator(&self) -> Result<&StreamOrderedAllocator> {
        self.backend.allocator(self.device.ordinal())
    }

    /// Returns the manager of all kinds of memory of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<&Arc<CudaMemoryManager>> {
        self.backend.memory(self.device.ordinal())
    }

    /// Returns whether the device has a capability.
    ///
    /// # Errors
    /// The driver's.
    pub fn supports_feature(&self, feature: CudaFeature) -> Result<bool> {
        self.device.supports_feature(feature)
    }

    /// Returns the primary context's handle, a `CUcontext`; valid while this value lives. The first call makes the context.
    ///
    /// # Errors
    /// The driver's.
    pub fn context_raw(&self) -> Result<usize> {
        Ok(self.device.context()?.as_raw() as usize)
    }

    /// Returns the backend of all CUDA devices of the runtime.
    #[must_use]
    pub fn backend(&self) -> &Arc<CudaBackend> {
        &self.backend
    }
}

impl<T: Pod> Array<T> {
    /// Begins a use of the elements by kernels and other work that the caller enqueues on this stream, through its handle, until the
    /// use ends: that work comes after all earlier work on them, and later work on them after it. **May block**: while staged transfers
    /// or other backends' work use the elements. It does not check that kernels of the stream's device can access them: the work may be
    /// copies of the driver. See [`CudaStream::use_buffer`]. Feature `cuda`.
    ///
    /// # Errors
    /// As for `CudaStream::use_buffer`.
    pub fn used_on(&self, stream: &CudaStream, access: Access) -> Result<StreamUse> {
        stream.use_buffer(self.raw(), access)
    }

    /// Like [`used_on`](Self::used_on), but awaits such work, and blocks no thread. The elements are in use from the first poll on. See
    /// [`CudaStream::use_buffer_async`]. Feature `cuda`.
    ///
    /// # Errors
    /// As for `used_on`.
    pub fn used_on_async(
        &self,
        stream: &CudaStream,
        access: Access,
    ) -> impl Future<Output = Result<StreamUse>> + Send + use<T> {
        stream.use_buffer_async(self.raw(), access)
    }
}

impl fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaGpu").field(&self.id()).finish()
    }
}
