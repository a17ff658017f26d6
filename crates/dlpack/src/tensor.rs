//! Owned DLPack tensors.

use std::{fmt, ptr::NonNull};

use transload_core::{Error, ErrorKind, Fence, Result};

use crate::{DLPackVersion, Form, registry};

/// An owned DLPack tensor of either form. Dropping it calls the deleter, unless that is null;
/// [`into_raw`](Self::into_raw) returns the pointer instead.
pub struct ManagedTensor<M: Form + 'static> {
    raw: NonNull<M>,
    /// The producer's work, for which uses of the memory must wait.
    fences: Vec<Fence>,
}

// SAFETY: the standard allows deleting a tensor on any thread; nothing in it is bound to one.
unsafe impl<M: Form> Send for ManagedTensor<M> {}
// SAFETY: nothing reachable by a shared reference changes while the tensor is owned.
unsafe impl<M: Form> Sync for ManagedTensor<M> {}

impl<M: Form> ManagedTensor<M> {
    /// Takes ownership of a tensor by its pointer, as found in a capsule. On an error the tensor still belongs to the
    /// caller.
    ///
    /// `fences` are complete only when the producer's own work on the memory is. For a CUDA tensor, pass your stream to
    /// the producer (`protocol_stream`), which makes it wait, and then that stream's `fence()` here. Pass none if no
    /// work is in flight.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a null pointer, and for a tensor that this process owns already.
    ///
    /// # Safety
    /// * `raw` points to a valid tensor of the form `M` that the caller owns; no one else calls its deleter or uses
    ///   it from now on. With another major version, only the fields up to the deleter need be valid.
    /// * Its description (shape, strides, type, device) is readable and true. Its memory is valid and, on the host,
    ///   initialised, until the deleter was called, which may happen on any thread.
    /// * Host memory that is page-locked (registered with CUDA) now stays so until the deleter was called.
    /// * From the completion of `fences` until the deleter was called, no one else writes the memory, nor reads it
    ///   unless the tensor is read-only, except if the caller orders that with uses of the imported buffer. Two tensors
    ///   of the same memory become two buffers that are not ordered with each other.
    pub unsafe fn from_raw(raw: *mut M, fences: &[Fence]) -> Result<Self> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::new(ErrorKind::InvalidArgument, "the pointer to the DLPack tensor is null"));
        };
        if !raw.is_aligned() {
            let text = format!("a DLPack tensor must be aligned to {} bytes, got {raw:p}", align_of::<M>());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if !registry::insert(raw.addr().get()) {
            let text =
                format!("the DLPack tensor at {raw:p} is imported already; a tensor can be consumed once");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self { raw, fences: fences.to_vec() })
    }

    /// Returns the pointer and the duty to call the deleter, once. Until then the memory lives, even if the process
    /// exits first. In Python, put it into a capsule named `dltensor_versioned`, or `dltensor` for the unversioned
    /// form. The consumer renames the capsule to `used_…`; the capsule's destructor calls the deleter if it still has
    /// its first name.
    #[must_use = "the owner of the pointer must call the deleter"]
    pub fn into_raw(self) -> *mut M {
        let mut this = std::mem::ManuallyDrop::new(self);
        registry::remove(this.raw.addr().get());
        drop(std::mem::take(&mut this.fences));
        this.raw.as_ptr()
    }

    /// Returns the tensor's version; `None` for the unversioned form.
    #[must_use]
    pub fn version(&self) -> Option<DLPackVersion> {
        self.form().version()
    }

    pub(crate) fn form(&self) -> &M {
        // SAFETY: valid and owned, as promised to `from_raw`.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn fences(&self) -> &[Fence] {
        &self.fences
    }
}

impl<M: Form> Drop for ManagedTensor<M> {
    fn drop(&mut self) {
        // Before the deleter: another tensor may get the address right after it.
        registry::remove(self.raw.addr().get());
        if transload_core::mutant!("dlpack/deleter-called") {
            return;
        }
        // SAFETY: owned, and not used afterwards.
        unsafe { M::drop_raw(self.raw.as_ptr()) };
    }
}

impl<M: Form> fmt::Debug for ManagedTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version().map(|version| (version.major, version.minor));
        write!(f, "ManagedTensor({:p}, version {version:?})", self.raw)
    }
}
