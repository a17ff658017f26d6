//! A typed buffer in a CUDA device's memory.

use std::marker::PhantomData;

use transload_core::{
    Buffer, Operation, Pod, QueueLease, RawBuffer, Result, StreamPriority, Timing, WorkloadType, borrow,
    borrow_mut, bytes_of_elements, fill, slice_elements, submit,
};
use transload_streams::AdvancedStreamPool;

/// `len` elements of `T` on a device. The methods of [`Buffer`] block; for asynchronous work pass [`raw`](Buffer::raw)
/// to the transfer manager. Usable from any thread.
#[derive(Debug)]
pub struct CudaBuffer<T> {
    raw: RawBuffer,
    queue: QueueLease,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> CudaBuffer<T> {
    pub(crate) fn new(
        len: usize,
        pool: &AdvancedStreamPool,
        allocate: impl Fn(usize) -> Result<RawBuffer>,
    ) -> Result<Self> {
        let bytes = bytes_of_elements::<T>(len)?;
        let queue = pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.into_queue();
        Ok(Self { raw: allocate(bytes)?, queue, element: PhantomData })
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        submit(&*self.queue, operation, Timing::Off)?.wait()
    }
}

impl<T: Pod> AsRef<RawBuffer> for CudaBuffer<T> {
    fn as_ref(&self) -> &RawBuffer {
        self.raw()
    }
}

impl<T: Pod> Buffer<T> for CudaBuffer<T> {
    fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    fn fill(&self, value: T) -> Result<()> {
        fill(&*self.queue, &self.raw, bytemuck::bytes_of(&value))?.wait()
    }

    fn copy_from_host_at(&self, offset: usize, source: &[T]) -> Result<()> {
        let dst = slice_elements::<T>(&self.raw, offset, source.len())?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let source = unsafe { borrow(source) };
        self.run(&Operation::Copy { src: &source, dst: &dst })
    }

    fn copy_to_host_at(&self, offset: usize, destination: &mut [T]) -> Result<()> {
        let src = slice_elements::<T>(&self.raw, offset, destination.len())?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let destination = unsafe { borrow_mut(destination) };
        self.run(&Operation::Copy { src: &src, dst: &destination })
    }
}
