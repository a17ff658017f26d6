//! Prefetch of unified buffers.

use std::ops::{Range, RangeBounds};

use transload_core::{
    Access, DeviceId, Error, ErrorKind, Fence, Operation, Place, Pod, Queue, RawBuffer, Result, Timing,
    Transfer, TransferMethod, submit,
};

use super::{UnifiedBuffer, UnifiedMode, inner::Inner, range_locks::Side};
use crate::{CudaDevice, CudaFeature};

/// Every method returns once the prefetch is enqueued, after all earlier work on the range, and never changes content.
/// In the [`Explicit`](UnifiedMode::Explicit) mode device memory is always up to date, and a prefetch to the host
/// downloads what the next slice would wait for.
///
/// A refused transfer reports its error when awaited: `Busy` if a host slice is open on the range; `InvalidArgument`
/// for an empty range; `OutOfRange`; `UnknownDevice` naming the valid ordinals; `Unsupported` for a device that the
/// memory cannot be moved to.
impl<T: Pod> UnifiedBuffer<T> {
    /// Prefetches the whole buffer to a device; `None` means the buffer's own.
    pub fn prefetch_to_device(&self, ordinal: Option<u32>) -> Transfer {
        self.prefetch_to_device_on(&*self.inner.queue, .., ordinal)
    }

    /// Prefetches the whole buffer to the host.
    pub fn prefetch_to_host(&self) -> Transfer {
        self.prefetch_to_host_on(&*self.inner.queue, ..)
    }

    /// Prefetches a range of elements to a device; `None` means the buffer's own.
    pub fn prefetch_range_to_device(&self, range: impl RangeBounds<usize>, ordinal: Option<u32>) -> Transfer {
        self.prefetch_to_device_on(&*self.inner.queue, range, ordinal)
    }

    /// Prefetches a range of elements to the host.
    pub fn prefetch_range_to_host(&self, range: impl RangeBounds<usize>) -> Transfer {
        self.prefetch_to_host_on(&*self.inner.queue, range)
    }

    /// Prefetches a range of elements to a device, on the given queue; `None` means the buffer's own device, not the
    /// queue's.
    pub fn prefetch_to_device_on(
        &self,
        queue: &dyn Queue,
        range: impl RangeBounds<usize>,
        ordinal: Option<u32>,
    ) -> Transfer {
        let to = ordinal.map_or(self.inner.device.id(), DeviceId::Cuda);
        self.inner.prefetch_transfer(queue, self.inner.bytes(range, size_of::<T>()), to)
    }

    /// Prefetches a range of elements to the host, on the given queue.
    pub fn prefetch_to_host_on(&self, queue: &dyn Queue, range: impl RangeBounds<usize>) -> Transfer {
        self.inner.prefetch_transfer(queue, self.inner.bytes(range, size_of::<T>()), DeviceId::Cpu)
    }
}

impl Inner {
    fn prefetch_transfer(&self, queue: &dyn Queue, range: Result<Range<usize>>, to: DeviceId) -> Transfer {
        let started = range.and_then(|range| {
            let part = self.raw.slice(range.clone())?;
            let (from, there) = (part.place(), Place::new(to, part.place().kind));
            self.prefetch(queue, range, &part, to)
                .map(|fence| Transfer::direct(fence, TransferMethod::UnifiedMemory, from, there, part.len()))
        });
        started.unwrap_or_else(Transfer::refused)
    }

    fn prefetch(
        &self,
        queue: &dyn Queue,
        range: Range<usize>,
        part: &RawBuffer,
        to: DeviceId,
    ) -> Result<Fence> {
        self.check_place(to)?;
        self.retry_failed_uploads()?;
        let operation = Operation::Prefetch { buffer: part, to };
        operation.validate()?;
        // Pages must not migrate under an open slice; the explicit mode behaves alike.
        {
            let mut state = self.state.lock();
            state.locks.check(&range, Side::Device, Access::Write)?;
            state.place.refresh(&self.raw);
        }
        let Some(host) = &self.host else {
            let fence = submit(queue, &operation, Timing::Off)?;
            self.state.lock().place.prefetched_to(&self.raw, to, range);
            return Ok(fence);
        };
        if to.is_cpu() {
            self.start_download(host, queue, range)
        } else {
            self.order_after_writes(host, queue, range)
        }
    }

    /// Checks that the memory can be moved to a device.
    ///
    /// # Errors
    /// `UnknownDevice` or `Unsupported`.
    pub(crate) fn check_place(&self, place: DeviceId) -> Result<()> {
        let own = self.device.id();
        let ordinal = match place {
            DeviceId::Cpu => return Ok(()),
            place if place == own => return Ok(()),
            DeviceId::Cuda(ordinal) => ordinal,
            other => {
                let text = format!("unified memory cannot be at {other}; valid are cpu and cuda:N");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        let there = CudaDevice::new(ordinal)?;
        if self.mode() == UnifiedMode::Explicit {
            let text =
                format!("without managed memory the buffer stays at {own} and cpu; it cannot be at {place}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if !there.supports_feature(CudaFeature::ConcurrentManagedAccess)? {
            let text = format!("{place} cannot use unified memory at the same time as the host");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(())
    }
}
