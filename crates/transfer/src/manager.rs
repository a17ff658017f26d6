//! The transfer manager: backends in, transfers out.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use transload_core::{
    Backend, CompletionHandler, CostBasis, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, PathCost,
    Place, RawBuffer, ResourceCounts, Result, SharedBuffer, SizeClass, Timing, Transfer, TransferId,
    TransferPath, TransferScope, Wanted, events::report,
};
use transload_executor::{Executor, Task};

use crate::{
    Alternative, ManagerBuilder, Plan, Sampling, TransferOptions, TransferStats,
    attempt::{Again, Deferral, Extras, NotSubmitted, would_block},
    context::{ManagerContext, is_observed},
    methods::TransferRequest,
    planning::{
        candidate::{Candidate, Excluded},
        copied::Copied,
        engine_queue::COUNTED_FROM,
        planner::Choice,
        registry::{Registry, RouteCacheGuard},
        request::{PlanInput, foreign_path, ranges},
    },
    report_events,
    staging::{REGISTERED_FROM, registered_path},
    stats::unobserved::UnobservedTransfer,
    strided::Rows,
};

/// Moves bytes between any two buffers of the registered backends.
///
/// All methods may be called from any thread, also while transfers are in flight. A failed transfer leaves the manager
/// usable. Dropping the manager neither waits for transfers in flight nor stops them; [`drain`](Self::drain) waits.
///
/// # Queues
/// Each transfer leases a queue from the lane's backend, by its priority and workload, and releases it once the work is
/// enqueued. So the backend balances transfers over its queues, two transfers run concurrently, and an idle manager
/// holds no lease, but for the two queues of each direction of lists that went through device memory, which it keeps until
/// [`drain`](Self::drain).
///
/// # Tasks
/// Any [`Transfer`] can be awaited. *Submitting* one may block the thread; an awaited [`copy`](Self::copy) does not. See
/// [what blocks, and what keeps order](crate::CopyBuilder#what-blocks-and-what-keeps-order).
///
/// # Order
/// Transfers that touch common bytes take effect in submission order, whatever queues they are on, as do all operations
/// on a [`RawBuffer`]. Others are not ordered.
#[derive(Clone)]
pub struct CrossBackendTransferManager {
    pub(crate) registry: Arc<Registry>,
    pub(crate) context: Arc<ManagerContext>,
}

impl CrossBackendTransferManager {
    /// Creates a manager without backends and without an observer, which measures one in 64 transfers.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder, for a manager with an observer or another sampling.
    pub fn builder() -> ManagerBuilder {
        ManagerBuilder::default()
    }

    /// Registers a backend, with its devices and its default costs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if one of its devices is already registered; nothing changes then.
    pub fn register_backend(&self, backend: Arc<dyn Backend>) -> Result<()> {
        self.registry.register(backend)
    }

    /// Returns the executor whose work [`drain`](Self::drain) waits for: that of submissions which may block, and of whatever
    /// else is started on it.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.context.executor
    }

    /// Runs a call that may block, such as an allocation, on a thread of the [executor](Self::executor). At most eight of one manager
    /// run at once, so none may wait for another.
    pub fn spawn_blocking<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        self.context.executor.spawn_blocking(&self.context.calls, call)
    }

    /// Returns the devices of all backends, in registration order.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.registry.backends().iter().flat_map(|registered| &registered.devices).cloned().collect()
    }

    /// Returns the backend of a device.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], naming the devices that are registered.
    pub fn backend(&self, device: DeviceId) -> Result<Arc<dyn Backend>> {
        self.registry.backend(device).map(Arc::clone)
    }

    /// Copies `size` bytes from `src_offset` in `src` to `dst_offset` in `dst`. The copy is submitted before this
    /// returns, like by [`CopyBuilder::submit`](crate::CopyBuilder::submit). Errors are returned by the [`Transfer`]; once it completed with `Ok` the bytes are in
    /// place.
    ///
    /// # Errors
    /// By the transfer, before anything moves: [`ErrorKind::InvalidArgument`] for 0 bytes or a read-only destination,
    /// [`ErrorKind::OutOfRange`], [`ErrorKind::Overlap`], [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`] if
    /// no method is left, [`ErrorKind::Busy`] if a host view is open on a range, [`ErrorKind::DeviceLost`] with the
    /// first cause if a device was lost earlier. Afterwards the backend's.
    #[inline]
    pub fn transfer_buffer(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        src_offset: usize,
        dst_offset: usize,
        size: usize,
    ) -> Transfer {
        let options = TransferOptions::new();
        if (src_offset, dst_offset) == (0, 0) && (size, size) == (src.len(), dst.len()) {
            return self.start(src, dst, &options);
        }
        match ranges((src, src_offset), (dst, dst_offset), size) {
            Ok((src, dst)) => self.start(&src, &dst, &options),
            Err(error) => self.refuse(TransferId::if_wanted(Wanted::Failure), error),
        }
    }

    /// Returns what a transfer would do. Moves nothing and leases no queue.
    ///
    /// # Errors
    /// Those of a transfer that do not depend on the buffers: [`ErrorKind::InvalidArgument`] for 0 bytes,
    /// [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`] if no method is left or no registered device offers a
    /// kind of memory, [`ErrorKind::OutOfRange`] if no allocation of a device has so many bytes, [`ErrorKind::DeviceLost`].
    pub fn plan(&self, src: Place, dst: Place, bytes: u64, options: &TransferOptions) -> Result<Plan> {
        let input = PlanInput::new(TransferPath::new(src, dst), bytes)?;
        // Unlike a buffer, a plan may name memory that no device offers.
        [src, dst].into_iter().try_for_each(|place| self.registry.check_offered(place, bytes))?;
        self.plan_on(&input, options, None, Copied::Any)
    }

    pub(crate) fn plan_on(
        &self,
        input: &PlanInput,
        options: &TransferOptions,
        queue: Option<DeviceId>,
        copied: Copied<'_>,
    ) -> Result<Plan> {
        let mut cache = self.registry.route_cache();
        let routes = cache.routes(&self.registry, &input.path)?;
        let unsuited = queue.map_or(Ok(0), |queue| routes.off_queue(queue))?;
        let excluded = Excluded { unsuited, unfit: routes.unfit(copied), ..Excluded::default() };
        let choice = routes.choose(input, options, &self.context, excluded);
        let choice = choice.map_err(|error| routes.with_cause(error, copied, options))?;
        let chosen = &routes.candidates[choice.index];
        let others = routes.predictions(input.bytes, choice.excluded);
        let others = others.into_iter().filter(|(candidate, _)| !std::ptr::eq(*candidate, chosen));
        let alternatives =
            others.map(|(candidate, predicted)| Alternative::new(candidate, predicted, choice.predicted));
        let report = chosen.info.report(&chosen.submission(input, &choice));
        Ok(Plan::new(report, alternatives.collect()))
    }

    /// Returns a buffer with the bytes of `buffer` that `device` can use: `buffer` itself if the hardware allows it,
    /// else a copy. Operations on the copy wait for its bytes. The result says which it is; of a copy in flight it
    /// holds the fence, which reports a later failure.
    ///
    /// The backend of `device` is tried first, then that of the buffer. If neither can share it, this transfers the
    /// bytes by the cheapest method and blocks until they arrived.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; those of [`Backend::allocate`] and of a transfer.
    pub fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        let home = buffer.place().device;
        let (theirs, ours) = (self.registry.backend(device)?, self.registry.backend(home)?);
        self.context.lost.check([&home, &device, &device])?;
        if home == device {
            return Ok(SharedBuffer::in_place(buffer));
        }
        let mut answer = theirs.share(buffer, device);
        if is_unsupported(&answer) && !Arc::ptr_eq(theirs, ours) {
            answer = ours.share(buffer, device);
        }
        if !is_unsupported(&answer) {
            let lane = if device.is_cpu() { home } else { device };
            return answer
                .inspect(|shared| self.keep_copy(shared, lane))
                .inspect_err(|error| self.context.lost.note(lane, error));
        }
        let kind = if device.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
        let copy = self.allocate_for(device, kind, buffer.len())?;
        self.copy(buffer, &copy).wait()?;
        Ok(SharedBuffer { buffer: copy, copied: true, arrival: None })
    }

    /// Tracks the copy that a backend made to share a buffer: it has no handle that reports its end.
    fn keep_copy(&self, shared: &SharedBuffer, lane: DeviceId) {
        let copies = shared.copied.then(|| shared.buffer.in_flight()).flatten();
        for fence in copies.iter().flatten().cloned() {
            let bytes = shared.buffer.len() as u64;
            self.context.unobserved.add(
                UnobservedTransfer { id: None, fence, bytes, lane, stats: None, is_timed: false },
                &self.context,
            );
        }
    }

    /// Sets the costs of methods on paths. They take precedence over backends' defaults and measurements, and replace
    /// costs set earlier for the same path and method.
    pub fn set_costs(&self, costs: Vec<PathCost>) {
        self.registry.set_costs(costs, CostBasis::User);
    }

    /// Returns the statistics, sorted by path, method and size class, without empty classes. Polls the transfers whose
    /// handles were dropped, and counts those that ended.
    #[must_use]
    pub fn get_transfer_stats(&self) -> Vec<TransferStats> {
        self.context.unobserved.check_all(&self.context);
        self.registry.stats.collect(self.context.sampling)
    }

    /// Returns the statistics of one path and size class: one entry for each method used.
    #[must_use]
    pub fn stats_for(&self, path: TransferPath, class: SizeClass) -> Vec<TransferStats> {
        let mut stats = self.get_transfer_stats();
        stats.retain(|stats| stats.path == path && stats.size_class == class);
        stats
    }

    /// Returns the number of transfers refused before anything was enqueued. No path's statistics count them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.context.refused.load(Ordering::Relaxed)
    }

    /// Returns which transfers are measured.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        self.context.sampling
    }

    /// Clears the cached routes, so that the next transfer on each path queries the backends again. Keeps statistics, costs
    /// and lost devices.
    pub fn clear_routes(&self) {
        self.registry.forget_routes();
    }

    /// Clears the cached routes like [`clear_routes`](Self::clear_routes), and also the statistics and the count of
    /// refused transfers. Transfers in flight count when they end.
    pub fn clear_cache(&self) {
        self.clear_routes();
        self.context.refused.store(0, Ordering::Relaxed);
        self.registry.stats.clear();
    }

    /// Waits for all work in flight on all backends, and frees memory that was dropped while in use. Also waits for destructors of
    /// owners that other code handed over with its memory or streams: the caller must hold no lock that they need, as Python's GIL.
    ///
    /// # Errors
    /// The first failure not returned to any caller, once, with the number of such failures: that of a transfer whose handle was dropped
    /// before its end or its refusal was observed. Otherwise the first error of a backend. All backends are drained even after an
    /// error. On a thread of the library's executor (such as in a waker that runs its task inline) the drain would wait
    /// for its own caller: it returns [`ErrorKind::Unsupported`] there and waits for nothing. Memory of a lost device
    /// was destroyed with its context.
    pub fn drain(&self) -> Result<()> {
        self.context.executor.drain()?;
        let outcome = self.drain_rest();
        report::emit_deferred();
        outcome
    }

    fn drain_rest(&self) -> Result<()> {
        self.registry.drain_methods()?;
        self.context.unobserved.wait_for_all(&self.context);
        self.context.unreported.take().and(self.registry.drain_backends())
    }

    /// Returns what each backend keeps alive, by backend name.
    #[must_use]
    pub fn resource_counts(&self) -> Vec<(&'static str, ResourceCounts)> {
        let backends = self.registry.backends();
        backends
            .iter()
            .map(|registered| (registered.backend.name(), registered.backend.resource_counts()))
            .collect()
    }

    /// Submits a transfer; blocks the calling thread where the bytes wait for work that the queue cannot wait for.
    #[inline]
    pub(crate) fn start(&self, src: &RawBuffer, dst: &RawBuffer, options: &TransferOptions) -> Transfer {
        match self.context.transfer_id(src.len() as u64) {
            None => self.attempt(src, dst, options, None),
            id => self.attempt(src, dst, options, Some(&Extras { id, ..Extras::default() })),
        }
    }

    /// Submits a transfer, unless a task's thread may not: then nothing was submitted, the task is told why, and the result
    /// must be ignored.
    pub(crate) fn attempt(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        options: &TransferOptions,
        extras: Option<&Extras<'_>>,
    ) -> Transfer {
        let id = || extras.and_then(|extras| extras.id);
        let rows = extras.and_then(|extras| extras.rows);
        let checked = match rows {
            None => PlanInput::check(src, dst),
            Some(_) => PlanInput::check_rows(dst),
        };
        if let Err(error) = checked {
            return self.refuse(id(), error);
        }
        let bytes = rows.map_or(src.len() as u64, Rows::bytes);
        let mut input = PlanInput::between(src, dst, bytes);
        if input.bytes >= REGISTERED_FROM && rows.is_none() {
            input.path = registered_path(src, dst, options);
        }
        let mut cache = self.registry.route_cache();
        self.attempt_without(Excluded::default(), &mut cache, ((src, dst), (options, extras)), &input)
    }

    /// Submits a checked transfer by the best method that is not excluded.
    #[inline(always)]
    fn attempt_without(
        &self,
        mut excluded: Excluded,
        cache: &mut RouteCacheGuard<'_>,
        transfer: Again<'_>,
        input: &PlanInput,
    ) -> Transfer {
        let (_, (options, extras)) = transfer;
        let id = || extras.and_then(|extras| extras.id);
        let routes = match cache.routes(&self.registry, &input.path) {
            Ok(routes) => routes,
            Err(error) => return self.refuse(id(), error),
        };
        if routes.depends_on_buffers(input) {
            // Unless this is the plan for that path.
            let foreign = foreign_path(transfer.0.0, transfer.0.1).filter(|path| *path != input.path);
            if let Some(path) = foreign {
                return self.attempt_next(excluded, cache, transfer, &PlanInput { path, ..*input });
            }
            excluded.unfit = routes.unfit(copied_by(transfer));
        }
        if let Some(extras) = extras {
            excluded.declined |= extras.declined();
            match extras.queue.map_or(Ok(0), |queue| routes.off_queue(queue.device())) {
                Ok(unsuited) => excluded.unsuited = unsuited,
                Err(error) => return self.refuse(id(), error),
            }
        }
        if let Err(error) = routes.choose_usual(input, options, &self.context, excluded) {
            let error = routes.with_cause(error, copied_by(transfer), options);
            return self.with_no_method(error, transfer);
        }
        let mut choice = routes.latest;
        if options.is_urgent(input.bytes) {
            choice = routes.choose_urgent(choice, input.bytes);
        }
        // First by a constant, which costs small copies less.
        if input.bytes >= COUNTED_FROM && input.bytes >= routes.explored_from && self.context.explores {
            choice = routes.explore(choice, input, options, extras);
        }
        let candidate = &mut routes.candidates[choice.index];
        if let Some(extras) = extras
            && let Some(task) = extras.task
            && !task.may_be_slow
            && (candidate.is_slow_to_submit(input, options.priority)
                || extras.rows.is_some_and(|rows| rows.are_slow_by(candidate.method())))
        {
            task.deferral.set(Some(Deferral::Slow(candidate.route.lane)));
            return would_block();
        }
        match self.registry.prepare(&input.path, candidate) {
            Ok(()) => self.submit(candidate, &choice, transfer, input),
            Err(methods) => {
                report_events::declined(id(), input.path, candidate.method());
                excluded.declined |= methods;
                self.attempt_next(excluded, cache, transfer, input)
            }
        }
    }

    /// Tries the next best method. A call of its own, since a loop would slow down the first attempt.
    #[cold]
    #[inline(never)]
    fn attempt_next(
        &self,
        excluded: Excluded,
        cache: &mut RouteCacheGuard<'_>,
        transfer: Again<'_>,
        input: &PlanInput,
    ) -> Transfer {
        self.attempt_without(excluded, cache, transfer, input)
    }

    #[inline(always)]
    fn submit(
        &self,
        candidate: &mut Candidate,
        choice: &Choice,
        transfer: Again<'_>,
        input: &PlanInput,
    ) -> Transfer {
        let ((src, dst), (options, extras)) = transfer;
        let timing = candidate.timing(input.bytes, options.timing);
        let by_kernel = choice.by_kernel;
        let request = TransferRequest { src, dst, options, timing, by_kernel, extras };
        let mut submission = candidate.submission(input, choice);
        // Taken before the driver call, which evicts most of L1.
        let info = candidate.share_info();
        if timing == Timing::Measured || is_observed(request.id()) {
            if extras.is_none_or(|extras| extras.rows.is_none()) {
                candidate.note_if_alone(&mut submission, timing);
            }
            submission.begun = Some(Instant::now());
        }
        let scope = TransferScope::enter(request.id());
        let submitted = candidate.method.submit(&candidate.route, &request);
        drop(scope);
        if let Some(begun) = submission.begun {
            submission.submitting = begun.elapsed();
        }
        // While the device works. It may tell an observer.
        if extras.is_none_or(|extras| !extras.begins_by_waiting()) {
            self.context.unobserved.check_few(&self.context);
        }
        match submitted {
            Ok(end) => {
                self.accepted(candidate, choice, options.priority, (&end, &submission, &info), request.id());
                Self::handle_of(end, submission, info, request.id())
            }
            Err(NotSubmitted::Deferred(deferral)) => {
                if let Some(task) = extras.and_then(|extras| extras.task) {
                    task.deferral.set(Some(deferral));
                }
                would_block()
            }
            Err(NotSubmitted::Failed(error)) => {
                let error = match self.after_failure(error, candidate, &submission, transfer) {
                    Ok(transfer) => return transfer,
                    Err(error) => error,
                };
                self.failed(error, &submission, &info, request.id())
            }
        }
    }

    #[cold]
    pub(crate) fn refuse(&self, id: Option<TransferId>, error: Error) -> Transfer {
        self.context.refused(id, &error);
        Transfer::refused_with(error, id, Arc::clone(&self.context) as _)
    }
}

fn copied_by<'a>(((src, dst), (_, extras)): Again<'a>) -> Copied<'a> {
    Copied::new((src, dst), extras.and_then(|extras| extras.rows))
}

/// Returns whether a backend cannot share a buffer.
fn is_unsupported(answer: &Result<SharedBuffer>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported)
}

impl Default for CrossBackendTransferManager {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CrossBackendTransferManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends = self.registry.backends();
        let devices = backends.iter().flat_map(|registered| &registered.devices).map(|device| device.id);
        f.debug_struct("CrossBackendTransferManager")
            .field("devices", &devices.collect::<Vec<_>>())
            .field("sampling", &self.context.sampling)
            .finish_non_exhaustive()
    }
}
