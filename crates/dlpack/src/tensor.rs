//! A DLPack tensor in our hands: its deleter is called exactly once.

use std::{fmt, ptr::NonNull};

use transload_core::{Error, ErrorKind, Fence, Result};

use crate::{DLPackVersion, Form, registry};

/// An owned DLPack tensor of either form. Dropped, it calls the deleter (a null one means that there is nothing to call);
/// [`into_raw`](Self::into_raw) hands that duty on with the pointer.
pub struct ManagedTensor<M: Form + 'static> {
    raw: NonNull<M>,
    /// The work that whoever uses the memory comes after.
    fences: Vec<Fence>,
}

// SAFETY: the standard lets a tensor be deleted from any thread, and nothing of it is bound to one.
unsafe impl<M: Form> Send for ManagedTensor<M> {}
// SAFETY: what is reachable through a shared reference does not change while the tensor is owned.
unsafe impl<M: Form> Sync for ManagedTensor<M> {}

impl<M: Form> ManagedTensor<M> {
    /// Takes a tensor from its pointer, as it comes out of a capsule. Where this fails nothing was taken: the tensor is still
    /// the caller's.
    ///
    /// `fences` is how far the producer's own work is known: fences that are over only when it is. For a CUDA tensor pass
    /// your stream to the producer (`protocol_stream`), which puts it behind its work, and then that stream's
    /// `fence()`. None for memory that is at rest.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a null pointer, and for a tensor that this process holds already.
    ///
    /// # Safety
    /// * `raw` points to a valid tensor of the form `M` that the caller owns; nobody calls its deleter or uses it hereafter.
    ///   Of another major version only the fields up to the deleter need be valid.
    /// * Its description (shape, strides, type, device) is readable and true, and its memory is valid and, for the host,
    ///   initialised, until the deleter was called, which may happen on any thread.
    /// * From the end of `fences` until the deleter was called nobody else writes the memory, nor, unless the tensor is
    ///   read-only, reads it, except in an order with the buffer made of it that the caller sees to. Two tensors over one
    ///   memory are two buffers that know nothing of each other.
    pub unsafe fn from_raw(raw: *mut M, fences: &[Fence]) -> Result<Self> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::new(ErrorKind::InvalidArgument, "a null pointer is no DLPack tensor"));
        };
        if !raw.is_aligned() {
            let text = format!("a DLPack tensor is aligned to {} bytes, {raw:p} is not", align_of::<M>());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if !registry::insert(raw.addr().get()) {
            let text = format!("the DLPack tensor at {raw:p} was taken in already; it can be consumed once");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self { raw, fences: fences.to_vec() })
    }

    /// Gives the pointer away: who has it calls the deleter, once. Until then the memory lives, also where the process ends
    /// before. In Python it goes into a capsule named `dltensor_versioned`, or `dltensor` for the older form, whose consumer
    /// renames it to `used_…`; the capsule's destructor calls the deleter where it still has its first name.
    #[must_use = "who takes the pointer has to call the deleter"]
    pub fn into_raw(self) -> *mut M {
        let mut this = std::mem::ManuallyDrop::new(self);
        registry::remove(this.raw.addr().get());
        drop(std::mem::take(&mut this.fences));
        this.raw.as_ptr()
    }

    /// The version that the tensor says it is of; none for the older form.
    #[must_use]
    pub fn version(&self) -> Option<DLPackVersion> {
        self.form().version()
    }

    pub(crate) fn form(&self) -> &M {
        // SAFETY: valid and owned, by the promise of `from_raw`.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn fences(&self) -> &[Fence] {
        &self.fences
    }
}

impl<M: Form> Drop for ManagedTensor<M> {
    fn drop(&mut self) {
        // Before the deleter: the address may be another tensor's right after it.
        registry::remove(self.raw.addr().get());
        if transload_core::mutant!("dlpack/deleter-called") {
            return;
        }
        // SAFETY: owned, and not used after this.
        unsafe { M::drop_raw(self.raw.as_ptr()) };
    }
}

impl<M: Form> fmt::Debug for ManagedTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version().map(|version| (version.major, version.minor));
        write!(f, "ManagedTensor({:p}, version {version:?})", self.raw)
    }
}
