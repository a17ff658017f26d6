//! Measures an operation of which different queues may write the begin and the end.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use transload_core::ErrorKind;
use transload_core::{Result, Stamp};

use super::{
    clock::WgpuClock,
    state::{DeviceState, Line},
    timestamps::{Interval, Moment},
};

/// The queues that write the begin and the end of an operation: they read one clock.
#[derive(Clone, Copy)]
pub(crate) struct Timer<'a> {
    pub(crate) begin: &'a Line,
    pub(crate) end: &'a Line,
}

impl Timer<'_> {
    /// Takes a slot of each queue.
    ///
    /// # Errors
    /// Those of [`reserve_timestamp`](super::Submissions::reserve_timestamp).
    pub(super) fn reserve(&self) -> Result<Interval> {
        let begin = self.begin.queue.reserve_timestamp()?;
        let release = || self.begin.queue.release_timestamp(begin);
        let end = self.end.queue.reserve_timestamp().inspect_err(|_| release())?;
        Ok((begin, end))
    }

    pub(super) fn release(&self, (begin, end): Interval) {
        self.begin.queue.release_timestamp(begin);
        self.end.queue.release_timestamp(end);
    }

    /// Says that both are written before a point of their queue is reached.
    pub(super) fn set_points(&self, (begin, end): Interval, point: u64) {
        self.begin.queue.set_timestamp_point(begin, point);
        self.end.queue.set_timestamp_point(end, point);
    }

    pub(super) fn stamps(&self, device: &DeviceState, (begin, end): Interval) -> (Stamp, Stamp) {
        let stamp = |line: &Line, slot| {
            Stamp::new(Arc::clone(&device.clock) as _, WgpuClock::token(line.index, slot))
        };
        (stamp(self.begin, begin), stamp(self.end, end))
    }

    /// Has a queue keep the duration for the operation at a point of it. What other queues wrote is read now, since it is complete.
    pub(super) fn keep(&self, line: &Line, point: u64, (begin, end): Interval) {
        let moment = |writer: &Line, slot| {
            if writer.index == line.index {
                return Some(Moment::Slot(slot));
            }
            let time = writer.queue.read_timestamp(slot).ok().flatten();
            writer.queue.release_timestamp(slot);
            time.map(Moment::At)
        };
        match (moment(self.begin, begin), moment(self.end, end)) {
            (Some(begin), Some(end)) => line.queue.keep_duration(point, (begin, end)),
            (begin, end) => [begin, end].into_iter().flatten().for_each(|one| line.queue.release(one)),
        }
    }
}

#[cfg(feature = "cuda")]
impl Timer<'_> {
    /// Submits what writes the begins, and waits until they are written. Nothing without any. Returns `false` if it is refused.
    ///
    /// # Errors
    /// The loss of the device.
    pub(crate) fn begin(&self, intervals: &[Interval]) -> Result<bool> {
        if intervals.is_empty() {
            return Ok(true);
        }
        let point = write(self.begin, intervals.iter().map(|(begin, _)| *begin))?;
        point.into_iter().for_each(|point| self.begin.queue.block_until(point));
        Ok(point.is_some())
    }

    /// Submits what writes the ends, and returns its point of their queue. `None` without any, and if it is refused.
    ///
    /// # Errors
    /// The loss of the device.
    pub(crate) fn end(&self, intervals: &[Interval]) -> Result<Option<u64>> {
        write(self.end, intervals.iter().map(|(_, end)| *end))
    }
}

/// Submits timestamps, after everything submitted to the queue before. A refusal is none of the operation that is measured.
#[cfg(feature = "cuda")]
fn write(line: &Line, slots: impl Iterator<Item = u32> + Clone) -> Result<Option<u64>> {
    let commands: super::submissions::Commands =
        slots.clone().filter_map(|slot| line.queue.timestamp(slot)).collect();
    if commands.is_empty() {
        return Ok(None);
    }
    // SAFETY: the commands use no buffer.
    match unsafe { line.queue.submit(&commands, &[]) } {
        Ok(point) => {
            slots.for_each(|slot| line.queue.set_timestamp_point(slot, point));
            Ok(Some(point))
        }
        Err(error) if error.kind() == ErrorKind::DeviceLost => Err(error),
        Err(_) => Ok(None),
    }
}
