//! Finished elements of the host.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    slice,
    sync::Arc,
};

use transload_core::{Access, Backend, DeviceId, Place, Pod, RangeGuard, Result, TryLockResult};

use crate::Array;

/// Elements in the host's memory that nothing else uses: [`Runtime::download`](crate::Runtime::download) returns one. Reads and
/// writes like a slice, without a check.
///
/// It is no handle, so it cannot be cloned; [`into_array`](Self::into_array) gives one:
///
/// ```compile_fail
/// let rt = transload::Runtime::discover()?;
/// let buffer = rt.download(&rt.zeros::<u8>(4)?).wait()?;
/// let another = buffer.clone();
/// # Ok::<(), transload::Error>(())
/// ```
///
/// It holds the bytes exclusively: through any other handle of them everything returns [`Busy`](crate::ErrorKind::Busy).
pub struct HostBuffer<T> {
    /// Keeps all other users of the bytes away while it is there, and keeps the memory alive.
    exclusive: RangeGuard,
    /// That of the array.
    backend: Arc<dyn Backend>,
    elements: PhantomData<T>,
}

impl<T: Pod> HostBuffer<T> {
    /// Takes all of an array once no work in flight uses it. Blocks until then.
    ///
    /// # Errors
    /// As for [`Array::write`].
    pub fn from_array(array: Array<T>) -> Result<Self> {
        loop {
            // Also says what is wrong with the memory.
            if !transload_core::mutant!("transload/host-buffer-is-writable") {
                drop(array.write()?);
            }
            let shared = transload_core::mutant!("transload/host-buffer-is-exclusive");
            let access = if shared { Access::Read } else { Access::Write };
            if let TryLockResult::Locked(exclusive) = array.raw().try_lock_range(access)? {
                return Ok(Self { exclusive, backend: array.backend, elements: PhantomData });
            }
        }
    }

    /// Returns the elements as an array, without a copy.
    #[must_use]
    pub fn into_array(self) -> Array<T> {
        Array { raw: self.exclusive.buffer().clone(), backend: self.backend, elements: PhantomData }
    }

    /// Returns where the elements are.
    pub(crate) fn place(&self) -> Place {
        self.exclusive.buffer().place()
    }

    /// Returns the device whose driver alone knows the memory.
    pub(crate) fn maker(&self) -> Option<DeviceId> {
        self.exclusive.buffer().maker()
    }

    /// Copies the elements into a vector. [`Runtime::download_into`](crate::Runtime::download_into) fills a vector without this copy.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.to_vec()
    }

    fn address(&self) -> (*mut T, usize) {
        let raw = self.exclusive.buffer();
        let len = raw.len().checked_div(size_of::<T>()).unwrap_or(0);
        match raw.host_address() {
            Some(address) => (address.as_ptr().cast(), len),
            None => (std::ptr::dangling_mut(), 0),
        }
    }
}

impl<T: Pod> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let (address, len) = self.address();
        // SAFETY: the array was checked for length and alignment, its storage promises initialised memory while the buffer
        // lives, and the guard keeps everybody else away from the bytes.
        unsafe { slice::from_raw_parts(address, len) }
    }
}

impl<T: Pod> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let (address, len) = self.address();
        // SAFETY: as above; `from_array` found the memory writable, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(address, len) }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostBuffer").field(&&**self).finish()
    }
}
