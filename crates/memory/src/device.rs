//! A CUDA device and its primary context, created on first use.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
    time::Instant,
};

use transload_core::{DeviceId, Error, Fence, MemoryKind, MemoryShortage, Place, Result, events::report};
use transload_cuda_sys::{Context, Device, RelaxedCapture, observe_drop_errors, record_drop_error};
use transload_executor::DropQueue;

use crate::{CudaFeature, DeviceProfile, EndWords, ListPages, UnifiedSupport, error::check_usable, lift};

/// Approximate device memory of a context in bytes (measured on an H200).
const CONTEXT_BYTES: u64 = 500_000_000;

/// A CUDA device of this process. Clones share it.
#[derive(Clone)]
pub struct CudaDevice {
    shared: Arc<Shared>,
}

struct Shared {
    device: Device,
    /// Created on first use: a context takes about 200 ms and device memory, and a machine may have eight devices.
    context: OnceLock<Context>,
    /// Drops the owners of adopted memory and streams.
    drops: DropQueue,
    lists: Arc<ListPages>,
    end_words: Arc<EndWords>,
    profile: Arc<DeviceProfile>,
}

impl CudaDevice {
    /// Returns the device with this ordinal. The first call loads the driver; no context is created yet.
    ///
    /// # Errors
    /// `NoDriver`, `NoDevice`, `DriverTooOld`, or `UnknownDevice` naming the valid ordinals.
    pub fn new(ordinal: u32) -> Result<Self> {
        let device = Device::new(ordinal).map_err(lift)?;
        observe_drop_errors(|error| report::drop_failed(error));
        Ok(Self {
            shared: Arc::new(Shared {
                device,
                context: OnceLock::new(),
                drops: DropQueue::default(),
                lists: Arc::default(),
                end_words: Arc::default(),
                profile: Arc::default(),
            }),
        })
    }

    /// Returns the device identifier.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.ordinal())
    }

    /// Returns the device ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.shared.device.ordinal()
    }

    /// Returns the driver handle.
    #[must_use]
    pub fn driver(&self) -> Device {
        self.shared.device
    }

    /// Returns the primary context. The first call retains it, creating it if the process has none.
    ///
    /// # Errors
    /// The driver's.
    pub fn context(&self) -> Result<&Context> {
        if let Some(context) = self.shared.context.get() {
            return Ok(context);
        }
        let begun = Instant::now();
        let made = Context::primary(self.shared.device).map_err(|error| {
            if !error.is_out_of_memory() {
                return lift(error);
            }
            // Usually another process holds the memory. Without a context only the total can be queried.
            let total = self.shared.device.total_memory().ok().map(|total| total as u64);
            let shortage = MemoryShortage { requested: CONTEXT_BYTES, free: None, total };
            Error::out_of_memory(Place::new(self.id(), MemoryKind::Device), shortage)
        })?;
        // If two threads race, the loser's reference is released here.
        Ok(self.shared.context.get_or_init(|| {
            report::first_use("context", self.id(), begun.elapsed());
            made
        }))
    }

    /// Returns whether the process has the primary context, so that [`context`](Self::context) creates none. `false` also if the
    /// driver cannot tell.
    #[must_use]
    pub fn has_context(&self) -> bool {
        self.shared.context.get().is_some() || self.shared.device.has_primary_context().unwrap_or(false)
    }

    /// Returns the memory for lists that kernels read. Shared by clones.
    #[must_use]
    pub fn lists(&self) -> &Arc<ListPages> {
        &self.shared.lists
    }

    /// Returns the words that streams write at the end of their work. Shared by clones.
    #[must_use]
    pub fn end_words(&self) -> &Arc<EndWords> {
        &self.shared.end_words
    }

    /// Returns the device's clock and the place for a profiler's sink. Shared by clones.
    #[must_use]
    pub fn profile(&self) -> &Arc<DeviceProfile> {
        &self.shared.profile
    }

    /// Returns the queue that drops the owners of adopted memory and streams. Shared by clones.
    #[must_use]
    pub fn drops(&self) -> &DropQueue {
        &self.shared.drops
    }

    /// Drops an owner of memory or of a stream by [`drops`](Self::drops) once the fences are complete, with the primary context current
    /// if there is one: destructors of cust need it, for example.
    pub fn drop_later(&self, owner: impl Any + Send, after: Vec<Fence>) {
        self.drops().push(Box::new(self.bound(owner)), after);
    }

    /// Returns an owner of `owner`, which drops it with the primary context current if there is one.
    pub fn bound<O: Any + Send>(&self, owner: O) -> impl Any + Send + use<O> {
        let context = self.shared.context.get().filter(|_| !transload_core::mutant!("memory/owner-bound"));
        BoundOwner { owner: Some(owner), context: context.cloned() }
    }

    /// Returns an error if the context is known to be lost. Does not call the driver.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceLost`](transload_core::ErrorKind::DeviceLost) with the first cause.
    #[inline]
    pub fn check_usable(&self) -> Result<()> {
        self.shared.context.get().map_or(Ok(()), check_usable)
    }

    /// Returns whether the device has a capability. A driver that does not know the attribute counts as lacking it.
    ///
    /// # Errors
    /// The driver's.
    pub fn supports_feature(&self, feature: CudaFeature) -> Result<bool> {
        const INVALID_VALUE: u32 = 1;
        let Some(number) = feature.attribute() else { return self.has_peer() };
        match self.shared.device.attribute(number) {
            Err(error) if error.code() == Some(INVALID_VALUE) => Ok(false),
            other => other.map(|value| value != 0).map_err(lift),
        }
    }

    fn has_peer(&self) -> Result<bool> {
        let own = self.shared.device;
        for other in Device::all().map_err(lift)? {
            if other != own && own.can_access_peer(other).map_err(lift)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the level of unified-memory support.
    ///
    /// # Errors
    /// The driver's.
    pub fn unified_support(&self) -> Result<UnifiedSupport> {
        let managed = self.supports_feature(CudaFeature::ManagedMemory)?;
        let concurrent = self.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
        Ok(UnifiedSupport::of(self.compute_capability()?, managed, concurrent))
    }

    /// Returns the compute capability as (major, minor).
    ///
    /// # Errors
    /// The driver's.
    pub fn compute_capability(&self) -> Result<(i32, i32)> {
        self.shared.device.compute_capability().map_err(lift)
    }
}

/// An owner that is dropped with a context current, and without effect on captures of other threads.
struct BoundOwner<O> {
    owner: Option<O>,
    context: Option<Context>,
}

impl<O> Drop for BoundOwner<O> {
    fn drop(&mut self) {
        let bound = self.context.as_ref().map(Context::enter).transpose();
        // Else a destructor that frees memory would end them.
        let relaxed = RelaxedCapture::enter();
        drop(self.owner.take());
        // The owner then had no context, as its destructor may have noticed.
        record_drop_error(bound.and(relaxed).map(drop));
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.id())
    }
}
