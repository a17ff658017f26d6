//! The clock of a device.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ash::vk;
use transload_core::{ClockAnchor, ClockId, DeviceClock, DeviceId, Error, ErrorKind, Result};

use super::{Submissions, error_of, submissions::Commands, timestamps::nanoseconds};

#[cfg(test)]
#[path = "../../tests/unit/clock.rs"]
mod tests;

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

    /// Reads the clock from the host, whatever the queue does. `None` if that is not possible.
    fn read_from_host(&self) -> Option<Result<ClockAnchor>> {
        let vulkan = &self.queue.vulkan;
        let (calibrated, period) = (vulkan.calibrated.as_ref()?, vulkan.nanoseconds_per_tick?);
        let clock = [vk::CalibratedTimestampInfoEXT::default().time_domain(vk::TimeDomainEXT::DEVICE)];
        let before = Instant::now();
        // SAFETY: the device is valid, has the extension, and this clock can be read.
        let read = unsafe { calibrated.get_calibrated_timestamps(&clock) };
        let after = Instant::now();
        let ticks = read.map_err(|result| error_of(vulkan.id, "vkGetCalibratedTimestampsEXT", result));
        let anchor = |ticks: u64| ClockAnchor { device: nanoseconds(ticks, period), before, after };
        ticks.map(|(ticks, _)| ticks.first().copied().map(anchor)).transpose()
    }

    fn read(&self) -> Result<ClockAnchor> {
        if let Some(read) = self.read_from_host().filter(|_| !transload_core::mutant!("wgpu/clock-from-host"))
        {
            return read;
        }
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

    /// On a device of others waits for everything in wgpu's queue, and so where the driver has no `VK_EXT_calibrated_timestamps`.
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
