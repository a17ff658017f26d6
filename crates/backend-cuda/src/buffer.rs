//! A typed buffer in a CUDA device's memory.

use std::marker::PhantomData;

use transload_core::{
    Buffer, Error, ErrorKind, Operation, Pod, QueueLease, RawBuffer, Result, StreamPriority, Timing,
    WorkloadType, fill, submit,
};
use transload_memory::{borrow, borrow_mut};
use transload_streams::AdvancedStreamPool;

/// `len` elements of `T` on a device. The methods of [`Buffer`] block; for asynchronous work use
/// [`raw`](Buffer::raw) with the transfer manager. Usable from any thread.
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
        let bytes = size_of::<T>().checked_mul(len).filter(|bytes| *bytes > 0).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{len} elements of {} bytes are no valid size: 1 to {} bytes are",
                    size_of::<T>(),
                    usize::MAX
                ),
            )
        })?;
        let queue = pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.into_queue();
        Ok(Self { raw: allocate(bytes)?, queue, element: PhantomData })
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        submit(&*self.queue, operation, Timing::Off)?.wait()
    }

    fn check_len(&self, given: usize) -> Result<()> {
        if given == self.len() {
            return Ok(());
        }
        let text = format!("the host slice has {given} elements; it must have the buffer's {}", self.len());
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

impl<T: Pod> Buffer<T> for CudaBuffer<T> {
    fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    fn fill(&self, value: T) -> Result<()> {
        fill(&*self.queue, &self.raw, bytemuck::bytes_of(&value))?.wait()
    }

    fn copy_from_host(&self, source: &[T]) -> Result<()> {
        self.check_len(source.len())?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let source = unsafe { borrow(source) };
        self.run(&Operation::Copy { src: &source, dst: &self.raw })
    }

    fn copy_to_host(&self, destination: &mut [T]) -> Result<()> {
        self.check_len(destination.len())?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let destination = unsafe { borrow_mut(destination) };
        self.run(&Operation::Copy { src: &self.raw, dst: &destination })
    }
}
