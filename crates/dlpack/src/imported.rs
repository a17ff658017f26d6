//! What became of a tensor that was to be imported.

use std::fmt;

use transload_core::{Error, RawBuffer};

use crate::{DLDataType, DLPackVersion, Form, ManagedTensor};

/// A tensor's memory as a buffer, and how its elements lie in it. The buffer's clones keep the tensor alive, also without this.
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
    /// The bytes, from the first element to the last; not writable where the tensor is for reading only. A tensor without
    /// elements gives a buffer without bytes.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Elements along each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Elements from one index to the next along each dimension. The tensor is dense: in some order of the dimensions these
    /// are the products of the lengths behind them.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// What an element is.
    #[must_use]
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// The tensor's version; none of the older form.
    #[must_use]
    pub fn version(&self) -> Option<DLPackVersion> {
        self.version
    }

    /// Whether the producer says that it copied the bytes for this import alone.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// The buffer alone.
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
