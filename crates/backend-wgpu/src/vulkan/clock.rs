//! The clock of a device.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use transload_core::{ClockAnchor, ClockId, DeviceClock, DeviceId, Error, ErrorKind, Result};

use super::{Submissions, submissions::Commands};

/// How long a device's clock and the host's may go without a comparison: they differ by some hundred millionths.
const ANCHOR_INTERVAL: Duration = Duration::from_secs(1);

/// The timestamps of a device's queues, which read one clock on the drivers that were tried (NVIDIA's, Mesa's lavapipe); the
/// specification does not promise it. A stamp's token is the queue's index and its slot there.
pub(crate) struct WgpuClock {
    id: ClockId,
    /// wgpu's, and the others in the device's order.
    queue: Arc<Submissions>,
    others: Vec<Arc<Submissions>>,
}

impl WgpuClock {
    pub(crate) fn new(queue: &Arc<Submissions>, others: Vec<Arc<Submissions>>) -> Self {
        Self { id: ClockId::next(), queue: Arc::clone(queue), others }
    }

    /// Returns the token of a queue's slot.
    pub(crate) fn token(index: usize, slot: u32) -> u64 {
        (index as u64) << 32 | u64::from(slot)
    }

    /// Returns the queue and the slot of a token.
    fn of(&self, token: u64) -> Option<(&Submissions, u32)> {
        let index = usize::try_from(token >> 32).ok()?;
        let queue = match index.checked_sub(1) {
            None => &self.queue,
            Some(other) => self.others.get(other)?,
        };
        Some((queue, token as u32))
    }

    /// Submits a timestamp to a queue, and returns its slot and point.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a queue without timestamps; the driver's.
    pub(crate) fn submit(queue: &Submissions) -> Result<(u32, u64)> {
        let slot = queue.reserve_timestamp()?;
        let command: Commands = queue.timestamp(slot).into_iter().collect();
        // SAFETY: the command uses no buffer.
        let point = unsafe { queue.submit(&command, &[]) };
        let point = point.inspect_err(|_| queue.release_timestamp(slot))?;
        queue.set_timestamp_point(slot, point);
        Ok((slot, point))
    }

    fn read(&self) -> Result<ClockAnchor> {
        let before = Instant::now();
        let (slot, point) = Self::submit(&self.queue)?;
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
        self.of(token).map_or(Ok(None), |(queue, slot)| queue.read_timestamp(slot))
    }

    fn release(&self, token: u64) {
        if let Some((queue, slot)) = self.of(token) {
            queue.release_timestamp(slot);
        }
    }

    /// Waits for everything in wgpu's queue.
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
