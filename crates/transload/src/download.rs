//! Copies of arrays to memory that the caller owns alone.

use std::{
    fmt,
    future::{Future, IntoFuture, poll_fn},
    marker::PhantomData,
    pin::Pin,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use transload_core::{DeviceId, MemoryKind, Pod, Result, bytes_of_elements, check_same_len};

use crate::{Array, HostBuffer, Runtime};

/// Up to so many bytes are allocated by the thread that polls: they are touched in a few microseconds.
const SMALL: usize = 64 << 10;

/// A copy to the host that begins when it is awaited, or [waited for](Self::wait). Returned by [`Runtime::download`] and
/// [`Runtime::download_into`]; owns all that it needs.
#[must_use = "nothing is copied before it is awaited or waited for"]
pub struct Download<D>(Box<dyn Run<D>>);

trait Run<D>: Send {
    fn wait(self: Box<Self>) -> Result<D>;
    fn run(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<D>> + Send>>;
}

impl<D> Download<D> {
    /// Copies, and blocks until the bytes are in place.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory); those of a transfer.
    pub fn wait(self) -> Result<D> {
        self.0.wait()
    }
}

impl<D> IntoFuture for Download<D> {
    type Output = Result<D>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<D>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        self.0.run()
    }
}

impl<D> fmt::Debug for Download<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Download")
    }
}

/// What [`Runtime::download_into`] fills and returns: a `Vec<T>` or a [`HostBuffer<T>`].
pub trait Destination<T: Pod>: lent::Lend<T, Output = Self> {}

impl<T: Pod + Send> Destination<T> for HostBuffer<T> {}
impl<T: Pod + Send> Destination<T> for Vec<T> {}

pub(crate) mod lent {
    use super::*;

    /// Gives its memory away for a while.
    pub trait Lend<T: Pod>: Send + 'static {
        /// What is returned in the end.
        type Output: Send + 'static;
        /// What returns it.
        type Lent: Lent<T, Output = Self::Output>;

        fn len(&self) -> usize;

        /// Whether that takes at most some microseconds.
        fn is_quick(&self) -> bool {
            true
        }

        fn lend(self, runtime: &Runtime) -> Result<(Array<T>, Self::Lent)>;
    }

    /// The other end of memory that was lent.
    pub trait Lent<T: Pod>: Send + 'static {
        type Output;

        /// Blocks until nothing else uses the array.
        fn wait(self, array: Array<T>) -> Result<Self::Output>;

        fn returned(self, array: Array<T>) -> impl Future<Output = Result<Self::Output>> + Send;
    }
}

use lent::{Lend, Lent};

/// A buffer of so many elements, to be made.
pub(crate) struct NewBuffer<T> {
    len: usize,
    elements: PhantomData<fn() -> T>,
}

/// A buffer was lent: the array is all of it.
pub struct LentBuffer(());

impl<T: Pod + Send> Lend<T> for NewBuffer<T> {
    type Output = HostBuffer<T>;
    type Lent = LentBuffer;

    fn len(&self) -> usize {
        self.len
    }

    fn is_quick(&self) -> bool {
        self.len.saturating_mul(size_of::<T>()) <= SMALL
    }

    fn lend(self, runtime: &Runtime) -> Result<(Array<T>, LentBuffer)> {
        let array = match self.len {
            0 => runtime.host(Vec::new())?,
            len => {
                let bytes = bytes_of_elements::<T>(len)?;
                Array::from_raw(runtime.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?)?
            }
        };
        Ok((array, LentBuffer(())))
    }
}

impl<T: Pod + Send> Lend<T> for HostBuffer<T> {
    type Output = Self;
    type Lent = LentBuffer;

    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    fn lend(self, _: &Runtime) -> Result<(Array<T>, LentBuffer)> {
        Ok((self.into_array(), LentBuffer(())))
    }
}

impl<T: Pod + Send> Lent<T> for LentBuffer {
    type Output = HostBuffer<T>;

    fn wait(self, array: Array<T>) -> Result<HostBuffer<T>> {
        HostBuffer::from_array(array)
    }

    async fn returned(self, array: Array<T>) -> Result<HostBuffer<T>> {
        HostBuffer::from_array_async(array).await
    }
}

impl<T: Pod + Send> Lend<T> for Vec<T> {
    type Output = Self;
    type Lent = LentVec<T>;

    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn lend(mut self, runtime: &Runtime) -> Result<(Array<T>, LentVec<T>)> {
        let (address, bytes) = (NonNull::from(self.as_mut_slice()).cast(), size_of_val(self.as_slice()));
        let slot = Arc::<Slot<T>>::default();
        let owner = Owner { elements: Some(self), slot: Arc::clone(&slot) };
        // SAFETY: the vector keeps its initialised bytes at this address until the owner is dropped; no other reference exists.
        let raw = unsafe { runtime.host_backend().wrap_raw(owner, address, bytes) };
        Ok((Array::from_raw(raw)?, LentVec(slot)))
    }
}

/// A vector that a buffer owns for the time being.
struct Owner<T: Pod + Send> {
    /// Taken when the buffer and all work on it are gone.
    elements: Option<Vec<T>>,
    slot: Arc<Slot<T>>,
}

// SAFETY: nothing is reachable through a shared reference.
unsafe impl<T: Pod + Send> Sync for Owner<T> {}

impl<T: Pod + Send> Drop for Owner<T> {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        state.elements = self.elements.take();
        let waker = state.waker.take();
        drop(state);
        self.slot.returned.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Where a vector is put that a buffer owned.
pub struct LentVec<T>(Arc<Slot<T>>);

struct Slot<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

struct State<T> {
    elements: Option<Vec<T>>,
    waker: Option<Waker>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { elements: None, waker: None }), returned: Condvar::new() }
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Pod + Send> Lent<T> for LentVec<T> {
    type Output = Vec<T>;

    fn wait(self, array: Array<T>) -> Result<Vec<T>> {
        drop(array);
        let mut state = self.0.lock();
        loop {
            match state.elements.take() {
                Some(elements) => return Ok(elements),
                None => state = self.0.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    async fn returned(self, array: Array<T>) -> Result<Vec<T>> {
        drop(array);
        poll_fn(|context| {
            // A waker is the caller's code: it is cloned and dropped outside the lock.
            let waker = context.waker().clone();
            let mut state = self.0.lock();
            match state.elements.take() {
                Some(elements) => Poll::Ready(Ok(elements)),
                None => {
                    let before = state.waker.replace(waker);
                    drop(state);
                    drop(before);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

struct Job<T, D> {
    runtime: Runtime,
    src: Array<T>,
    dst: D,
}

impl<T: Pod, D: Lend<T>> Run<D::Output> for Job<T, D> {
    fn wait(self: Box<Self>) -> Result<D::Output> {
        let Self { runtime, src, dst } = *self;
        check_same_len(src.len(), dst.len())?;
        let (array, lent) = dst.lend(&runtime)?;
        if !src.is_empty() {
            runtime.copy(&src, &array).wait()?;
        }
        lent.wait(array)
    }

    fn run(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<D::Output>> + Send>> {
        Box::pin(async move {
            let Self { runtime, src, dst } = *self;
            check_same_len(src.len(), dst.len())?;
            let (array, lent) = if dst.is_quick() {
                dst.lend(&runtime)?
            } else {
                let theirs = runtime.clone();
                runtime.call(move || dst.lend(&theirs)).await?
            };
            if !src.is_empty() {
                runtime.copy(&src, &array).await?;
            }
            drop(src);
            lent.returned(array).await
        })
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
    pub fn download<T: Pod + Send>(&self, array: &Array<T>) -> Download<HostBuffer<T>> {
        self.start_download(array, NewBuffer { len: array.len(), elements: PhantomData })
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
    pub fn download_into<T: Pod, D: Destination<T>>(&self, array: &Array<T>, destination: D) -> Download<D> {
        self.start_download(array, destination)
    }

    fn start_download<T: Pod, D: Lend<T>>(&self, array: &Array<T>, dst: D) -> Download<D::Output> {
        Download(Box::new(Job { runtime: self.clone(), src: array.clone(), dst }))
    }
}
