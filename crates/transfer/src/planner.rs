//! The one place where a method is chosen: plans and transfers both ask here.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::{
    CostBasis, Error, ErrorKind, Fence, RejectReason, Rejected, Rejections, Result, TransferPath,
    TransferReport,
};

use crate::{
    TransferOptions,
    costs::{Cost, CostTable},
    engine_queue::{EngineQueue, EngineQueues},
    lost::LostDevices,
    methods::{Context, Method, Route},
    request::Request,
    row::{Row, Rows},
};

/// What is known of a path before anyone asks: the methods that apply, with their routes and costs, and those that do
/// not. Kept until a backend is registered or costs change.
pub(crate) struct PathRoutes {
    pub(crate) path: TransferPath,
    candidates: SmallVec<[Candidate; 5]>,
    rejected: Rejections,
}

/// A method that applies to a path.
pub(crate) struct Candidate {
    pub(crate) method: Arc<dyn Method>,
    pub(crate) route: Route,
    pub(crate) row: Arc<Row>,
    cost: Cost,
    in_place: bool,
    /// The copy engine's queue that its transfers stand in.
    pub(crate) engine: Option<Arc<EngineQueue>>,
}

/// What will be done for a request.
pub(crate) struct Choice<'a> {
    pub(crate) candidate: &'a Candidate,
    /// Its place among the path's candidates.
    pub(crate) index: usize,
    request: &'a Request,
    predicted: Duration,
    /// See [`TransferReport::queued`].
    queued: u64,
    rejected: Rejections,
}

impl PathRoutes {
    /// Asks every method, but for those that found out earlier that they cannot be taken on the path.
    pub(crate) fn find(
        methods: &[Arc<dyn Method>],
        found_out: &[(TransferPath, Rejected)],
        path: TransferPath,
        context: &Context<'_>,
        costs: &CostTable,
        (rows, engines): (&Rows, &EngineQueues),
    ) -> Self {
        let mut routes = Self { path, candidates: SmallVec::new(), rejected: Rejections::new() };
        for method in methods {
            let known = found_out.iter().find(|(of, known)| *of == path && known.method == method.method());
            let applicable = match known {
                Some((_, known)) => Err(known.reason),
                None => method.applicable(path, context),
            };
            match applicable {
                Ok(route) => {
                    let row = rows.row(path, method.method());
                    let cost = costs.get(path, method.method());
                    let engine = engines.of(path, route.lane).filter(|_| method.queued(u64::MAX) > 0);
                    let (method, in_place) = (Arc::clone(method), method.is_in_place());
                    routes.candidates.push(Candidate { method, route, row, cost, in_place, engine });
                }
                Err(reason) => routes.rejected.push(Rejected { method: method.method(), reason }),
            }
        }
        routes
    }

    /// The cheapest method that applies and is allowed. For a small transfer of high priority it is the cheapest in place
    /// instead, if what this manager has queued before the copy engine takes longer (see [`TransferOptions::priority`]).
    /// Every request asks the cost curves themselves, whose points are the break points; nothing is remembered per size class.
    /// Methods that declined this very request are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where no method is left, with the reason of each; [`ErrorKind::DeviceLost`].
    pub(crate) fn choose<'a>(
        &'a self,
        request: &'a Request,
        options: &TransferOptions,
        lost: &LostDevices,
        declined: &[Rejected],
    ) -> Result<Choice<'a>> {
        let mut choice = self.choose_among(request, options, lost, declined, |_| Ok(()))?;
        if let Some(engine) = &choice.candidate.engine
            && options.is_urgent(request.bytes)
        {
            choice.queued = engine.queued();
            if choice.queued > 0 {
                self.pass_by_engine(&mut choice, options);
            }
        }
        Ok(choice)
    }

    /// Takes the cheapest method in place if the engine's queue takes longer.
    #[cold]
    fn pass_by_engine<'a>(&'a self, choice: &mut Choice<'a>, options: &TransferOptions) {
        let bytes = choice.request.bytes;
        let fits = |candidate: &Candidate| {
            let method = candidate.method.method();
            let rejected = choice.rejected.iter().any(|rejected| rejected.method == method);
            candidate.in_place && options.allows(method) && !rejected
        };
        let in_place = self.candidates.iter().enumerate().filter(|(_, candidate)| fits(candidate));
        let cheapest = in_place.min_by_key(|(_, candidate)| candidate.predict(bytes));
        let Some((index, candidate)) = cheapest else { return };
        let predicted = candidate.predict(bytes);
        if choice.candidate.predict(choice.queued) > predicted
            && !transload_core::mutant!("transfer/urgent-waits-for-engine")
        {
            (choice.index, choice.candidate, choice.predicted) = (index, candidate, predicted);
        }
    }

    /// The cheapest of the candidates that `fits` does not reject, whatever is queued.
    ///
    /// # Errors
    /// As for `choose`.
    #[inline]
    pub(crate) fn choose_among<'a>(
        &'a self,
        request: &'a Request,
        options: &TransferOptions,
        lost: &LostDevices,
        declined: &[Rejected],
        fits: impl Fn(&Candidate) -> Result<(), RejectReason>,
    ) -> Result<Choice<'a>> {
        // A plain copy: `clone` would go element by element.
        let mut rejected = Rejections::from_slice(&self.rejected);
        let mut best: Option<(usize, &Candidate, Duration)> = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            let method = candidate.method.method();
            if let Some(declined) = declined.iter().find(|declined| declined.method == method) {
                rejected.push(*declined);
                continue;
            }
            if !options.allows(method) {
                rejected.push(Rejected { method, reason: RejectReason::Forbidden });
                continue;
            }
            if candidate.in_place
                && !request.device_visible
                && !transload_core::mutant!("transfer/in-place-of-memory-unseen")
            {
                rejected.push(Rejected { method, reason: RejectReason::NotMapped });
                continue;
            }
            if let Err(reason) = fits(candidate) {
                rejected.push(Rejected { method, reason });
                continue;
            }
            let predicted = candidate.predict(request.bytes);
            if best.is_none_or(|(.., least)| predicted < least) {
                best = Some((index, candidate, predicted));
            }
        }
        if rejected.len() > self.rejected.len() {
            rejected.sort_unstable_by_key(|rejected| rejected.method);
        }
        let Some((index, candidate, predicted)) = best else {
            return Err(none_left(self.path, &rejected));
        };
        lost.check([self.path.src.device, self.path.dst.device, candidate.route.lane])?;
        Ok(Choice { candidate, index, request, predicted, queued: 0, rejected })
    }

    pub(crate) fn candidate(&self, index: usize) -> Option<&Candidate> {
        self.candidates.get(index)
    }

    /// The methods that apply.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter()
    }

    /// What the allowed methods would take, cheapest first.
    pub(crate) fn predictions(
        &self,
        request: &Request,
        options: &TransferOptions,
    ) -> Vec<(&Candidate, Duration)> {
        let mut all: Vec<_> = self
            .candidates
            .iter()
            .filter(|candidate| options.allows(candidate.method.method()))
            .map(|candidate| (candidate, candidate.predict(request.bytes)))
            .collect();
        all.sort_by_key(|(_, predicted)| *predicted);
        all
    }
}

impl Candidate {
    pub(crate) fn basis(&self) -> CostBasis {
        self.cost.basis
    }

    fn predict(&self, bytes: u64) -> Duration {
        self.cost.model.predict(bytes)
    }

    /// Counts a transfer of `bytes` that was submitted as queued before the copy engine, until its fence is reached.
    pub(crate) fn queue(&self, fence: &Fence, bytes: u64) {
        if let Some(engine) = &self.engine
            && !transload_core::mutant!("transfer/engine-queue-counts-nothing")
        {
            engine.add(fence, self.method.queued(bytes));
        }
    }
}

impl Choice<'_> {
    /// The report of a transfer that is done so, before it is submitted.
    pub(crate) fn into_report(self) -> TransferReport {
        let Candidate { method, route, cost, .. } = self.candidate;
        let Request { path, bytes, .. } = *self.request;
        let mut report = TransferReport::planned(path, method.method(), route.lane, bytes);
        report.lanes = route.lanes;
        report.chunks = method.chunks(route, self.request);
        report.predicted = self.predicted;
        report.queued = self.queued;
        report.basis = cost.basis;
        report.rejected = self.rejected;
        report.simulated = route.simulated;
        report
    }
}

fn none_left(path: TransferPath, rejected: &Rejections) -> Error {
    let reasons: Vec<_> = rejected.iter().map(ToString::to_string).collect();
    Error::new(ErrorKind::Unsupported, format!("no method is left for {path}: {}", reasons.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use transload_backend_cpu::CpuBackend;
    use transload_core::{
        Backend, CostModel, DeviceId, Fence, MemoryKind, PathCost, Place, StreamPriority, TransferMethod,
        Unsubmitted,
    };

    use super::*;
    use crate::{engine_queue::tests::Manual, methods::Job, registry::Registered, row::Watch};

    /// A method that applies where it is told to.
    struct Fake(TransferMethod, Result<(), RejectReason>);

    impl Method for Fake {
        fn method(&self) -> TransferMethod {
            self.0
        }

        fn applicable(&self, _: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason> {
            let backend = Arc::clone(&context.backends[0].backend);
            self.1.map(|()| Route { backend, lane: DeviceId::Cpu, lanes: 2, simulated: false, second: None })
        }

        fn chunks(&self, _: &Route, request: &Request) -> u32 {
            request.bytes.div_ceil(1 << 20) as u32
        }

        fn submit(&self, _: &Route, _: &Job<'_>) -> Result<Fence, Unsubmitted> {
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

        fn submit(&self, route: &Route, job: &Job<'_>) -> Result<Fence, Unsubmitted> {
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
        let rows = Rows::new(Arc::new(Watch::default()));
        PathRoutes::find(
            methods,
            &[],
            PATH,
            &Context { backends: &backends },
            &table,
            (&rows, &EngineQueues::default()),
        )
    }

    fn report(routes: &PathRoutes, bytes: u64, options: TransferOptions) -> Result<TransferReport> {
        let request = Request::new(PATH, bytes)?;
        Ok(routes.choose(&request, &options, &LostDevices::default(), &[])?.into_report())
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
        let choose = |declined| {
            routes.choose(&request, &TransferOptions::new(), &LostDevices::default(), declined).unwrap()
        };
        let report = choose(&declined).into_report();
        assert_eq!((report.method, &report.rejected[..]), (TransferMethod::HostStaged, &declined[..]));
        let report = choose(&[]).into_report();
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
            candidate.engine = (!candidate.in_place).then(|| Arc::clone(&engine));
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
        let report = routes.choose(&request, &high, &LostDevices::default(), &[]).unwrap().into_report();
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
