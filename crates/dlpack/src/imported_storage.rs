//! Storage of an imported tensor, whose deleter runs after the last use.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{Place, Storage};

/// Location and addresses of imported bytes.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) host: Option<NonNull<u8>>,
    pub(crate) device: Option<u64>,
    /// Data that queues of the device need, returned by `as_any`.
    pub(crate) backend_data: Option<Box<dyn Any + Send + Sync>>,
}

/// Counts of imported tensors that are not released.
#[derive(Debug, Default)]
pub(crate) struct ImportCounts {
    pub(crate) tensors: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

struct CountGuard {
    counts: Arc<ImportCounts>,
    bytes: u64,
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.counts.tensors.fetch_sub(1, Ordering::Release);
        self.counts.bytes.fetch_sub(self.bytes, Ordering::Release);
    }
}

/// Storage of an imported tensor. Fields are dropped in this order.
pub(crate) struct ImportedStorage {
    /// Calls the deleter on drop.
    _tensor: Box<dyn Any + Send + Sync>,
    location: Location,
    bytes: usize,
    writable: bool,
    _count_guard: CountGuard,
}

// SAFETY: the tensor may be deleted on any thread; the addresses are plain numbers.
unsafe impl Send for ImportedStorage {}
// SAFETY: as above; the buffer orders access to the bytes.
unsafe impl Sync for ImportedStorage {}

impl ImportedStorage {
    pub(crate) fn new(
        tensor: Box<dyn Any + Send + Sync>,
        location: Location,
        bytes: usize,
        writable: bool,
        counts: &Arc<ImportCounts>,
    ) -> Self {
        counts.tensors.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let guard = CountGuard { counts: Arc::clone(counts), bytes: bytes as u64 };
        Self { _tensor: tensor, location, bytes, writable, _count_guard: guard }
    }
}

// SAFETY: the description is true, as promised to `ManagedTensor::from_raw` and, for CUDA memory, confirmed by the
// driver; the memory lives until the deleter is called, when this is dropped.
unsafe impl Storage for ImportedStorage {
    fn place(&self) -> Place {
        self.location.place
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.location.host
    }

    fn device_address(&self) -> Option<u64> {
        self.location.device
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn as_any(&self) -> &dyn Any {
        match &self.location.backend_data {
            Some(backend_data) => &**backend_data,
            None => self,
        }
    }
}
