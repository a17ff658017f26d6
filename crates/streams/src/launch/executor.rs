//! Launches whose unified memory is brought to the device beforehand, beside the work that is already under way.

use std::sync::Arc;

use transload_core::{
    Access, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Result, Timing, submit,
};
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaFeature, DeviceResidency, PredictionLimits, PredictionStatistics,
};

use super::{Launch, uses::Advised};
use crate::CudaStream;

/// Enqueues launches so that they find their memory in place. The unified buffers that a launch declares are prefetched to the
/// device on a stream of the executor's own, while earlier work of the launch's stream goes on; the launch waits for that on
/// the device, and its first touch of a page is no fault. What lies there already is not prefetched again.
///
/// A buffer's [`role`](Launch::role) gives the driver the advice that goes with it, once, before the launch.
///
/// Where the device cannot use unified memory at the same time as the host (before Pascal), the driver moves all of it by
/// itself at each launch, and the executor prefetches nothing.
///
/// ```
#[doc = include_str!("../../examples/launch.rs")]
/// ```
///
/// Usable from any thread. Dropping it neither waits for work nor cuts it short.
#[derive(Debug)]
pub struct LaunchExecutor {
    device: CudaDevice,
    /// Prefetches towards the device, and back: on a stream each, since the link carries both ways at once.
    there: CudaStream,
    back: CudaStream,
    concurrent: bool,
    resident: Arc<DeviceResidency>,
    advised: Advised,
    prediction: Option<AutoPrefetcher>,
}

impl LaunchExecutor {
    /// An executor with two streams of its own on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            there: CudaStream::new(device)?,
            back: CudaStream::new(device)?,
            concurrent: device.supports_feature(CudaFeature::ConcurrentManagedAccess)?,
            resident: Arc::new(DeviceResidency::new(device.id())),
            advised: Advised::default(),
            prediction: None,
        })
    }

    /// Also prefetches what later launches are expected to use, on one more stream of its own: ranges of the declared
    /// buffers that follow one another, lie a stride apart, or come again in the same order. See [`AutoPrefetcher`].
    ///
    /// It pays where a launch is enqueued late, because the host waits for the one before; where many launches are enqueued
    /// ahead, each one's own prefetches are early enough.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_prediction(mut self, limits: PredictionLimits) -> Result<Self> {
        let queue = Arc::new(CudaStream::new(&self.device)?);
        let residency = Arc::clone(&self.resident);
        self.prediction = Some(AutoPrefetcher::with_residency(&self.device, queue, limits, residency)?);
        Ok(self)
    }

    /// What came of the predictions, where there are any.
    #[must_use]
    pub fn prediction_statistics(&self) -> Option<PredictionStatistics> {
        self.prediction.as_ref().map(AutoPrefetcher::statistics)
    }

    /// Prefetches what the launch declares, and enqueues it on `stream` behind that. With
    /// [`result_on`](Launch::result_on) the unified buffers that it writes are prefetched there behind it; the fence is then
    /// over when that is, else when the kernel is.
    ///
    /// # Errors
    /// As for [`Launch::enqueue`], and `InvalidArgument` for a kernel of another device than the executor's. The launch was
    /// not enqueued then, but some of its memory may be on its way to the device. Where prefetching a result cannot be
    /// enqueued, the launch is under way all the same, and the error says so.
    ///
    /// # Safety
    /// * As for [`Launch::enqueue`].
    pub unsafe fn enqueue(&self, mut launch: Launch<'_>, stream: &CudaStream) -> Result<Fence> {
        if launch.kernel().device() != self.device.id() {
            let (name, own, other) = (launch.kernel().name(), launch.kernel().device(), self.device.id());
            let text = format!("{name} is loaded for {own}; this executor is one of {other}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        launch.check(stream)?;
        let there = if self.concurrent { self.resident.declare(buffers(&launch)) } else { Some(0) };
        let looks = self.prediction.as_ref().filter(|auto| !auto.try_skip(there));
        // SAFETY: the caller's promise; the launch was just checked.
        let enqueued =
            self.bring(&launch, there.is_some()).and_then(|()| unsafe { launch.enqueue_checked(stream) });
        let fence = enqueued.inspect_err(|_| self.forget(&launch))?;
        if let Some(auto) = looks {
            auto.predict_and_prefetch(buffers(&launch));
        }
        match launch.wanted_on() {
            Some(device) => self.take_back(&launch, device, fence),
            None => Ok(fence),
        }
    }

    /// Prefetches a unified buffer to the host, behind the work that uses it so far. Nothing is done, and `None` is the
    /// answer, for memory that does not migrate: of other kinds, or on a device that moves it by itself.
    ///
    /// # Errors
    /// `Busy` where a host view is open on it; the driver's.
    pub fn prefetch_back(&self, buffer: &RawBuffer) -> Result<Option<Fence>> {
        self.send(buffer, DeviceId::Cpu)
    }

    fn bring(&self, launch: &Launch<'_>, all_there: bool) -> Result<()> {
        for (buffer, role) in launch.roles() {
            if self.migrates(buffer) {
                self.advised.apply(buffer, *role, self.device.id())?;
            }
        }
        for (buffer, _) in launch.uses().iter().filter(|_| !all_there) {
            if !self.migrates(buffer) || self.resident.mark_resident(buffer) {
                continue;
            }
            match submit(&self.there, &Operation::Prefetch { buffer, to: self.device.id() }, Timing::Off) {
                Ok(fence) => self.resident.record_prefetch(buffer, fence, false),
                // The host looks at it. Whether the launch may do so too is decided where it is claimed.
                Err(error) if error.kind() == ErrorKind::Busy => self.resident.forget(buffer),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn forget(&self, launch: &Launch<'_>) {
        launch.uses().iter().for_each(|(buffer, _)| self.resident.forget(buffer));
    }

    fn take_back(&self, launch: &Launch<'_>, device: DeviceId, fence: Fence) -> Result<Fence> {
        let mut end = fence;
        for (buffer, access) in launch.uses() {
            if *access != Access::Write {
                continue;
            }
            match self.send(buffer, device) {
                // One stream: the last is over after all others, and each after the launch.
                Ok(Some(sent)) => end = sent,
                Ok(None) => {}
                // Somebody on the host looks at it already.
                Err(error) if error.kind() == ErrorKind::Busy => {}
                Err(error) => {
                    let text = "the launch is under way, but its results cannot be prefetched";
                    return Err(Error::caused_by(error.kind(), text, error));
                }
            }
        }
        Ok(end)
    }

    fn send(&self, buffer: &RawBuffer, to: DeviceId) -> Result<Option<Fence>> {
        if !self.migrates(buffer) || to == self.device.id() {
            return Ok(None);
        }
        self.resident.forget(buffer);
        submit(&self.back, &Operation::Prefetch { buffer, to }, Timing::Off).map(Some)
    }

    /// Whether the buffer is unified memory that can be prefetched: the host has an address of it only then.
    fn migrates(&self, buffer: &RawBuffer) -> bool {
        let unified = buffer.place().kind == MemoryKind::Unified;
        unified && self.concurrent && !buffer.is_empty() && buffer.host_address().is_some()
    }
}

fn buffers<'a>(launch: &Launch<'a>) -> impl Iterator<Item = &'a RawBuffer> + Clone {
    launch.uses().iter().map(|(buffer, _)| *buffer)
}
