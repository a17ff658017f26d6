//! The clock of a device.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use transload_core::{ClockAnchor, ClockId, DeviceClock, DeviceId, Error, ErrorKind, Result};

use crate::vulkan::{Commands, Submissions};

/// How long a device's clock and the host's may go without a comparison: they differ by some hundred millionths.
const ANCHOR_INTERVAL: Duration = Duration::from_secs(1);

/// The timestamps of a queue, as a clock.
pub(crate) struct WgpuClock {
    id: ClockId,
    queue: Arc<Submissions>,
}

impl WgpuClock {
    pub(crate) fn new(queue: &Arc<Submissions>) -> Self {
        Self { id: ClockId::next(), queue: Arc::clone(queue) }
    }

    /// Submits a timestamp, and returns its slot and point.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a queue without timestamps; the driver's.
    pub(crate) fn submit(&self) -> Result<(u32, u64)> {
        let slot = self.queue.reserve_timestamp()?;
        let command: Commands = self.queue.timestamp(slot).into_iter().collect();
        // SAFETY: the command uses no buffer.
        let point = unsafe { self.queue.submit(&command) };
        let point = point.inspect_err(|_| self.queue.release_timestamp(slot))?;
        self.queue.set_timestamp_point(slot, point);
        Ok((slot, point))
    }

    fn read(&self) -> Result<ClockAnchor> {
        let before = Instant::now();
        let (slot, point) = self.submit()?;
        self.queue.block_until(point);
        let after = Instant::now();
        let device = self.queue.read_timestamp(slot);
        self.queue.release_timestamp(slot);
        let unknown =
            || Error::new(ErrorKind::Device, format!("{}: a timestamp was not written", self.queue.device()));
        Ok(ClockAnchor { device: device?.ok_or_else(unknown)?, before, after })
    }
}

impl DeviceClock for WgpuClock {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.queue.device()
    }

    fn resolution(&self) -> Duration {
        let nanoseconds = self.queue.vulkan.nanoseconds_per_tick.unwrap_or(1.0);
        Duration::from_nanos(nanoseconds.ceil().max(1.0) as u64)
    }

    fn time(&self, token: u64) -> Result<Option<i64>> {
        u32::try_from(token).map_or(Ok(None), |slot| self.queue.read_timestamp(slot))
    }

    fn release(&self, token: u64) {
        if let Ok(slot) = u32::try_from(token) {
            self.queue.release_timestamp(slot);
        }
    }

    /// Waits for everything in the queue.
    fn anchor(&self) -> Result<ClockAnchor> {
        let mut narrowest = self.read()?;
        for _ in 0..2 {
            let next = self.read()?;
            if next.after - next.before < narrowest.after - narrowest.before {
                narrowest = next;
            }
        }
        Ok(narrowest)
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(ANCHOR_INTERVAL)
    }
}
