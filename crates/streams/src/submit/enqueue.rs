//! Operations as driver calls on a stream: core's `Queue`.

use std::{cell::Cell, sync::Arc, time::Duration};

use transload_core::{
    BatchHalf, BlockList, DeviceId, Error, ErrorKind, Fence, HalfPairs, MemoryKind, Operation, OperationInfo,
    OperationKind, Place, Queue, RawBuffer, Result, Stamp, StreamPriority, Timeline, Timing,
};
use transload_cuda_sys::{DriverError, try_in_current};
use transload_memory::{OperationCalls, lift};

use super::{
    addresses::{DriverAddress, driver_address, reachable},
    driver_calls::{DriverCalls, INVALID_VALUE, SMALL, copy, copy_after, copy_once},
    halves::Half,
    measured::{Measured, half_info},
};
use crate::{CudaStream, completion::timeline::StreamTimeline};

// SAFETY: a stream runs its work in order, after the events it waits for; points are issued after the work.
unsafe impl Queue for CudaStream {
    fn device(&self) -> DeviceId {
        self.own.device
    }

    fn priority(&self) -> StreamPriority {
        self.own.priority
    }

    #[inline]
    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    #[inline]
    fn can_copy(&self, src: Place, dst: Place) -> bool {
        // Compare ordinals only: comparing any two devices takes longer.
        let here = |place: Place| match (place.device, self.own.device) {
            (DeviceId::Cuda(theirs), DeviceId::Cuda(ours)) => theirs == ours,
            _ => false,
        };
        let host = |place: Place| place.device.is_cpu();
        (here(src) && (here(dst) || host(dst))) || (host(src) && here(dst))
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        fence.timeline().as_any().is::<StreamTimeline>() || self.own.can_wait_for_others(fence)
    }

    fn prepare_waits(&self) {
        self.own.prepare_waits();
    }

    fn prepare_batch(&self, pairs: usize, bytes: u64) {
        self.own.prepare_list(pairs, bytes);
    }

    fn current_fence(&self) -> Option<Fence> {
        self.fence().ok()
    }

    #[inline]
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        let measured = self.own.measure_operation(timing, operation);
        let enqueued = if let Operation::Copy { src, dst } = *operation
            && src.len() <= SMALL
            && after.is_empty()
            && measured.is_nothing()
            && !self.own.events.points.is_shared()
        {
            // SAFETY: the caller's promise.
            unsafe { self.copy_small(src, dst) }
        } else {
            self.own.check_not_captured().and_then(|()| DriverCalls::of(operation, self)).and_then(|calls| {
                // SAFETY: the caller's promise.
                unsafe { self.enqueue_measured(calls, after, measured) }
            })
        };
        if enqueued.is_err() {
            self.own.withdraw(|| OperationInfo::of(operation));
        }
        enqueued
    }

    unsafe fn enqueue_half(
        &self,
        half: BatchHalf,
        pairs: HalfPairs<'_>,
        scratch: &RawBuffer,
        after: &[Fence],
    ) -> Result<Fence> {
        let made = Half::new(half, pairs.clone(), scratch, self)?;
        let info = || half_info(half, &pairs, scratch);
        let calls = DriverCalls::BatchHalf(made);
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_calls(calls, after, Timing::Off, info) }
    }

    unsafe fn enqueue_blocks(&self, blocks: &BlockList, after: &[Fence], timing: Timing) -> Result<Fence> {
        let calls = DriverCalls::of_blocks(blocks, self)?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_calls(calls, after, timing, || OperationInfo::of_blocks(blocks)) }
    }

    fn occupy(&self, time: Duration) -> Result<Fence> {
        let info = || OperationInfo::of_kind(OperationKind::Kernel);
        let calls =
            DriverCalls::Occupy(self.own.kernels()?, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        // SAFETY: the kernel accesses no memory.
        unsafe { self.enqueue_calls(calls, &[], Timing::Measured, info) }
    }

    fn outstanding(&self) -> u64 {
        self.own.outstanding()
    }

    fn stamp(&self) -> Result<Stamp> {
        self.own.check_usable()?;
        self.own.check_not_captured()?;
        self.own.stamp()
    }

    fn raw_handle(&self) -> Option<usize> {
        if !self.own.is_usable_here() {
            return None;
        }
        self.own.share();
        Some(self.own.raw().addr())
    }

    /// Does not expose the handle, so the stream does not count as shared. Earlier fences do not wait for what `call`
    /// enqueues.
    fn with_raw_handle(&self, call: &mut dyn FnMut(usize)) -> Result<()> {
        self.own.check_usable()?;
        let _bound = self.own.context().enter().map_err(lift)?;
        self.own.flush_batch().map_err(|error| self.own.lift(error))?;
        if transload_core::mutant!("streams/lent-handle-stays-private") {
            self.own.share();
        }
        call(self.own.raw().addr());
        Ok(())
    }
}

impl CudaStream {
    /// Fast path for a small copy without waits.
    ///
    /// # Safety
    /// * As for [`Queue::enqueue`].
    #[inline]
    unsafe fn copy_small(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<Fence> {
        let own = &*self.own;
        // The handle is private, but an event may have pulled the stream into a capture.
        own.check_not_captured()?;
        reachable(self, src, dst)?;
        let (from, to) = (driver_address(src)?, driver_address(dst)?);
        // SAFETY: the caller keeps the buffers alive and undisturbed until the fence is over; lengths were checked to agree.
        match try_in_current(&CONTEXT_FALLBACK, || unsafe { copy_once(from, to, src.len(), own.raw()) }) {
            Some(Ok(())) => {}
            // SAFETY: as above; nothing was enqueued so far.
            other => unsafe { copy_in_its_own(own, (from, to, src.len()), other) }?,
        }
        match own.next_small_point() {
            Ok(point) => {
                if matches!((from, to), (DriverAddress::Device(_), DriverAddress::Host(_)))
                    && dst.place().kind != MemoryKind::Pageable
                {
                    own.download_end.set(point);
                }
                Ok(Fence::new(Arc::clone(&self.timeline), point))
            }
            // Without a fence no one would wait for it.
            Err(error) => Err(own.resolve_part_error(error)),
        }
    }

    /// Enqueues driver calls after the fences, as one operation that `info` describes.
    ///
    /// # Safety
    /// * As for [`Queue::enqueue`], and for [`DriverCalls::make`].
    pub(crate) unsafe fn enqueue_calls(
        &self,
        calls: DriverCalls<'_>,
        after: &[Fence],
        timing: Timing,
        info: impl Fn() -> OperationInfo,
    ) -> Result<Fence> {
        let measured = self.own.measure(timing, &info);
        // SAFETY: the caller's promise.
        let enqueued = unsafe { self.enqueue_measured(calls, after, measured) };
        if enqueued.is_err() {
            self.own.withdraw(info);
        }
        enqueued
    }

    /// Like [`enqueue_calls`](Self::enqueue_calls), with what is to be measured.
    ///
    /// # Safety
    /// * As for [`enqueue_calls`](Self::enqueue_calls).
    unsafe fn enqueue_measured(
        &self,
        mut calls: DriverCalls<'_>,
        after: &[Fence],
        measured: Measured,
    ) -> Result<Fence> {
        let own = &*self.own;
        own.check_not_captured()?;
        let _bound = own.context().enter().map_err(lift)?;
        let mut small = calls.are_small();
        let is_early = transload_core::mutant!("streams/begin-after-waits") && measured.sample.is_some();
        let early = is_early.then(|| own.stamp());
        for fence in after {
            let waited = own.wait_for_fence(fence).or_else(|| own.wait_for_others(fence));
            let waited = waited.ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "a stream cannot wait for this kind of fence")
            })?;
            small &= !waited?;
        }
        let Measured { asked_for, counted, sample } = measured;
        let is_timed = asked_for || counted;
        small &= !is_timed && !own.events.points.is_shared();
        let mut start = None;
        if !small {
            own.flush_batch().map_err(|error| own.lift(error))?;
            if is_timed {
                start = Some(own.record_start(asked_for, counted).map_err(|error| own.lift(error))?);
            }
        }
        let sample = sample.map(|sample| {
            let begin = early.unwrap_or_else(|| own.stamp());
            OperationCalls::begin();
            (sample, begin)
        });
        let mut in_flight = false;
        // SAFETY: the caller keeps the operation's buffers alive and undisturbed until the fence is over; lengths were
        // checked to agree.
        let made = unsafe { calls.make(own.raw(), &mut in_flight) };
        // Before the fence's event, so that the end is known once the fence is complete.
        let sample = sample.and_then(|(sample, begin)| {
            OperationCalls::end();
            made.is_ok().then(|| {
                let end = own.stamp();
                (sample, begin.and_then(|begin| Ok((begin, end?))))
            })
        });
        let marked = made
            .and_then(|()| if small { own.next_small_point() } else { own.record_end(start, calls.name()) });
        match marked {
            Ok(point) => {
                own.metrics.count(&calls);
                if let Some((sample, times)) = sample {
                    own.pass(sample.at_point(point), times);
                }
                Ok(Fence::new(Arc::clone(&self.timeline), point))
            }
            // Without a fence, nothing would wait for the work enqueued before the error.
            Err(error) if in_flight => Err(own.resolve_part_error(error)),
            Err(error) if error.is_sticky() => Err(own.lift(error)),
            Err(error) => Err(calls.lift(error)),
        }
    }
}

/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: u32 = 201;

thread_local! {
    /// Set once a call failed because another context, or none, was current; until then calls use the current
    /// context.
    static CONTEXT_FALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Repeats a copy in the stream's context, unless it failed there.
///
/// # Safety
/// * As for [`copy`].
#[cold]
#[inline(never)]
unsafe fn copy_in_its_own(
    own: &StreamTimeline,
    (from, to, bytes): (DriverAddress, DriverAddress, usize),
    refused: Option<Result<(), DriverError>>,
) -> Result<()> {
    let bound = own.context().enter_fallback(&CONTEXT_FALLBACK).map_err(lift)?;
    let mut in_flight = false;
    // Without a current context the driver uses the stream's, unless it requires one.
    let stands = |error: &DriverError| {
        bound.was_current()
            || bound.had_none() && !matches!(error.code(), Some(INVALID_VALUE | INVALID_CONTEXT))
    };
    let copied = match refused {
        // The copy may succeed in parts.
        Some(Err(error)) if stands(&error) => {
            // SAFETY: the caller's promise.
            unsafe { copy_after(Err(error), from, to, bytes, own.raw(), &mut in_flight) }
        }
        // SAFETY: the caller's promise.
        _ => unsafe { copy(from, to, bytes, own.raw(), &mut in_flight) },
    };
    copied.map_err(|error| match in_flight {
        true => own.resolve_part_error(error),
        false => own.lift(error),
    })
}
