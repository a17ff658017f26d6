//! Results of an import.

use std::fmt;

use transload_core::{Error, RawBuffer};

use crate::{DLDataType, DLPackVersion, Form, ManagedTensor};

/// An imported buffer and its layout. Clones of the buffer keep the tensor alive without this value.
#[derive(Debug)]
pub struct Imported {
    pub(crate) buffer: RawBuffer,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    pub(crate) dtype: DLDataType,
    pub(crate) version: Option<DLPackVersion>,
    pub(crate) copied: bool,
}

impl Imported {
    /// Returns the buffer, from the first element to the last; not writable for a read-only tensor, and of length 0 for
    /// a tensor without elements.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Returns the length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the stride of each dimension, in elements. The tensor is dense: in some order of the dimensions, each
    /// stride is the product of the lengths after it.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// Returns the tensor's version; `None` for the unversioned form.
    #[must_use]
    pub fn version(&self) -> Option<DLPackVersion> {
        self.version
    }

    /// Returns whether the producer copied the bytes for this import.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// Returns only the buffer.
    #[must_use]
    pub fn into_buffer(self) -> RawBuffer {
        self.buffer
    }
}

/// A failed import: the error and the tensor. Dropping it, or converting it into its error by `?`, calls the deleter;
/// [`into_tensor`](Self::into_tensor) keeps the tensor, for example for a capsule whose owner deletes it.
pub struct ImportError<M: Form + 'static> {
    error: Error,
    tensor: ManagedTensor<M>,
}

impl<M: Form> ImportError<M> {
    pub(crate) fn new(error: Error, tensor: ManagedTensor<M>) -> Self {
        Self { error, tensor }
    }

    /// Returns why the import failed.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the tensor unchanged.
    #[must_use]
    pub fn into_tensor(self) -> ManagedTensor<M> {
        self.tensor
    }
}

impl<M: Form> From<ImportError<M>> for Error {
    fn from(failed: ImportError<M>) -> Self {
        failed.error
    }
}

impl<M: Form> fmt::Debug for ImportError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportError").field("error", &self.error).field("tensor", &self.tensor).finish()
    }
}

impl<M: Form> fmt::Display for ImportError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: Form> std::error::Error for ImportError<M> {}
