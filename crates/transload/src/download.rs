//! Copies of arrays to memory that the caller owns alone.

use std::{
    fmt,
    future::{Future, IntoFuture, ready},
    ops::DerefMut,
    pin::Pin,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use transload_core::{
    DeviceId, HostBytes, MemoryKind, Pod, RawBuffer, Reclaimer, Result, TransferReport, check_same_len,
};
use transload_executor::{Completer, Task, block_on};

use crate::{Array, HostBuffer, Runtime};

/// Up to so many bytes are allocated by the thread that polls: they are touched in a few microseconds.
const SMALL: usize = 64 << 10;

/// A copy to the host that begins when it is awaited, or [waited for](Self::wait). Returned by [`Runtime::download`] and
/// [`Runtime::download_into`]; owns all that it needs.
#[must_use = "nothing is copied before it is awaited or waited for"]
pub struct Download<T, D = HostBuffer<T>> {
    runtime: Runtime,
    src: Array<T>,
    dst: Target<D>,
}

enum Target<D> {
    Given(D),
    /// Makes one of so many elements.
    New(fn(&Runtime, usize) -> Result<D>),
}

/// What [`Runtime::download_into`] fills and returns: a `Vec<T>` or a [`HostBuffer<T>`], or a container of yours.
///
/// # Safety
/// * The elements stay where they are when the value is moved, and are used by nothing but their owner.
/// * They are in host memory of the kind returned.
pub unsafe trait Destination<T>: DerefMut<Target = [T]> + Sized + Send + 'static {
    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }
}

// SAFETY: a vector owns its elements, on the heap.
unsafe impl<T: Pod + Send> Destination<T> for Vec<T> {}

// SAFETY: it holds the bytes exclusively, and does not contain them.
unsafe impl<T: Pod + Send> Destination<T> for HostBuffer<T> {
    fn kind(&self) -> MemoryKind {
        match self.place() {
            // Who made it is not known of what is lent.
            place if place.device.is_cpu() && self.maker().is_none() => place.kind,
            // Unified memory is copied to through its host address.
            _ => MemoryKind::Pageable,
        }
    }
}

/// A destination that a buffer owns: nobody else reaches its elements. It is given back when the last handle of that buffer was
/// dropped and no work uses it any more.
struct Lent<D>(Mutex<Option<(D, Completer<D>)>>);

impl<D> Drop for Lent<D> {
    fn drop(&mut self) {
        if let Some((destination, owner)) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            owner.complete(Ok(destination));
        }
    }
}

/// Moves a destination into a buffer over its elements. The task ends with the destination.
fn lend<T: Pod, D: Destination<T>>(mut destination: D) -> (RawBuffer, Task<D>) {
    let (bytes, kind) = (size_of_val(&*destination), destination.kind());
    let address = NonNull::from(&mut *destination).cast();
    let (task, owner) = Task::pending();
    let lent = Lent(Mutex::new(Some((destination, owner))));
    // SAFETY: the elements are initialised bytes of this kind of memory, and stay at this address until the owner is dropped, which
    // nothing reaches before.
    let storage = unsafe { HostBytes::new(lent, address, bytes, kind, true) };
    (RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new())), task)
}

impl<T: Pod, D: Destination<T>> Download<T, D> {
    /// Copies, and blocks until the bytes are in place.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory); those of a transfer;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a worker of an executor of this library, which must not block.
    pub fn wait(self) -> Result<D> {
        Ok(self.wait_with_report()?.0)
    }

    /// Like [`wait`](Self::wait), but also returns how the bytes moved: `None` for an array without elements.
    ///
    /// # Errors
    /// As for `wait`.
    pub fn wait_with_report(self) -> Result<(D, Option<TransferReport>)> {
        // Not later, when the destination would be lost.
        block_on(ready(()))?;
        let Self { runtime, src, dst } = self;
        let dst = match dst {
            Target::Given(dst) => dst,
            Target::New(make) => make(&runtime, src.len())?,
        };
        check_same_len(src.len(), dst.len())?;
        let (buffer, filled) = lend(dst);
        let copied = (!src.is_empty()).then(|| runtime.manager().copy(src.raw(), &buffer).wait());
        let report = copied.transpose()?;
        drop(buffer);
        Ok((filled.wait()?, report))
    }

    /// Like awaiting it, but also returns how the bytes moved: `None` for an array without elements.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub async fn with_report(self) -> Result<(D, Option<TransferReport>)> {
        let Self { runtime, src, dst } = self;
        let len = src.len();
        let dst = match dst {
            Target::Given(dst) => dst,
            Target::New(make) if src.raw().len() <= SMALL => make(&runtime, len)?,
            Target::New(make) => {
                let theirs = runtime.clone();
                runtime.call(move || make(&theirs, len)).await?
            }
        };
        check_same_len(len, dst.len())?;
        let (buffer, filled) = lend(dst);
        let report = match src.is_empty() {
            true => None,
            false => Some(runtime.manager().copy(src.raw(), &buffer).await?),
        };
        drop((src, buffer));
        Ok((filled.await?, report))
    }
}

impl<T: Pod, D: Destination<T>> IntoFuture for Download<T, D> {
    type Output = Result<D>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<D>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.with_report().await?.0) })
    }
}

impl<T, D> fmt::Debug for Download<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download").field("src", &self.src).finish_non_exhaustive()
    }
}

impl<T: Pod + Send> HostBuffer<T> {
    fn allocate(runtime: &Runtime, len: usize) -> Result<Self> {
        Self::from_array(runtime.alloc(DeviceId::Cpu, MemoryKind::Pageable, len)?)
    }
}

impl Runtime {
    /// Copies an array to host memory that is the caller's alone: on huge pages from 4 MiB on. `.await` it or
    /// [`wait`](Download::wait) for it; both come after all earlier work that writes the array.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let weights = rt.host(vec![1.0_f32, 2.0, 3.0])?;
    /// let two = rt.download(&weights.slice(1..)?).wait()?;
    /// assert_eq!(*two, [2.0, 3.0]);
    /// # Ok::<(), transload::Error>(())
    /// ```
    pub fn download<T: Pod + Send>(&self, array: &Array<T>) -> Download<T> {
        Download { runtime: self.clone(), src: array.clone(), dst: Target::New(HostBuffer::allocate) }
    }

    /// Copies an array into a `Vec` or a [`HostBuffer`] of the same length, and returns it when all is there. After an error it
    /// is dropped.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let weights = rt.zeros::<f32>(3)?;
    /// let vec = rt.download_into(&weights, vec![1.0; 3]).wait()?;
    /// assert_eq!(vec, [0.0; 3]);
    /// # Ok::<(), transload::Error>(())
    /// ```
    pub fn download_into<T: Pod, D: Destination<T>>(
        &self,
        array: &Array<T>,
        destination: D,
    ) -> Download<T, D> {
        Download { runtime: self.clone(), src: array.clone(), dst: Target::Given(destination) }
    }
}
