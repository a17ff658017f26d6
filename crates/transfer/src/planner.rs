//! The one place where a method is chosen: plans and transfers both ask here.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Rejected, Result, TransferMethod, TransferPath};

use crate::{
    TransferOptions,
    candidate::{Candidate, Excluded, Known, Reasons, bit},
    costs::CostTable,
    engine_queue::EngineQueues,
    methods::{Context, Method, Route},
    request::Request,
    row::{Rows, Watch},
};

/// What is known of a path before anyone asks: the methods that apply, with their routes and costs, and those that do
/// not. Kept until a backend is registered or costs change.
pub(crate) struct PathRoutes {
    pub(crate) path: TransferPath,
    pub(crate) candidates: SmallVec<[Candidate; 5]>,
    reasons: Reasons,
}

/// What will be done for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// Its place among the path's candidates.
    pub(crate) index: usize,
    /// See [`TransferReport::queued`].
    pub(crate) queued: u64,
    /// Whether the method stages, and the device copies in place between itself and the staging buffers.
    pub(crate) stage_in_place: bool,
    pub(crate) excluded: Excluded,
}

impl PathRoutes {
    /// Asks every method, but for those that found out earlier that they cannot be taken on the path.
    pub(crate) fn find(
        methods: &[Arc<dyn Method>],
        found_out: &[(TransferPath, Rejected)],
        path: TransferPath,
        context: &Context<'_>,
        costs: &CostTable,
        (rows, engines, watch): (&Rows, &EngineQueues, &Arc<Watch>),
    ) -> Self {
        let apply = |method: &Arc<dyn Method>| {
            let known = found_out.iter().find(|(of, known)| *of == path && known.method == method.method());
            known.map_or_else(|| method.applicable(path, context), |(_, known)| Err(known.reason))
        };
        let routes: SmallVec<[_; 5]> = methods.iter().map(|method| (method, apply(method))).collect();
        let mut reasons = Reasons::default();
        for (method, route) in &routes {
            if let (Some(reason), Err(why)) = (reasons.get_mut(method.method().index()), route) {
                *reason = Some(*why);
            }
        }
        let candidate = |method: &Arc<dyn Method>, route: Route| {
            let known = Known {
                row: rows.row(path, method.method(), route.simulated),
                lane: route.lane,
                cost: costs.get(path, method.method()),
                lanes: route.lanes,
                simulated: route.simulated,
                reasons,
                rejected: Excluded::default().rejections(&reasons),
                watch: Arc::clone(watch),
            };
            let engine = engines.of(path, route.lane).filter(|_| method.queued(u64::MAX) > 0);
            Candidate::new(known, Arc::clone(method), route, engine)
        };
        let applicable = routes.into_iter().filter_map(|(method, route)| Some((method, route.ok()?)));
        let candidates = applicable.map(|(method, route)| candidate(method, route)).collect();
        Self { path, candidates, reasons }
    }

    /// The cheapest method that applies and is allowed. For a small transfer of high priority it is the cheapest in place
    /// instead, if what this manager has queued before the copy engine takes longer (see [`TransferOptions::priority`]).
    /// Every request asks the cost curves themselves, whose points are the break points; nothing is remembered per size class.
    /// Methods that declined this very request are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where no method is left, with the reason of each; [`ErrorKind::DeviceLost`].
    pub(crate) fn choose(
        &self,
        request: &Request,
        options: &TransferOptions,
        watch: &Watch,
        declined: u8,
    ) -> Result<Choice> {
        let mut choice =
            self.choose_among(request, options, watch, Excluded { declined, ..Excluded::default() })?;
        if options.is_urgent(request.bytes)
            && let Some(candidate) = self.candidates.get(choice.index)
            && let Some(engine) = &candidate.engine
        {
            choice.queued = engine.queued();
            if choice.queued > 0 {
                self.pass_by_engine(&mut choice, candidate, request.bytes);
            }
        }
        Ok(choice)
    }

    /// Takes the cheapest method in place, or one that stages so, if the engine's queue takes longer.
    #[cold]
    fn pass_by_engine(&self, choice: &mut Choice, chosen: &Candidate, bytes: u64) {
        let excluded = choice.excluded.all();
        let kernels = choice.excluded.forbidden & bit(TransferMethod::ZeroCopy) == 0;
        let is_in_place = |candidate: &Candidate| {
            candidate.method.is_in_place() || (candidate.route.stages_in_place && kernels)
        };
        let in_place = self.candidates.iter().enumerate().filter(|(_, candidate)| is_in_place(candidate));
        let allowed = in_place.filter(|(_, candidate)| excluded & bit(candidate.method()) == 0);
        let Some((index, candidate)) = allowed.min_by_key(|(_, candidate)| candidate.predict(bytes)) else {
            return;
        };
        // The driver's own copies of pageable memory do not tell what an engine does meanwhile.
        let queue = if candidate.route.stages_in_place { candidate } else { chosen };
        if queue.predict(choice.queued) > candidate.predict(bytes)
            && !transload_core::mutant!("transfer/urgent-waits-for-engine")
        {
            choice.index = index;
            choice.stage_in_place = candidate.route.stages_in_place;
        }
    }

    /// The cheapest of the candidates that can be recorded, whatever is queued.
    ///
    /// # Errors
    /// As for `choose`.
    pub(crate) fn choose_recordable(
        &self,
        request: &Request,
        options: &TransferOptions,
        watch: &Watch,
        declined: u8,
    ) -> Result<Choice> {
        let not = self.candidates.iter().filter(|candidate| candidate.method.single(self.path).is_none());
        let unrecordable = not.fold(0, |methods, candidate| methods | bit(candidate.method()));
        let excluded = Excluded { declined, unrecordable, ..Excluded::default() };
        self.choose_among(request, options, watch, excluded)
    }

    /// The cheapest of the candidates that are not excluded, whatever is queued.
    ///
    /// # Errors
    /// As for `choose`.
    fn choose_among(
        &self,
        request: &Request,
        options: &TransferOptions,
        watch: &Watch,
        mut excluded: Excluded,
    ) -> Result<Choice> {
        excluded.forbidden = options.forbidden();
        if !request.device_visible && !transload_core::mutant!("transfer/in-place-of-memory-unseen") {
            let in_place = self.candidates.iter().filter(|candidate| candidate.method.is_in_place());
            excluded.unmapped = in_place.fold(0, |methods, candidate| methods | bit(candidate.method()));
        }
        let none = excluded.all();
        let allowed = |(_, candidate): &(usize, &Candidate)| none & bit(candidate.method()) == 0;
        let mut allowed = self.candidates.iter().enumerate().filter(allowed);
        let Some(first) = allowed.next() else {
            let reasons = excluded.rejections(&self.reasons);
            let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
            let text = format!("no method is left for {}: {}", self.path, reasons.join("; "));
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let mut best = (first, None);
        for next in allowed {
            let least = best.1.unwrap_or_else(|| best.0.1.predict(request.bytes));
            let predicted = next.1.predict(request.bytes);
            best = if predicted < least { (next, Some(predicted)) } else { (best.0, Some(least)) };
        }
        let (index, candidate) = best.0;
        watch.lost.check([self.path.src.device, self.path.dst.device, candidate.route.lane])?;
        Ok(Choice { index, queued: 0, stage_in_place: false, excluded })
    }

    /// What the allowed methods would take, cheapest first.
    pub(crate) fn predictions(
        &self,
        request: &Request,
        options: &TransferOptions,
    ) -> Vec<(&Candidate, Duration)> {
        let allowed = self.candidates.iter().filter(|candidate| options.allows(candidate.method()));
        let mut all: Vec<_> =
            allowed.map(|candidate| (candidate, candidate.predict(request.bytes))).collect();
        all.sort_by_key(|(_, predicted)| *predicted);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use transload_backend_cpu::CpuBackend;
    use transload_core::{
        Backend, Completion as _, CostBasis, CostModel, DeviceId, MemoryKind, PathCost, Place, RejectReason,
        StreamPriority, TransferMethod, TransferReport, Unsubmitted,
    };

    use super::*;
    use crate::{
        engine_queue::{EngineQueue, tests::Manual},
        methods::{Job, Submitted},
        registry::Registered,
    };

    /// A method that applies where it is told to.
    struct Fake(TransferMethod, Result<(), RejectReason>);

    impl Method for Fake {
        fn method(&self) -> TransferMethod {
            self.0
        }

        fn applicable(&self, _: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason> {
            let backend = Arc::clone(&context.backends[0].backend);
            self.1.map(|()| Route {
                backend,
                lane: DeviceId::Cpu,
                lanes: 2,
                simulated: false,
                at_once: 0,
                stages_in_place: false,
                second: None,
            })
        }

        fn chunks(&self, _: &Route, request: &Request) -> u32 {
            request.bytes.div_ceil(1 << 20) as u32
        }

        fn submit(&self, _: &Route, _: &Job<'_>) -> Result<Submitted, Unsubmitted> {
            Err(Error::new(ErrorKind::Unsupported, "it is for plans only").into())
        }
    }

    /// A method that needs no copy engine.
    struct InPlace;

    impl Method for InPlace {
        fn method(&self) -> TransferMethod {
            TransferMethod::ZeroCopy
        }

        fn is_in_place(&self) -> bool {
            true
        }

        fn applicable(&self, path: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason> {
            DIRECT.applicable(path, context)
        }

        fn submit(&self, route: &Route, job: &Job<'_>) -> Result<Submitted, Unsubmitted> {
            DIRECT.submit(route, job)
        }
    }

    const DIRECT: &Fake = &Fake(TransferMethod::DirectCopy, Ok(()));
    const STAGED: &Fake = &Fake(TransferMethod::HostStaged, Ok(()));
    const PEER: &Fake = &Fake(TransferMethod::PeerToPeer, Err(RejectReason::NoPeerAccess));
    const HOST: Place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    const PATH: TransferPath = TransferPath::new(HOST, HOST);

    fn routes(methods: &[&'static Fake], costs: &[(TransferMethod, CostModel)]) -> PathRoutes {
        let methods: Vec<Arc<dyn Method>> =
            methods.iter().map(|fake| Arc::new(Fake(fake.0, fake.1)) as Arc<dyn Method>).collect();
        routes_of(&methods, costs)
    }

    fn routes_of(methods: &[Arc<dyn Method>], costs: &[(TransferMethod, CostModel)]) -> PathRoutes {
        let backend: Arc<dyn Backend> = CpuBackend::new().unwrap();
        let backends = [Registered { devices: backend.devices(), backend }];
        let mut table = CostTable::default();
        let costs = costs.iter().map(|(method, model)| PathCost {
            path: PATH,
            method: *method,
            model: model.clone(),
        });
        table.set(costs.collect(), CostBasis::Measured);
        let parts = (&Rows::default(), &EngineQueues::default(), &Arc::default());
        PathRoutes::find(methods, &[], PATH, &Context { backends: &backends }, &table, parts)
    }

    fn report(routes: &PathRoutes, bytes: u64, options: TransferOptions) -> Result<TransferReport> {
        reported(routes, &Request::new(PATH, bytes)?, options, 0)
    }

    fn reported(
        routes: &PathRoutes,
        request: &Request,
        options: TransferOptions,
        declined: u8,
    ) -> Result<TransferReport> {
        let choice = routes.choose(request, &options, &Watch::default(), declined)?;
        let candidate = &routes.candidates[choice.index];
        Ok(candidate.known.report(&candidate.submission(request, &choice)))
    }

    fn crossing() -> [(TransferMethod, CostModel); 2] {
        // Equal at 3 MB: the break point is within a size class.
        let micros = Duration::from_micros;
        [
            (TransferMethod::DirectCopy, CostModel::linear(micros(10), 1e9)),
            (TransferMethod::HostStaged, CostModel::linear(micros(1510), 2e9)),
        ]
    }

    #[test]
    fn a_method_that_declines_one_request_is_passed_over_and_named_for_that_one_only() {
        let routes = routes(&[DIRECT, STAGED], &crossing());
        let request = Request::new(PATH, 4096).unwrap();
        let declined =
            [Rejected { method: TransferMethod::DirectCopy, reason: RejectReason::PeerUnverified }];
        let choose = |declined| reported(&routes, &request, TransferOptions::new(), declined).unwrap();
        let report = choose(bit(TransferMethod::DirectCopy));
        assert_eq!((report.method, &report.rejected[..]), (TransferMethod::HostStaged, &declined[..]));
        let report = choose(0);
        assert_eq!((report.method, report.rejected.len()), (TransferMethod::DirectCopy, 0));
    }

    #[test]
    fn the_cheapest_method_is_taken_on_either_side_of_a_break_point_within_a_size_class() {
        let routes = routes(&[DIRECT, STAGED, PEER], &crossing());
        for (bytes, method) in [
            (1, TransferMethod::DirectCopy),
            (2_999_000, TransferMethod::DirectCopy),
            (3_001_000, TransferMethod::HostStaged),
            (1 << 34, TransferMethod::HostStaged),
        ] {
            let report = report(&routes, bytes, TransferOptions::new()).unwrap();
            assert_eq!((report.method, report.basis), (method, CostBasis::Measured));
            let peer = Rejected { method: TransferMethod::PeerToPeer, reason: RejectReason::NoPeerAccess };
            assert_eq!(report.rejected.as_slice(), [peer]);
        }
    }

    #[test]
    fn what_is_forbidden_falls_through_to_the_next_best_and_is_told_in_order() {
        let routes = routes(&[DIRECT, STAGED, PEER], &crossing());
        let without = TransferOptions::new().forbid(TransferMethod::DirectCopy);
        let report = report(&routes, 5 << 20, without).unwrap();
        assert_eq!((report.method, report.lanes, report.chunks), (TransferMethod::HostStaged, 2, 5));
        let told: Vec<_> =
            report.rejected.iter().map(|rejected| (rejected.method, rejected.reason)).collect();
        assert_eq!(
            told,
            [
                (TransferMethod::DirectCopy, RejectReason::Forbidden),
                (TransferMethod::PeerToPeer, RejectReason::NoPeerAccess)
            ]
        );
    }

    #[test]
    fn a_pinned_method_is_taken_although_another_one_is_cheaper() {
        let routes = routes(&[DIRECT, STAGED], &crossing());
        let pinned = TransferOptions::new().only(TransferMethod::HostStaged);
        assert_eq!(report(&routes, 1, pinned).unwrap().method, TransferMethod::HostStaged);
        let request = Request::new(PATH, 1).unwrap();
        let usual: Vec<_> = routes.predictions(&request, &TransferOptions::new());
        assert!(usual.is_sorted_by_key(|(_, predicted)| *predicted) && usual.len() == 2);
    }

    #[test]
    fn urgent_small_transfer_passes_by_a_queue_that_takes_longer() {
        let micros = Duration::from_micros;
        let costs = [
            (TransferMethod::DirectCopy, CostModel::linear(micros(8), 55e9)),
            (TransferMethod::ZeroCopy, CostModel::linear(micros(12), 51e9)),
        ];
        let direct = Fake(TransferMethod::DirectCopy, Ok(()));
        let mut routes = routes_of(&[Arc::new(direct), Arc::new(InPlace)], &costs);
        let engine = Arc::new(EngineQueue::default());
        for candidate in &mut routes.candidates {
            candidate.engine = (!candidate.method.is_in_place()).then(|| Arc::clone(&engine));
        }
        let high = TransferOptions::new().priority(StreamPriority::High);
        let limit = TransferOptions::SMALL;
        let check = |expected: [TransferMethod; 6], queued: u64| {
            for ((bytes, options), method) in [
                (1, high),
                (limit, high),
                (limit + 1, high),
                (1, TransferOptions::new()),
                (1, high.forbid(TransferMethod::ZeroCopy)),
                (1, high.only(TransferMethod::DirectCopy)),
            ]
            .into_iter()
            .zip(expected)
            {
                let report = report(&routes, bytes, options).unwrap();
                assert_eq!(
                    (report.method, report.basis),
                    (method, CostBasis::Measured),
                    "{bytes} {options:?}"
                );
                let (_, model) = costs.iter().find(|(of, _)| *of == method).unwrap();
                assert_eq!(report.predicted, model.predict(bytes), "the prediction is the method's own");
                let urgent = options.is_urgent(bytes);
                assert_eq!(report.queued, if urgent { queued } else { 0 }, "{bytes} {options:?}");
            }
        };
        let (direct, in_place) = (TransferMethod::DirectCopy, TransferMethod::ZeroCopy);
        check([direct; 6], 0);
        // 64 KiB take 9 µs: longer than no kernel.
        let timeline = Manual::new();
        engine.add(&timeline.fence(1), 64 << 10);
        check([direct; 6], 64 << 10);
        // 1 MiB takes 27 µs: longer than a kernel for 1 byte, not than one for 1 MiB.
        engine.add(&timeline.fence(2), 15 * (64 << 10));
        check([in_place, direct, direct, direct, direct, direct], 1 << 20);
        engine.add(&timeline.fence(3), 1 << 30);
        check([in_place, in_place, direct, direct, direct, direct], (1 << 20) + (1 << 30));
        timeline.reach(3);
        check([direct; 6], 0);
    }

    #[test]
    fn urgent_transfer_of_memory_that_no_device_sees_stays_with_the_engine() {
        let costs = [
            (TransferMethod::DirectCopy, CostModel::linear(Duration::from_micros(8), 55e9)),
            (TransferMethod::ZeroCopy, CostModel::linear(Duration::from_micros(12), 51e9)),
        ];
        let direct = Fake(TransferMethod::DirectCopy, Ok(()));
        let mut routes = routes_of(&[Arc::new(direct), Arc::new(InPlace)], &costs);
        let engine = Arc::new(EngineQueue::default());
        engine.add(&Manual::new().fence(1), 1 << 30);
        routes.candidates[0].engine = Some(engine);
        let high = TransferOptions::new().priority(StreamPriority::High);
        let request = Request { device_visible: false, ..Request::new(PATH, 1).unwrap() };
        let report = reported(&routes, &request, high, 0).unwrap();
        let unseen = Rejected { method: TransferMethod::ZeroCopy, reason: RejectReason::NotMapped };
        assert_eq!((report.method, report.rejected.as_slice()), (TransferMethod::DirectCopy, &[unseen][..]));
    }

    #[test]
    fn of_two_that_cost_the_same_the_first_is_taken_and_an_unknown_cost_loses_to_a_known_one() {
        let same = CostModel::linear(Duration::from_micros(5), 1e9);
        let both = [(TransferMethod::DirectCopy, same.clone()), (TransferMethod::HostStaged, same.clone())];
        let equal = routes(&[DIRECT, STAGED], &both);
        let taken = |routes| report(routes, 4096, TransferOptions::new()).unwrap().method;
        assert_eq!(taken(&equal), TransferMethod::DirectCopy);
        assert_eq!(taken(&routes(&[DIRECT, STAGED], &both[1..])), TransferMethod::HostStaged);
    }
}
