//! The streams that a device's transfers share: a few per priority, made when first asked for.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::RwLock;
use transload_core::{Error, ErrorKind, Queue, QueueLease, Result, StreamPriority};
use transload_memory::CudaDevice;

use crate::{CudaStream, kernels::Kernels};

/// Streams of one device, at most a fixed number per priority. Once all are leased, leases share streams.
#[derive(Debug)]
pub struct StreamLanes {
    device: CudaDevice,
    per_priority: usize,
    lanes: [RwLock<Vec<Arc<CudaStream>>>; 3],
    turn: AtomicUsize,
    kernels: OnceLock<Arc<Kernels>>,
}

impl StreamLanes {
    /// Lanes for a device; at least one per priority. Makes no stream yet.
    #[must_use]
    pub fn new(device: &CudaDevice, per_priority: usize) -> Self {
        Self {
            device: device.clone(),
            per_priority: per_priority.max(1),
            lanes: std::array::from_fn(|_| RwLock::default()),
            turn: AtomicUsize::new(0),
            kernels: OnceLock::new(),
        }
    }

    /// Leases the stream of the priority with the fewest leases and the least work outstanding.
    ///
    /// # Errors
    /// The driver's, where a stream has to be made.
    pub fn lease(&self, priority: StreamPriority) -> Result<QueueLease> {
        let lanes = &self.lanes[priority as usize];
        if lanes.read().len() < self.per_priority {
            self.grow(priority)?;
        }
        let lanes = lanes.read();
        // Where several are equally free, take turns.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % lanes.len().max(1);
        let (before, from) = lanes.split_at(turn.min(lanes.len()));
        let chosen = from
            .iter()
            .chain(before)
            // A broken stream has nothing outstanding; it is taken last, for its error.
            .min_by_key(|stream| {
                let leases = stream.own.leases.load(Ordering::Relaxed);
                (stream.own.check().is_err(), leases, stream.outstanding())
            });
        let Some(stream) = chosen else {
            return Err(Error::new(ErrorKind::Interrupted, "no stream could be made for this priority"));
        };
        stream.own.leases.fetch_add(1, Ordering::Relaxed);
        Ok(QueueLease::new(Arc::clone(stream) as Arc<dyn Queue>))
    }

    /// Makes one more stream unless enough were made meanwhile; the driver is called outside the lock.
    fn grow(&self, priority: StreamPriority) -> Result<()> {
        let stream = Arc::new(CudaStream::new_with_priority(&self.device, priority)?);
        let mut lanes = self.lanes[priority as usize].write();
        if lanes.len() < self.per_priority {
            lanes.push(stream);
        }
        Ok(())
    }

    /// Loads what [`CopyInPlace`](transload_core::Operation::CopyInPlace) needs, unless it is loaded already: the first time
    /// takes milliseconds, which nobody should spend who holds claims. It stays loaded while the lanes live.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not take the kernel; the driver's.
    pub fn prepare_in_place(&self) -> Result<()> {
        if self.kernels.get().is_none() {
            let kernels = Kernels::of(self.device.context()?)?;
            // Another thread may have been first: the same kernels, or others that do the same.
            let _first = self.kernels.set(kernels);
        }
        Ok(())
    }

    fn streams(&self) -> Vec<Arc<CudaStream>> {
        self.lanes.iter().flat_map(|lanes| lanes.read().clone()).collect()
    }

    /// How many leases are held.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.streams().iter().map(|stream| stream.own.leases.load(Ordering::Relaxed)).sum()
    }

    /// Blocks until every stream has done what is enqueued on it.
    ///
    /// # Errors
    /// The first error of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let mut outcome = Ok(());
        // Every stream is waited for, also after an error.
        for stream in self.streams() {
            outcome = outcome.and(stream.synchronize());
        }
        outcome
    }
}
