//! What a cast is made of: casts by a queue, and copies to or from scratch memory.

use std::sync::Arc;

use smallvec::SmallVec;
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Place, QueueLease, RawBuffer, Result,
    Timing, Transfer, TrySubmitError, Turns, WorkloadType, try_submit_after,
};

use super::CastRequest;
use crate::{
    CopyBuilder, CrossBackendTransferManager,
    methods::{CHUNK, Purpose, Taken},
    planning::request::path_of,
    task_submission::is_pageable,
};

/// Elements of a chunk are a multiple of so many, so that chunks of an aligned buffer are aligned.
const ALIGNED: usize = 64;

/// A valid cast, with the queue of the device that casts.
pub(super) struct Job {
    pub(super) queue: QueueLease,
    pub(super) lane: DeviceId,
    through: Option<Through>,
    elements: usize,
    /// Elements of each chunk but the last.
    chunk: usize,
}

/// The scratch memory of a cast between two devices, or a device and the host.
struct Through {
    taken: Option<Taken>,
    /// The buffers that chunks use in turn: of the pool, or one of its own if no other work may wait for those.
    buffers: SmallVec<[RawBuffer; 3]>,
    /// Whether the source is copied there, and not cast.
    copies_first: bool,
    chunks: usize,
    /// The end of the last step that was submitted.
    end: Option<Fence>,
    /// Whether a step may be submitted by another thread, also after the cast was dropped.
    is_posted: bool,
}

impl Drop for Through {
    fn drop(&mut self) {
        match self.taken.take() {
            Some(taken)
                if self.is_posted && !transload_core::mutant!("transfer/posted-casts-keep-scratch") =>
            {
                taken.give_up();
            }
            Some(taken) if self.end.is_some() => taken.used(self.chunks, self.end.as_ref()),
            _ => {}
        }
    }
}

/// One operation or transfer.
pub(super) struct Step<'a> {
    /// Whether it casts, on the queue.
    pub(super) casts: bool,
    src: RawBuffer,
    dst: RawBuffer,
    pub(super) after: &'a [Fence],
}

impl Job {
    /// Checks the request, and takes what it needs.
    ///
    /// # Errors
    /// See [`CastBuilder::submit`](super::CastBuilder::submit).
    pub(super) fn new(manager: &CrossBackendTransferManager, request: &CastRequest) -> Result<Self> {
        let CastRequest { src, from, dst, to, options, after } = request;
        Operation::Cast { src, from: *from, dst, to: *to }.validate()?;
        let elements = dst.len() / to.size();
        if elements == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a cast of 0 elements; it needs at least 1"));
        }
        let (way, backend, lane) = Way::of(manager, request)?;
        manager.context.lost.check([&src.place().device, &dst.place().device, &lane])?;
        backend.prepare_in_place(lane).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => {
                let text = format!("{lane} cannot cast; cast in the host's memory, and copy from or to that");
                Error::caused_by(ErrorKind::Unsupported, text, error)
            }
            _ => error,
        })?;
        let queue = backend.lease_queue(lane, options.priority, WorkloadType::Compute)?;
        let width = match way {
            Way::Here => return Ok(Self { queue, lane, through: None, elements, chunk: elements }),
            Way::CopyFirst => from.size(),
            Way::CastFirst => to.size(),
        };
        let chunks = elements.div_ceil(CHUNK / width);
        let chunk = elements.div_ceil(chunks).next_multiple_of(ALIGNED).min(elements);
        let is_open = |fence: &Fence| !fence.is_complete();
        let is_in_use =
            |buffer: &RawBuffer| buffer.in_flight().is_none_or(|fences| fences.iter().any(is_open));
        let is_held_up = after.iter().any(is_open) || is_in_use(src) || is_in_use(dst);
        let (copies_first, chunks) = (way == Way::CopyFirst, elements.div_ceil(chunk));
        let path = path_of(src, dst);
        let are_devices = !path.src.device.is_cpu() && !path.dst.device.is_cpu();
        let is_staged = are_devices || is_pageable(path.src) || is_pageable(path.dst);
        let purpose = Purpose { device: lane, is_upload: copies_first, is_staged };
        let scratch = &manager.context.scratch;
        let taken = scratch.ready(&*backend, purpose, (chunks, chunk * width)).take(is_held_up);
        let own = || backend.allocate(lane, MemoryKind::Device, chunk * width);
        let buffers = match &taken {
            Some(taken) => taken.memory().cloned().collect(),
            None => SmallVec::from_iter([own().or_else(|_| {
                // What is kept for lists and casts of other directions may be all that there was.
                scratch.release();
                own()
            })?]),
        };
        let through = Some(Through { taken, buffers, copies_first, chunks, end: None, is_posted: false });
        Ok(Self { queue, lane, through, elements, chunk })
    }

    /// Returns the number of steps.
    pub(super) fn steps(&self) -> usize {
        self.elements.div_ceil(self.chunk) * if self.through.is_some() { 2 } else { 1 }
    }

    /// Returns whether copies write the destination, and not casts.
    pub(super) fn copies_last(&self) -> bool {
        self.through.as_ref().is_some_and(|through| !through.copies_first)
    }

    /// Returns a step, in the order of submission: the first half of each chunk comes before the second one of the chunk before, if those
    /// use two buffers, since submitting that may wait until the first is staged.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if there is none with this index.
    pub(super) fn step<'a>(&self, request: &'a CastRequest, index: usize) -> Result<Step<'a>> {
        let (chunk, is_second) = match &self.through {
            None => (index, false),
            Some(Through { buffers, .. }) if buffers.len() < 2 => (index / 2, index % 2 == 1),
            Some(_) if index + 1 == self.steps() => (index / 2, true),
            Some(_) if index == 0 || index % 2 == 1 => (index.div_ceil(2), false),
            Some(_) => (index / 2 - 1, true),
        };
        let elements = chunk * self.chunk..self.elements.min((chunk + 1) * self.chunk);
        let part = |of: &RawBuffer, size: usize| of.slice(elements.start * size..elements.end * size);
        let CastRequest { src, from, dst, to, after, .. } = request;
        let Some(Through { buffers, copies_first, .. }) = &self.through else {
            let (src, dst) = (part(src, from.size())?, part(dst, to.size())?);
            return Ok(Step { casts: true, src, dst, after });
        };
        let width = if *copies_first { from.size() } else { to.size() };
        let none = || Error::new(ErrorKind::OutOfRange, "a cast has no scratch memory");
        let buffer = chunk.checked_rem(buffers.len()).and_then(|index| buffers.get(index));
        let between = buffer.ok_or_else(none)?.slice(..elements.len() * width)?;
        let casts = is_second == *copies_first;
        Ok(match is_second {
            false => Step { casts, src: part(src, from.size())?, dst: between, after },
            true => Step { casts, src: between, dst: part(dst, to.size())?, after: &[] },
        })
    }

    /// Enqueues a cast for a task.
    ///
    /// # Errors
    /// Those of [`submit`](transload_core::submit).
    pub(super) async fn cast_async(&self, step: &Step<'_>, request: &CastRequest) -> Result<Fence> {
        let turns = Turns::default();
        loop {
            match try_submit_after(&*self.queue, &step.cast(request), step.after, Timing::Off, &turns) {
                Ok(fence) => return Ok(fence),
                Err(TrySubmitError::Failed(error)) => return Err(error),
                Err(TrySubmitError::WouldBlock(blocked)) => blocked.await,
            }
        }
    }

    /// Submits a copy for a task.
    pub(super) async fn copy_async(
        &mut self,
        manager: &CrossBackendTransferManager,
        request: &CastRequest,
        step: Step<'_>,
    ) -> Transfer {
        self.set_posted(true);
        let submitted = step.copy(manager, request).submit_async().await;
        self.set_posted(false);
        submitted
    }

    fn set_posted(&mut self, is_posted: bool) {
        if let Some(through) = &mut self.through {
            through.is_posted = is_posted;
        }
    }

    /// Notes the end of the steps so far.
    pub(super) fn ends(&mut self, end: &Fence) {
        if let Some(through) = &mut self.through {
            through.end = Some(end.clone());
        }
    }
}

impl Step<'_> {
    pub(super) fn cast(&self, request: &CastRequest) -> Operation<'_> {
        Operation::Cast { src: &self.src, from: request.from, dst: &self.dst, to: request.to }
    }

    pub(super) fn copy<'a>(
        &'a self,
        manager: &'a CrossBackendTransferManager,
        request: &CastRequest,
    ) -> CopyBuilder<'a> {
        let copy = manager.copy(&self.src, &self.dst).options(request.options);
        self.after.iter().fold(copy, CopyBuilder::after)
    }
}

/// Where a cast is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Between the two memories.
    Here,
    /// On the destination's device, after the copy.
    CopyFirst,
    /// On the source's device, before the copy.
    CastFirst,
}

impl Way {
    /// Returns the way, and the device that casts with its backend.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::Unsupported`] if there is none.
    fn of(
        manager: &CrossBackendTransferManager,
        CastRequest { src, from, dst, to, .. }: &CastRequest,
    ) -> Result<(Self, Arc<dyn Backend>, DeviceId)> {
        let (src, dst) = (src.place(), dst.place());
        for place in [src, dst] {
            manager.registry.backend(place.device)?;
        }
        let backends = manager.registry.backends();
        let caster = |way: Self, src: Place, dst: Place| {
            backends.iter().find_map(|registered| {
                Some((way, Arc::clone(&registered.backend), registered.backend.caster(src, dst)?))
            })
        };
        if let Some(here) = caster(Self::Here, src, dst) {
            return Ok(here);
        }
        let scratch = |device| Place::new(device, MemoryKind::Device);
        let of_device = |place: Place| !place.device.is_cpu();
        let first = || caster(Self::CastFirst, src, scratch(src.device)).filter(|_| of_device(src));
        let last = || caster(Self::CopyFirst, scratch(dst.device), dst).filter(|_| of_device(dst));
        // The link carries the narrower type, if there is a choice.
        let is_narrowed = to.size() <= from.size() && !transload_core::mutant!("transfer/cast-narrow-link");
        let found = if is_narrowed { first().or_else(last) } else { last().or_else(first) };
        found.ok_or_else(|| {
            let text = format!(
                "no device casts {src} → {dst}; cast within the host's memory, and copy from or to that"
            );
            Error::new(ErrorKind::Unsupported, text)
        })
    }
}
