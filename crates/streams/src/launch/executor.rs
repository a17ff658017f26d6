//! Launches whose unified memory is prefetched to the device, concurrently with earlier work.

use std::sync::Arc;

use transload_core::{
    Access, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Result, Timing,
    events::report, submit,
};
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaFeature, DeviceResidency, PredictionLimits, PredictionStatistics,
};

use super::{Launch, uses::Advised};
use crate::CudaStream;

/// Enqueues launches with prefetches of their memory. The unified buffers that a launch declares are prefetched to the
/// device on a separate stream, concurrently with earlier work of the launch's stream. The launch waits for them on the
/// device, so it has no page faults. Resident memory is not prefetched again.
///
/// A buffer's [`role`](Launch::role) also gives the driver advice, once, before the launch.
///
/// If host and device cannot use unified memory concurrently (before Pascal), the driver moves all of it at each launch,
/// and the executor prefetches nothing.
///
/// ```
#[doc = include_str!("../../examples/launch.rs")]
/// ```
///
/// Usable from any thread. Dropping it neither waits for work nor aborts it.
#[derive(Debug)]
pub struct LaunchExecutor {
    device: CudaDevice,
    /// Streams for prefetches to the device and back: the link is full duplex.
    there: CudaStream,
    back: CudaStream,
    concurrent: bool,
    resident: Arc<DeviceResidency>,
    advised: Advised,
    prediction: Option<AutoPrefetcher>,
}

impl LaunchExecutor {
    /// Creates an executor with two streams on the device.
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

    /// Also prefetches ranges that later launches are expected to use, on one more stream: ranges of the declared buffers
    /// that follow each other, have a constant stride, or repeat in the same order. See [`AutoPrefetcher`].
    ///
    /// This helps if the host waits for a launch before it enqueues the next. If many launches are enqueued ahead, their
    /// own prefetches are early enough.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_prediction(mut self, limits: PredictionLimits) -> Result<Self> {
        let queue = Arc::new(CudaStream::new(&self.device)?);
        let residency = Arc::clone(&self.resident);
        self.prediction = Some(AutoPrefetcher::with_residency(&self.device, queue, limits, residency)?);
        Ok(self)
    }

    /// Returns statistics of the predictions, if enabled.
    #[must_use]
    pub fn prediction_statistics(&self) -> Option<PredictionStatistics> {
        self.prediction.as_ref().map(AutoPrefetcher::statistics)
    }

    /// Prefetches the declared buffers, and enqueues the launch on `stream` after that. With
    /// [`result_on`](Launch::result_on), the unified buffers that it writes are prefetched there afterwards. The fence
    /// completes with the last prefetch, or else with the kernel.
    ///
    /// # Errors
    /// As for [`Launch::enqueue`], and `InvalidArgument` for a kernel of another device. The launch was not enqueued then,
    /// but some prefetches may be in flight. If the prefetch of a result cannot be enqueued, the launch is in flight, and
    /// the error says so.
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
        let predicting = self.prediction.as_ref().filter(|auto| !auto.try_skip(there));
        // SAFETY: the caller's promise; the launch was just checked.
        let enqueued =
            self.prefetch(&launch, there.is_some()).and_then(|()| unsafe { launch.enqueue_checked(stream) });
        let fence = enqueued.inspect_err(|_| self.forget(&launch))?;
        if let Some(auto) = predicting {
            auto.predict_and_prefetch(buffers(&launch));
        }
        match launch.wanted_on() {
            Some(device) => self.prefetch_results(&launch, device, fence),
            None => Ok(fence),
        }
    }

    /// Prefetches a unified buffer to the host, after all earlier work on it. Does nothing and returns `None` for memory
    /// that cannot be prefetched: of other kinds, or without concurrent managed access.
    ///
    /// # Errors
    /// `Busy` if a host view is open on it; the driver's.
    pub fn prefetch_back(&self, buffer: &RawBuffer) -> Result<Option<Fence>> {
        self.prefetch_to(buffer, DeviceId::Cpu)
    }

    fn prefetch(&self, launch: &Launch<'_>, all_resident: bool) -> Result<()> {
        for (buffer, role) in launch.roles() {
            if self.migrates(buffer) {
                self.advised.apply(buffer, *role, self.device.id())?;
            }
        }
        for (buffer, _) in launch.uses().iter().filter(|_| !all_resident) {
            if !self.migrates(buffer) || self.resident.mark_resident(buffer) {
                continue;
            }
            match submit(&self.there, &Operation::Prefetch { buffer, to: self.device.id() }, Timing::Off) {
                Ok(fence) => self.resident.record_prefetch(buffer, fence, false),
                // A host view is open. The claim decides whether the launch conflicts with it.
                Err(error) if error.kind() == ErrorKind::Busy => {
                    self.resident.forget(buffer);
                    report::hint_declined("prefetch before a launch", self.device.id(), buffer.len(), &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn forget(&self, launch: &Launch<'_>) {
        launch.uses().iter().for_each(|(buffer, _)| self.resident.forget(buffer));
    }

    fn prefetch_results(&self, launch: &Launch<'_>, device: DeviceId, fence: Fence) -> Result<Fence> {
        let mut end = fence;
        for (buffer, access) in launch.uses() {
            if *access != Access::Write {
                continue;
            }
            match self.prefetch_to(buffer, device) {
                // All on one stream: the last completes after the others, and each after the launch.
                Ok(Some(sent)) => end = sent,
                Ok(None) => {}
                // A host view is open already.
                Err(error) if error.kind() == ErrorKind::Busy => {
                    report::hint_declined("prefetch after a launch", self.device.id(), buffer.len(), &error);
                }
                Err(error) => {
                    let text = "the launch is in flight, but its results cannot be prefetched";
                    return Err(Error::caused_by(error.kind(), text, error));
                }
            }
        }
        Ok(end)
    }

    fn prefetch_to(&self, buffer: &RawBuffer, to: DeviceId) -> Result<Option<Fence>> {
        if !self.migrates(buffer) || to == self.device.id() {
            return Ok(None);
        }
        self.resident.forget(buffer);
        submit(&self.back, &Operation::Prefetch { buffer, to }, Timing::Off).map(Some)
    }

    /// Returns whether the buffer is unified memory that can be prefetched; only then it has a host address.
    fn migrates(&self, buffer: &RawBuffer) -> bool {
        let unified = buffer.place().kind == MemoryKind::Unified;
        unified && self.concurrent && !buffer.is_empty() && buffer.host_address().is_some()
    }
}

fn buffers<'a>(launch: &Launch<'a>) -> impl Iterator<Item = &'a RawBuffer> + Clone {
    launch.uses().iter().map(|(buffer, _)| *buffer)
}
