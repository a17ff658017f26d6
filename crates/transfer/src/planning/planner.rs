//! Chooses the method, for plans and transfers alike.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::{
    CostBasis, DeviceId, Error, ErrorKind, MemoryKind, Place, RejectReason, Rejected, Result, StreamPriority,
    Timing, TransferMethod, TransferPath,
};

use crate::{
    TransferOptions,
    attempt::Extras,
    context::ManagerContext,
    methods::{Method, Route, Topology},
    planning::{
        candidate::{Candidate, CandidateInfo, EXPLORED, Excluded, ON_QUEUE, Reasons, bit},
        costs::CostTable,
        engine_queue::{COUNTED_FROM, EngineQueue, EngineQueues},
        list_costs::ListCosts,
        request::PlanInput,
    },
    stats::path_stats::StatsTable,
};

/// One of so many parts of all time is used to try the second best method.
const EXPLORED_SHARE: u32 = 100;
/// The smallest transfer that may explore, in bytes, unless a cost was corrected.
const EXPLORED_FROM: u64 = 1 << 20;

/// The methods that apply to a path, with their routes and costs, and why the others do not. Valid until a backend is
/// registered or costs change.
pub(crate) struct PathRoutes {
    pub(crate) path: TransferPath,
    pub(crate) candidates: Vec<Candidate>,
    reasons: Reasons,
    /// The candidates that copy in place: a bit for each method's index.
    in_place: u8,
    pub(crate) lists: ListCosts,
    /// The copies the other way, if a kernel can copy lists along the path.
    pub(crate) opposite: Option<Arc<EngineQueue>>,
    /// Whether the choice depends on more of the buffers than their places: of buffers that have no address for a device, such as memory of
    /// another driver, and of all.
    depends_on_buffers: (bool, bool),
    /// Whether some method may not copy all buffers.
    pub(crate) checks_buffers: bool,
    /// Size of the latest request, or 0.
    latest_bytes: u64,
    /// Its cheapest method.
    pub(crate) latest: Choice,
    /// The smallest transfer that may explore, in bytes.
    pub(crate) explored_from: u64,
}

/// How a request will be carried out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    /// Index of the chosen method among the path's candidates.
    pub(crate) index: usize,
    /// See [`TransferReport::queued`].
    pub(crate) queued: u64,
    pub(crate) predicted: Duration,
    /// Whether a copy kernel is used instead of a copy engine, where the route has both.
    pub(crate) by_kernel: bool,
    pub(crate) excluded: Excluded,
}

impl PathRoutes {
    /// Queries every method, except those already found unusable on the path.
    pub(crate) fn find(
        methods: &[Arc<dyn Method>],
        unusable: &[(TransferPath, Rejected)],
        path: TransferPath,
        topology: &Topology<'_>,
        costs: &CostTable,
        (table, engines, context): (&StatsTable, &EngineQueues, &Arc<ManagerContext>),
    ) -> Self {
        let apply = |method: &Arc<dyn Method>| {
            let known = unusable.iter().find(|(of, known)| *of == path && known.method == method.method());
            known.map_or_else(|| method.applicable(path, topology), |(_, known)| Err(known.reason))
        };
        let routes: SmallVec<[_; 5]> = methods.iter().map(|method| (method, apply(method))).collect();
        let mut reasons = Reasons::default();
        for (method, route) in &routes {
            if let (Some(reason), Err(why)) = (reasons.get_mut(method.method().index()), route) {
                *reason = Some(*why);
            }
        }
        let candidate = |method: &Arc<dyn Method>, route: Route| {
            let queue = engines.get_or_create(path, route.lane);
            let engine = queue.clone().filter(|_| method.queued(&route, u64::MAX) > 0);
            let known = CandidateInfo {
                stats: table.get_or_create(path, method.method(), route.simulated),
                lane: route.lane,
                cost: costs.get(path, method.method()),
                lanes: route.lanes,
                simulated: route.simulated,
                reasons,
                rejected: Excluded::usual_rejections(&reasons),
                context: Arc::clone(context),
                engine: engine.as_ref().map(Arc::downgrade).unwrap_or_default(),
            };
            Candidate::new(known, Arc::clone(method), route, (engine, queue))
        };
        let applicable = routes.into_iter().filter_map(|(method, route)| Some((method, route.ok()?)));
        let candidates: Vec<_> = applicable.map(|(method, route)| candidate(method, route)).collect();
        let in_place = candidates.iter().filter(|candidate| candidate.is_in_place());
        let opposite = in_place.clone().find_map(|candidate| engines.opposite(path, candidate.route.lane));
        let in_place = in_place.fold(0, |methods, candidate| methods | bit(candidate.method()));
        // What was corrected may have to be corrected again.
        let is_corrected = candidates.iter().any(|candidate| candidate.info.cost.basis == CostBasis::Refined);
        let explored_from = if is_corrected { COUNTED_FROM } else { EXPLORED_FROM };
        let lists = costs.lists(path);
        let (latest_bytes, latest) = (0, Choice::default());
        let is_pinned = |place: Place| matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
        let is_asked = match (path.src.device.is_cpu(), path.dst.device.is_cpu()) {
            (true, false) => is_pinned(path.src),
            (false, true) => is_pinned(path.dst),
            _ => false,
        };
        let knows_by_address = [path.src, path.dst].iter().all(|place| place.device.knows_by_address());
        let checks_buffers = candidates.iter().any(Candidate::checks_buffers);
        let depends_on_buffers = (is_asked, is_asked && !knows_by_address || checks_buffers);
        Self {
            path,
            candidates,
            reasons,
            in_place,
            lists,
            opposite,
            depends_on_buffers,
            checks_buffers,
            latest_bytes,
            latest,
            explored_from,
        }
    }

    /// Chooses the cheapest method that applies, is allowed and has not declined this request; one in place only if no other is left
    /// or the user set its cost. For a small transfer of
    /// high priority it chooses the cheapest one in place instead, if this manager's copies queued for the copy engine
    /// take longer (see [`TransferOptions::priority`]). A request like the one before reuses its choice.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if no method is left, with the reasons; [`ErrorKind::DeviceLost`].
    pub(crate) fn choose(
        &mut self,
        input: &PlanInput,
        options: &TransferOptions,
        context: &ManagerContext,
        excluded: Excluded,
    ) -> Result<Choice> {
        self.choose_usual(input, options, context, excluded)?;
        let choice = self.latest;
        Ok(if options.is_urgent(input.bytes) { self.choose_urgent(choice, input.bytes) } else { choice })
    }

    /// The part of [`choose`](Self::choose) for a transfer of high priority.
    #[cold]
    pub(crate) fn choose_urgent(&self, mut choice: Choice, bytes: u64) -> Choice {
        if choice.excluded.unsuited & ON_QUEUE == 0
            && let Some(candidate) = self.candidates.get(choice.index)
            && let Some(engine) = &candidate.engine
            && !candidate.route.lane.is_cpu()
        {
            choice.queued = engine.queued();
            if choice.queued > 0 {
                self.bypass_engine(&mut choice, candidate, bytes);
            }
        }
        choice
    }

    /// Takes the second best method for a transfer that is submitted next, now and then: if it is not much slower, or was not before its
    /// cost was corrected, if the best one has been chosen for long enough, and if the transfer can be alone on the link.
    #[cold]
    pub(crate) fn explore(
        &mut self,
        mut choice: Choice,
        input: &PlanInput,
        options: &TransferOptions,
        extras: Option<&Extras<'_>>,
    ) -> Choice {
        let is_urgent = options.priority == StreamPriority::High
            && !transload_core::mutant!("transfer/urgent-transfers-do-not-explore");
        let (excluded, bytes) = (choice.excluded, input.bytes);
        if is_urgent
            || options.timing == Some(Timing::Off)
            || excluded.unsuited & ON_QUEUE != 0
            || extras.is_some_and(|extras| extras.has_explored || extras.rows.is_some())
        {
            return choice;
        }
        // Only of these are the times learned.
        let can_learn = |candidate: &Candidate| {
            candidate.engine.is_some()
                && candidate.info.cost.basis != CostBasis::User
                && !candidate.route.simulated
        };
        let others = self.candidates.iter().enumerate().filter(|(index, candidate)| {
            *index != choice.index && excluded.all() & bit(candidate.method()) == 0 && can_learn(candidate)
        });
        let second =
            others.map(|(index, candidate)| (index, candidate.info.cost.least(bytes))).min_by_key(|it| it.1);
        let Some((index, least)) = second.filter(|_| can_learn(&self.candidates[choice.index])) else {
            return choice;
        };
        let sum = |of: fn(&Candidate) -> Duration| self.candidates.iter().map(of).sum::<Duration>();
        let (spent, explored) = (sum(|candidate| candidate.spent), sum(|candidate| candidate.explored));
        let candidate = &mut self.candidates[index];
        let predicted = candidate.predict(bytes);
        let (charge, _) = candidate.info.cost.charge(bytes);
        let is_rare = (!predicted.is_zero()
            && explored.saturating_add(charge).saturating_mul(EXPLORED_SHARE) <= spent)
            || transload_core::mutant!("transfer/explores-one-percent");
        if is_rare
            && 2 * least <= 3 * choice.predicted
            && candidate.can_explore(input, options.priority, extras)
        {
            candidate.measure_next(bytes);
            (choice.index, choice.predicted) = (index, predicted);
            choice.excluded.unsuited |= EXPLORED;
        }
        choice
    }

    /// The methods that a queue of the caller's on this device cannot take.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if these are all that apply.
    #[cold]
    pub(crate) fn off_queue(&self, queue: DeviceId) -> Result<u8> {
        let takes = |candidate: &Candidate, queue: DeviceId| {
            let (method, TransferPath { src, dst }) = (&candidate.method, self.path);
            let peers =
                method.method() == TransferMethod::PeerToPeer && [src.device, dst.device].contains(&queue);
            method.is_of_one_queue(self.path) && (candidate.route.lane == queue || peers)
        };
        // Without an allocation, since each transfer on a stream comes here.
        let not = self.candidates.iter().filter(|candidate| !takes(candidate, queue));
        let (count, methods) =
            not.fold((0, ON_QUEUE), |(count, methods), not| (count + 1, methods | bit(not.method())));
        if count < self.candidates.len() || count == 0 {
            return Ok(methods);
        }
        let path = self.path;
        let mut devices = vec![path.src.device, path.dst.device];
        devices.dedup();
        let is_valid = |device| self.candidates.iter().any(|candidate| takes(candidate, device));
        devices.retain(|device| !device.is_cpu() && is_valid(*device));
        let devices: Vec<_> = devices.iter().map(|device| format!("a stream of {device}")).collect();
        let text = match devices.join(" or ").as_str() {
            "" => format!("no stream can take a copy {path}; leave out `on`"),
            valid => format!("a stream of {queue} cannot take a copy {path}; use {valid}, or leave out `on`"),
        };
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Returns whether the choice depends on more of the buffers than their places.
    #[inline(always)]
    pub(crate) fn depends_on_buffers(&self, input: &PlanInput) -> bool {
        let (if_unseen, anyway) = self.depends_on_buffers;
        anyway || if_unseen && !input.device_visible
    }

    /// Chooses the cheapest method in place, or by a copy kernel, if the engine's queue takes longer.
    #[cold]
    fn bypass_engine(&self, choice: &mut Choice, chosen: &Candidate, bytes: u64) {
        let excluded = choice.excluded.all();
        let kernels = choice.excluded.forbidden & bit(TransferMethod::ZeroCopy) == 0;
        let is_in_place =
            |candidate: &Candidate| candidate.is_in_place() || (candidate.route.has_kernel && kernels);
        let in_place = self.candidates.iter().enumerate().filter(|(_, candidate)| is_in_place(candidate));
        let allowed = in_place.filter(|(_, candidate)| excluded & bit(candidate.method()) == 0);
        let Some((index, candidate)) = allowed.min_by_key(|(_, candidate)| candidate.predict(bytes)) else {
            return;
        };
        // The curve of the driver's pageable copies says nothing about the engine's rate.
        let queue = if candidate.route.has_kernel { candidate } else { chosen };
        if queue.predict(choice.queued) > candidate.predict(bytes)
            && !transload_core::mutant!("transfer/urgent-waits-for-engine")
        {
            choice.index = index;
            choice.predicted = candidate.predict(bytes);
            choice.by_kernel = candidate.route.has_kernel;
        }
    }

    /// Chooses the cheapest candidate that can be recorded, ignoring what is queued.
    ///
    /// # Errors
    /// Those of `choose`.
    pub(crate) fn choose_recordable(
        &mut self,
        input: &PlanInput,
        options: &TransferOptions,
        context: &ManagerContext,
        excluded: Excluded,
    ) -> Result<Choice> {
        let not =
            self.candidates.iter().filter(|candidate| candidate.method.single_operation(self.path).is_none());
        let unsuited = not.fold(excluded.unsuited, |methods, candidate| methods | bit(candidate.method()));
        self.choose_usual(input, options, context, Excluded { unsuited, ..excluded })?;
        Ok(self.latest)
    }

    /// Makes the cheapest candidate that is not excluded the latest choice, ignoring what is queued.
    ///
    /// # Errors
    /// Those of `choose`.
    #[inline(always)]
    pub(crate) fn choose_usual(
        &mut self,
        input: &PlanInput,
        options: &TransferOptions,
        context: &ManagerContext,
        mut excluded: Excluded,
    ) -> Result<()> {
        excluded.forbidden = options.forbidden();
        if !input.device_visible && !transload_core::mutant!("transfer/in-place-of-memory-unseen") {
            excluded.unfit |= self.in_place;
        }
        if (self.latest_bytes, self.latest.excluded) != (input.bytes, excluded) {
            self.latest = self.cheapest(input.bytes, excluded)?;
            self.latest_bytes = input.bytes;
        }
        if context.lost.are_any() { self.check_lost(context) } else { Ok(()) }
    }

    #[cold]
    fn check_lost(&self, context: &ManagerContext) -> Result<()> {
        let lane = &self.candidates[self.latest.index].route.lane;
        context.lost.check([&self.path.src.device, &self.path.dst.device, lane])
    }

    #[cold]
    fn cheapest(&self, bytes: u64, excluded: Excluded) -> Result<Choice> {
        let none = excluded.all();
        let allowed = |(_, candidate): &(usize, &Candidate)| none & bit(candidate.method()) == 0;
        let allowed = self.candidates.iter().enumerate().filter(allowed);
        let predicted = allowed.map(|(index, candidate)| (index, candidate.predict(bytes)));
        // A copy kernel waits for other kernels, which no cost shows: by its time alone only the user prefers it.
        let is_last = |index: usize| {
            self.candidates.get(index).is_some_and(|candidate| {
                candidate.is_in_place() && candidate.info.cost.basis != CostBasis::User
            }) && !transload_core::mutant!("transfer/kernel-by-its-time-alone")
        };
        let fastest = predicted.min_by_key(|(index, predicted)| (is_last(*index), *predicted));
        let Some((index, predicted)) = fastest else {
            let is_alone = excluded.forbidden.count_zeros() == 1;
            // What the caller excluded is of interest if it applies, unless one method was asked for.
            let matters = |rejected: &&Rejected| {
                excluded.forbidden & bit(rejected.method) == 0
                    || !is_alone && rejected.reason == RejectReason::Forbidden
            };
            let reasons = excluded.rejections(&self.reasons);
            let reasons: Vec<_> = reasons.iter().filter(matters).map(ToString::to_string).collect();
            let text = format!("no method is left for {}: {}", self.path, reasons.join("; "));
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        Ok(Choice { index, queued: 0, predicted, by_kernel: false, excluded })
    }

    /// Returns the methods that are not excluded with their predicted times, fastest first.
    pub(crate) fn predictions(&self, bytes: u64, excluded: Excluded) -> Vec<(&Candidate, Duration)> {
        let allowed =
            self.candidates.iter().filter(|candidate| excluded.all() & bit(candidate.method()) == 0);
        let mut all: Vec<_> = allowed.map(|candidate| (candidate, candidate.predict(bytes))).collect();
        all.sort_by_key(|(_, predicted)| *predicted);
        all
    }
}
