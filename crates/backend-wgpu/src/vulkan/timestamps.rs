//! Timestamps of the device, which submissions write into slots of query pools.

use std::{collections::VecDeque, time::Duration};

use ash::vk;
use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result};

use super::{Submissions, error_of, submissions::Command};

/// Slots of a query pool.
const POOL: u32 = 128;
/// Most durations that are kept. The oldest are dropped first.
const MAX_KEPT: usize = 1024;

/// The slots of a begin and an end.
pub(crate) type Interval = (u32, u32);

/// When an operation begins or ends.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    /// What the queue writes into a slot.
    Slot(u32),
    /// An instant of the device's clock, in nanoseconds.
    At(i64),
}

#[derive(Default)]
pub(super) struct Timestamps {
    slots: Mutex<Slots>,
    /// Of measured operations that nobody has asked for.
    durations: Mutex<VecDeque<(u64, (Moment, Moment))>>,
}

#[derive(Default)]
struct Slots {
    pools: Vec<vk::QueryPool>,
    free: Vec<u32>,
    /// The point from which on each slot can be read; none before it is submitted.
    points: Vec<Option<u64>>,
    /// The last point at which a submission writes each slot, also one that nobody reads.
    written: Vec<u64>,
}

impl Slots {
    /// Takes a free slot that no submission writes any more.
    fn take(&mut self, reached: u64) -> Option<u32> {
        let is_written = |slot: &u32| self.written.get(*slot as usize).is_none_or(|point| *point <= reached);
        let index = self.free.iter().rposition(is_written)?;
        Some(self.free.swap_remove(index))
    }
}

/// Returns ticks of a period in nanoseconds. Some devices count from 1970: as a floating-point number these would be multiples of 256.
pub(super) fn nanoseconds(ticks: u64, period: f64) -> i64 {
    let fixed = (period * f64::from(1_u32 << 31)) as u128;
    i64::try_from((u128::from(ticks) * fixed) >> 31).unwrap_or(i64::MAX)
}

impl Submissions {
    /// Returns whether the queue has timestamps of 64 bits, which never wrap around.
    pub(crate) fn has_timestamps(&self) -> bool {
        self.vulkan.nanoseconds_per_tick.is_some()
    }

    pub(crate) fn no_timestamps(&self) -> Error {
        let text =
            format!("{}: its queue has no timestamps of 64 bits, by which work is measured", self.vulkan.id);
        Error::new(ErrorKind::Unsupported, text)
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the queue [has none](Self::has_timestamps); the driver's.
    pub(crate) fn reserve_timestamp(&self) -> Result<u32> {
        if !self.has_timestamps() {
            return Err(self.no_timestamps());
        }
        // Commands reset a slot in the queue's order.
        let reached = if self.resets_on_host() { self.refresh() } else { u64::MAX };
        let mut slots = self.timestamps.slots.lock();
        if let Some(slot) = slots.take(reached) {
            self.reset_on_host(&slots, slot);
            return Ok(slot);
        }
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(POOL);
        // SAFETY: the device is valid.
        let pool = unsafe { self.vulkan.raw.create_query_pool(&info, None) }
            .map_err(|result| error_of(self.vulkan.id, "vkCreateQueryPool", result))?;
        let first = slots.pools.len() as u32 * POOL;
        slots.pools.push(pool);
        slots.points.extend([None; POOL as usize]);
        slots.written.extend([0; POOL as usize]);
        slots.free.extend(first + 1..first + POOL);
        self.reset_on_host(&slots, first);
        Ok(first)
    }

    /// Returns whether the host resets slots, since the queue only copies.
    pub(super) fn resets_on_host(&self) -> bool {
        self.queue.family != self.vulkan.queue.family
    }

    /// Resets a slot that no submission in flight writes, unless commands do.
    fn reset_on_host(&self, slots: &Slots, slot: u32) {
        if let Some(pool) = slots.pools.get((slot / POOL) as usize).filter(|_| self.resets_on_host()) {
            // SAFETY: the pool is this device's, which has the feature if it has such queues.
            unsafe { self.vulkan.raw.reset_query_pool(*pool, slot % POOL, 1) };
        }
    }

    /// Returns a slot, once. A submission in flight may still write it: that of its next user comes later.
    pub(crate) fn release_timestamp(&self, slot: u32) {
        let mut slots = self.timestamps.slots.lock();
        if let Some(point) = slots.points.get_mut(slot as usize) {
            *point = None;
            slots.free.push(slot);
        }
    }

    /// Returns the command that writes a slot when everything before it is complete.
    pub(crate) fn timestamp(&self, slot: u32) -> Option<Command> {
        let slots = self.timestamps.slots.lock();
        slots
            .pools
            .get((slot / POOL) as usize)
            .map(|pool| Command::Timestamp { pool: *pool, query: slot % POOL })
    }

    /// Says that a slot is written before a point is reached.
    pub(crate) fn set_timestamp_point(&self, slot: u32, point: u64) {
        let mut slots = self.timestamps.slots.lock();
        if let Some(known) = slots.points.get_mut(slot as usize) {
            *known = Some(point);
        }
        if let Some(written) = slots.written.get_mut(slot as usize) {
            *written = point;
        }
    }

    /// Returns a slot's instant in nanoseconds, or `None` if its point is not reached.
    ///
    /// # Errors
    /// The loss of the device; the driver's.
    pub(crate) fn read_timestamp(&self, slot: u32) -> Result<Option<i64>> {
        let slots = self.timestamps.slots.lock();
        let point = slots.points.get(slot as usize).copied().flatten();
        let pool = slots.pools.get((slot / POOL) as usize).copied();
        drop(slots);
        let (Some(point), Some(pool)) = (point, pool) else { return Ok(None) };
        if self.reached() < point && self.refresh() < point {
            return Ok(None);
        }
        self.outcome(point)?;
        let mut ticks = [0_u64];
        // SAFETY: the pool is this device's, and the slot was written: its point is reached.
        unsafe {
            self.vulkan.raw.get_query_pool_results(
                pool,
                slot % POOL,
                &mut ticks,
                vk::QueryResultFlags::TYPE_64,
            )
        }
        .map_err(|result| error_of(self.vulkan.id, "vkGetQueryPoolResults", result))?;
        let [ticks] = ticks;
        Ok(self.vulkan.nanoseconds_per_tick.map(|period| nanoseconds(ticks, period)))
    }

    /// Keeps the duration of the operation at a point, until it is taken.
    pub(super) fn keep_duration(&self, point: u64, interval: (Moment, Moment)) {
        let mut durations = self.timestamps.durations.lock();
        durations.push_back((point, interval));
        let oldest = if durations.len() > MAX_KEPT { durations.pop_front() } else { None };
        drop(durations);
        if let Some((_, (begin, end))) = oldest {
            self.release(begin);
            self.release(end);
        }
    }

    /// Returns the duration of the operation at a point, once.
    ///
    /// # Errors
    /// Those of [`read_timestamp`](Self::read_timestamp).
    pub(crate) fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let mut durations = self.timestamps.durations.lock();
        let index = durations.iter().position(|(at, _)| *at == point);
        let kept = index.and_then(|index| durations.remove(index));
        drop(durations);
        let Some((_, (begin, end))) = kept else { return Ok(None) };
        let read = |moment| match moment {
            Moment::Slot(slot) => self.read_timestamp(slot),
            Moment::At(time) => Ok(Some(time)),
        };
        let instants = read(begin).and_then(|begin| Ok((begin, read(end)?)));
        self.release(begin);
        self.release(end);
        let (begin, end) = instants?;
        Ok(begin
            .zip(end)
            .map(|(begin, end)| Duration::from_nanos(end.saturating_sub(begin).max(0).cast_unsigned())))
    }

    pub(super) fn release(&self, moment: Moment) {
        if let Moment::Slot(slot) = moment {
            self.release_timestamp(slot);
        }
    }

    /// Destroys the pools.
    ///
    /// # Safety
    /// * All submissions are complete, and nothing uses the timestamps any more.
    pub(super) unsafe fn destroy_timestamps(&self) {
        for pool in self.timestamps.slots.lock().pools.drain(..) {
            // SAFETY: the caller's promise.
            unsafe { self.vulkan.raw.destroy_query_pool(pool, None) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Slots, nanoseconds};

    #[test]
    fn late_timestamps_keep_their_nanoseconds() {
        let now = 1_790_000_000_000_000_000;
        assert_eq!(nanoseconds(now + 1, 1.0) - nanoseconds(now, 1.0), 1);
        assert_eq!(nanoseconds(3 << 40, 10.0), 30 << 40);
        assert_eq!(nanoseconds(1 << 30, 0.5), 1 << 29);
    }

    #[test]
    fn slot_is_not_taken_while_a_submission_may_write_it() {
        let mut slots = Slots { free: vec![0, 1], written: vec![5, 0], ..Slots::default() };
        assert_eq!((slots.take(4), slots.take(4), slots.take(5)), (Some(1), None, Some(0)));
    }
}
