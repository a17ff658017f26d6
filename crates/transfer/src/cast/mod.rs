//! Casts: copies between floating-point element types, by whichever device casts there.

mod job;
mod transfer;

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
};

use transload_core::{
    Fence, FloatType, RawBuffer, Result, StreamPriority, Timing, TransferId, Wanted, submit_after,
};

use crate::{CrossBackendTransferManager, TransferOptions};
use job::Job;
use transfer::Part;
pub use transfer::{CastReport, CastTransfer};

/// A cast of all elements of one buffer to as many of another, not yet submitted. [`submit`](Self::submit) it, [`wait`](Self::wait) for
/// it, or `.await` it. To cast a part, slice the buffers.
///
/// # How it is cast
/// Within the host or a device, by its threads. Between the host and a device, or two, chunks of up to 32 MiB go through scratch memory
/// of a device, which is that of lists of [many copies](CrossBackendTransferManager::copy_many): a copy by the method predicted to be the fastest,
/// and a kernel before or after it. What comes from a device is cast there first, and what goes to one is cast there at last, so the
/// host casts nothing; between two devices the narrower type is copied.
///
/// # Order
/// A cast comes after earlier work on the same bytes and before later work, as a copy does. Each chunk takes its own place, though: of
/// work on the same bytes that another thread submits meanwhile, some chunks may come before and others after.
/// [What blocks](crate::CopyBuilder#what-blocks-and-what-keeps-order) is what blocks for its copies; a cast on a device also waits for
/// those that are staged, until the last one. If one fails in the middle, nothing
/// more is submitted, and the whole destination is marked as damaged until it is written again, unless it fails since a view of the
/// destination was opened meanwhile.
#[must_use = "nothing is cast before `submit`, `wait` or `.await`"]
#[derive(Clone, Debug)]
pub struct CastBuilder<'a> {
    manager: &'a CrossBackendTransferManager,
    request: CastRequest,
}

/// What is cast.
#[derive(Clone, Debug)]
struct CastRequest {
    src: RawBuffer,
    from: FloatType,
    dst: RawBuffer,
    to: FloatType,
    options: TransferOptions,
    after: Vec<Fence>,
}

/// The end of a cast, as an awaited [`CastBuilder`] gives it. It owns what it needs.
pub type CastFuture = Pin<Box<dyn Future<Output = Result<CastReport>> + Send + 'static>>;

impl CrossBackendTransferManager {
    /// A cast of all elements of `src`, of one type, to as many of `dst`, of another, between any two memories. [`FloatType`] says how
    /// it rounds.
    ///
    /// ```
    /// # use transload_backend_cpu::CpuBackend;
    /// # use transload_core::{DeviceId, FloatType, MemoryKind};
    /// # use transload_transfer::CrossBackendTransferManager;
    /// # let manager = CrossBackendTransferManager::new();
    /// # manager.register_backend(CpuBackend::new()?)?;
    /// let weights = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4 * 1000)?;
    /// let narrow = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 2 * 1000)?;
    /// weights.write()?.as_chunks_mut().0.fill(1.5_f32.to_le_bytes());
    /// let report = manager.cast((&weights, FloatType::F32), (&narrow, FloatType::Bf16)).wait()?;
    /// assert_eq!(report.elements, 1000);
    /// assert_eq!(narrow.read()?[..2], 0x3fc0_u16.to_le_bytes());
    /// # Ok::<(), transload_core::Error>(())
    /// ```
    pub fn cast(
        &self,
        (src, from): (&RawBuffer, FloatType),
        (dst, to): (&RawBuffer, FloatType),
    ) -> CastBuilder<'_> {
        let (src, dst) = (src.clone(), dst.clone());
        let request = CastRequest { src, from, dst, to, options: TransferOptions::new(), after: Vec::new() };
        CastBuilder { manager: self, request }
    }
}

impl CastBuilder<'_> {
    /// The bytes move after this fence, whether its work succeeds or fails. May be called several times.
    pub fn after(mut self, fence: &Fence) -> Self {
        self.request.after.push(fence.clone());
        self
    }

    /// See [`TransferOptions::priority`].
    pub fn priority(mut self, priority: StreamPriority) -> Self {
        self.request.options = self.request.options.priority(priority);
        self
    }

    /// Replaces all options set so far. They hold for each copy; the kernels have their priority.
    pub fn options(mut self, options: TransferOptions) -> Self {
        self.request.options = options;
        self
    }

    /// Submits it, on the calling thread. What is wrong with it is told by the [`CastTransfer`], as is how it went.
    ///
    /// # Errors
    /// By the transfer: [`InvalidArgument`](transload_core::ErrorKind) for 0 elements, unequal numbers, bytes that are no whole elements, one
    /// type twice or a read-only destination; `Overlap`; `Unsupported` if no device casts between these memories, such as one whose
    /// driver takes no kernels; `OutOfMemory` without scratch memory; those of the [copies](Self#how-it-is-cast).
    pub fn submit(self) -> CastTransfer {
        let Self { manager, request } = self;
        let mut transfer = CastTransfer::new(&manager.context, &request);
        let mut job = match Job::new(manager, &request) {
            Ok(job) => job,
            Err(error) => {
                return transfer.refused(manager.refuse(TransferId::if_wanted(Wanted::Failure), error));
            }
        };
        for index in 0..job.steps() {
            let submitted = job.step(&request, index).and_then(|step| match step.casts {
                true => {
                    submit_after(&*job.queue, &step.cast(&request), step.after, Timing::Off).map(Part::Cast)
                }
                false => Ok(Part::Copy(step.copy(manager, &request).submit())),
            });
            if !transfer.add(submitted, &mut job) {
                break;
            }
        }
        transfer.submitted(&job, &request)
    }

    /// Submits it, and blocks the thread until all elements are in place.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn wait(self) -> Result<CastReport> {
        self.submit().wait()
    }

    /// Like [`submit`](Self::submit) for a task: ready once all is submitted, or refused. It blocks no thread, like
    /// [`CopyBuilder::submit_async`](crate::CopyBuilder::submit_async); a cast within the host of up to 2 MiB is made by the thread that
    /// polls. A future that is dropped before it is ready may have submitted some of the chunks.
    pub fn submit_async(self) -> impl Future<Output = CastTransfer> + Send + 'static {
        submit_for_task(self.manager.clone(), self.request)
    }
}

async fn submit_for_task(manager: CrossBackendTransferManager, request: CastRequest) -> CastTransfer {
    let mut transfer = CastTransfer::new(&manager.context, &request);
    let made = {
        let (manager, request) = (manager.clone(), request.clone());
        manager.clone().spawn_blocking(move || Job::new(&manager, &request))
    };
    let mut job = match made.await.flatten() {
        Ok(job) => job,
        Err(error) => return transfer.refused(manager.refuse(TransferId::if_wanted(Wanted::Failure), error)),
    };
    for index in 0..job.steps() {
        let submitted = match job.step(&request, index) {
            Ok(step) if step.casts => job.cast_async(&step, &request).await.map(Part::Cast),
            Ok(step) => Ok(Part::Copy(job.copy_async(&manager, &request, step).await)),
            Err(error) => Err(error),
        };
        if !transfer.add(submitted, &mut job) {
            break;
        }
    }
    transfer.submitted_async(&job, &request).await
}

impl IntoFuture for CastBuilder<'_> {
    type Output = Result<CastReport>;
    type IntoFuture = CastFuture;

    fn into_future(self) -> CastFuture {
        let submitted = self.submit_async();
        Box::pin(async move { submitted.await.await })
    }
}
