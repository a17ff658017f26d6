//! Someone else's tensor as the memory behind a buffer: given back when the last use of it is over.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{Place, Storage};

/// Where imported bytes are, and who sees them how.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) host: Option<NonNull<u8>>,
    pub(crate) device: Option<u64>,
    /// What the device's queues want to know of it.
    pub(crate) known: Option<Box<dyn Any + Send + Sync>>,
}

/// What an importer has taken in and not given back.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) tensors: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

struct Counted {
    tally: Arc<Tally>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tally.tensors.fetch_sub(1, Ordering::Release);
        self.tally.bytes.fetch_sub(self.bytes, Ordering::Release);
    }
}

/// The memory of an imported tensor. The fields are dropped in this order.
pub(crate) struct Foreign {
    /// Its drop calls the deleter.
    _tensor: Box<dyn Any + Send + Sync>,
    location: Location,
    bytes: usize,
    writable: bool,
    _counted: Counted,
}

// SAFETY: the tensor may be deleted on any thread, and the addresses are plain numbers.
unsafe impl Send for Foreign {}
// SAFETY: as above; access to the bytes is ordered by the buffer over them.
unsafe impl Sync for Foreign {}

impl Foreign {
    pub(crate) fn new(
        tensor: Box<dyn Any + Send + Sync>,
        location: Location,
        bytes: usize,
        writable: bool,
        tally: &Arc<Tally>,
    ) -> Self {
        tally.tensors.fetch_add(1, Ordering::Relaxed);
        tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let counted = Counted { tally: Arc::clone(tally), bytes: bytes as u64 };
        Self { _tensor: tensor, location, bytes, writable, _counted: counted }
    }
}

// SAFETY: the tensor's description is true, by the promise of `ManagedTensor::from_raw`, and of CUDA memory the driver
// confirmed it; the memory lives until the deleter is called, in the drop of this.
unsafe impl Storage for Foreign {
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
        match &self.location.known {
            Some(known) => &**known,
            None => self,
        }
    }
}
