//! The registered backends, the costs of paths, and the cached routes.

use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use transload_core::{
    Backend, CostBasis, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, PathCost, Place, Rejected,
    Result, SpinLock, SpinLockGuard, TransferMethod, TransferPath,
};

use transload_executor::{SHARDS, thread_shard};

use crate::{
    context::ManagerContext,
    methods::{Declined, Method, Topology},
    planning::{
        candidate::{Candidate, bit},
        engine_queue::{EngineQueue, EngineQueues},
        planner::PathRoutes,
    },
    report_events,
    staging::StagingRings,
    stats::path_stats::StatsTable,
};

/// A backend, and its devices at registration.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) devices: Vec<DeviceInfo>,
}

impl Registered {
    pub(crate) fn device(&self, id: DeviceId) -> Option<&DeviceInfo> {
        self.devices.iter().find(|device| device.id == id)
    }
}

/// Routes are cached in per-thread shards, so that concurrent threads write no common cache line. No backend is called
/// under a lock that another thread waits for.
pub(crate) struct Registry {
    methods: [Arc<dyn Method>; 5],
    pub(crate) rings: Arc<StagingRings>,
    engines: EngineQueues,
    pub(crate) stats: StatsTable,
    context: Arc<ManagerContext>,
    backends: Backends,
    /// Methods that were rejected permanently while being prepared. A change makes cached routes obsolete, like one of costs.
    unusable: RwLock<Arc<Vec<(TransferPath, Rejected)>>>,
    kept: Box<[RouteCacheShard]>,
}

/// One shard, locked while a transfer is submitted, by `try_lock` only.
#[derive(Default)]
#[repr(align(128))]
struct RouteCacheShard(SpinLock<RouteCache>);

#[derive(Default)]
pub(crate) struct RouteCache {
    generation: u64,
    /// Sorted by path.
    routes: Vec<PathRoutes>,
    /// Index of the latest request's path.
    latest: usize,
}

/// Exclusive access to a route cache.
pub(crate) enum RouteCacheGuard<'a> {
    Shared(SpinLockGuard<'a, RouteCache>),
    /// A temporary one, if all shards are locked.
    Own(Box<RouteCache>),
}

impl RouteCacheGuard<'_> {
    /// Returns the routes of a path, from the cache or found now.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`].
    #[inline(always)]
    pub(crate) fn routes(&mut self, registry: &Registry, path: &TransferPath) -> Result<&mut PathRoutes> {
        let kept = match self {
            Self::Shared(kept) => &mut **kept,
            Self::Own(kept) => kept,
        };
        // Read first: routes found below are at least as new, and at worst are found again next time.
        let generation = registry.context.costs.changes();
        if kept.generation != generation {
            kept.routes.clear();
            kept.generation = generation;
        }
        if kept.routes.get(kept.latest).is_none_or(|routes| routes.path != *path) {
            kept.select(registry, path)?;
        }
        Ok(&mut kept.routes[kept.latest])
    }

    /// Returns the copies the other way, if the path's routes are found and a kernel can copy lists along it.
    pub(crate) fn opposite(&mut self, registry: &Registry, path: &TransferPath) -> Option<&EngineQueue> {
        self.routes(registry, path).ok()?.opposite.as_deref()
    }
}

impl RouteCache {
    /// Makes the routes of a path the latest.
    #[cold]
    fn select(&mut self, registry: &Registry, path: &TransferPath) -> Result<()> {
        self.latest = match self.routes.binary_search_by(|routes| routes.path.cmp(path)) {
            Ok(at) => at,
            Err(at) => {
                self.routes.insert(at, registry.find(*path)?);
                at
            }
        };
        Ok(())
    }
}

/// An append-only list of backends: each registration adds a longer list. Lists live as long as the registry, so
/// readers need neither a lock nor a shared reference count.
#[derive(Default)]
struct Backends {
    list: Vec<Registered>,
    next: OnceLock<Box<Self>>,
}

impl Backends {
    fn latest(&self) -> &Self {
        let mut latest = self;
        while let Some(next) = latest.next.get() {
            latest = next;
        }
        latest
    }

    /// Appends a backend. The caller is the only one that does.
    fn add(&self, registered: Registered) {
        let latest = self.latest();
        let list = latest.list.iter().cloned().chain([registered]).collect();
        latest.next.get_or_init(|| Box::new(Self { list, next: OnceLock::new() }));
    }
}

impl Registry {
    pub(crate) fn new(
        context: Arc<ManagerContext>,
        methods: [Arc<dyn Method>; 5],
        rings: Arc<StagingRings>,
    ) -> Self {
        Self {
            methods,
            rings,
            engines: EngineQueues::default(),
            stats: StatsTable::default(),
            context,
            backends: Backends::default(),
            unusable: RwLock::default(),
            kept: (0..SHARDS).map(|_| RouteCacheShard::default()).collect(),
        }
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if one of its devices is already registered; nothing changes then.
    pub(crate) fn register(&self, backend: Arc<dyn Backend>) -> Result<()> {
        let devices = backend.devices();
        let (costs, lists) = (backend.default_costs(), backend.default_list_costs());
        let _one_at_a_time = self.unusable.write();
        for device in &devices {
            if let Some(other) = self.backends().iter().find(|other| other.device(device.id).is_some()) {
                let text = format!(
                    "{} of the {} backend is already registered by the {} backend; each device needs a backend of its own",
                    device.id,
                    backend.name(),
                    other.backend.name()
                );
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        if devices.iter().any(|device| device.id.is_cpu()) {
            self.rings.set_host(&backend);
        }
        self.backends.add(Registered { backend, devices });
        self.context.costs.set(costs, CostBasis::BuiltIn);
        self.context.costs.set_lists(lists, CostBasis::BuiltIn);
        Ok(())
    }

    pub(crate) fn set_costs(&self, costs: Vec<PathCost>, basis: CostBasis) {
        self.context.costs.set(costs, basis);
    }

    pub(crate) fn costs(&self) -> Vec<(PathCost, CostBasis)> {
        self.context.costs.table().list()
    }

    /// Has a method prepare its path, and removes it from the routes if it is rejected permanently.
    ///
    /// # Errors
    /// The method's bit, if it cannot be used now.
    #[inline]
    pub(crate) fn prepare(&self, path: &TransferPath, candidate: &Candidate) -> Result<(), u8> {
        candidate.prepare(path).map_err(|declined| self.decline(*path, candidate.method(), declined))
    }

    #[cold]
    fn decline(&self, path: TransferPath, method: TransferMethod, declined: Declined) -> u8 {
        if let Declined::Permanently(reason) = declined {
            self.reject(path, Rejected { method, reason });
        }
        bit(method)
    }

    fn reject(&self, path: TransferPath, rejected: Rejected) {
        let mut unusable = self.unusable.write();
        let known = unusable.iter().any(|(of, known)| *of == path && known.method == rejected.method);
        if !known {
            Arc::make_mut(&mut unusable).push((path, rejected));
        }
        drop(unusable);
        self.context.costs.changed();
        if !known {
            report_events::rejected(path, rejected);
        }
    }

    /// Waits for the methods' own tasks.
    ///
    /// # Errors
    /// Those of [`Method::drain`].
    pub(crate) fn drain_methods(&self) -> Result<()> {
        self.methods.iter().try_for_each(|method| method.drain())
    }

    /// Drains all backends, also after an error, and again while memory is pending free: an owner that one drops may have kept memory
    /// of another.
    ///
    /// # Errors
    /// The first error of a backend.
    pub(crate) fn drain_backends(&self) -> Result<()> {
        /// Bounded, since other threads may go on dropping memory.
        const PASSES: usize = 8;
        let (backends, mut outcome) = (self.backends(), Ok(()));
        for _ in 0..PASSES {
            for registered in backends {
                outcome = outcome.and(registered.backend.drain());
            }
            // Fences of copies that the backends waited for keep the owners of adopted streams, which the next pass drops.
            if !transload_core::mutant!("transfer/drain-releases-fences") {
                self.engines.sweep();
            }
            let is_pending = |one: &Registered| one.backend.resource_counts().pending_free > 0;
            if outcome.is_err()
                || !backends.iter().any(is_pending)
                || transload_core::mutant!("transfer/drain-repeats")
            {
                break;
            }
        }
        outcome
    }

    pub(crate) fn forget_routes(&self) {
        self.context.costs.changed();
    }

    /// Returns all backends registered so far. Takes no lock.
    pub(crate) fn backends(&self) -> &[Registered] {
        &self.backends.latest().list
    }

    /// # Errors
    /// [`ErrorKind::UnknownDevice`], naming the devices that are registered.
    pub(crate) fn backend(&self, device: DeviceId) -> Result<&Arc<dyn Backend>> {
        find_registered(self.backends(), device).map(|registered| &registered.backend)
    }

    /// Checks that a device offers memory of the place's kind, and so many bytes in one allocation. A device that lists no kinds
    /// passes.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfRange`].
    pub(crate) fn check_offered(&self, place: Place, bytes: u64) -> Result<()> {
        let backends = self.backends();
        let own = find_registered(backends, place.device)?.device(place.device);
        own.map_or(Ok(()), |device| device.check_allocation(bytes))?;
        let has_kind = |device: &DeviceInfo| device.kinds.contains(&place.kind);
        // Other devices allocate it, but it is the host's.
        let is_hosts = matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
        if is_hosts && !place.device.is_cpu() {
            let host = Place { device: DeviceId::Cpu, ..place };
            let text = format!(
                "no buffer is in {place}: {} memory is the host's, whichever device allocates it; plan for {host}",
                place.kind
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let of_device = own.is_some_and(|device| device.kinds.is_empty() || has_kind(device));
        let of_another = is_hosts && devices(backends).any(has_kind);
        if of_device || of_another { Ok(()) } else { Err(self.not_offered(place)) }
    }

    /// Returns the error for memory that no device offers, naming the kinds that are offered.
    pub(crate) fn not_offered(&self, place: Place) -> Error {
        let backends = self.backends();
        let offered: Vec<_> = devices(backends)
            .map(|device| {
                let kinds: Vec<_> = device.kinds.iter().map(ToString::to_string).collect();
                format!("{} ({})", device.id, kinds.join(", "))
            })
            .collect();
        let offered =
            if offered.is_empty() { "nothing; call register_backend".to_owned() } else { offered.join(", ") };
        let text = format!(
            "no registered device offers {} memory for {}; registered: {offered}",
            place.kind, place.device
        );
        Error::new(ErrorKind::Unsupported, text)
    }

    /// Locks the calling thread's shard, or another one if it is locked.
    #[inline]
    pub(crate) fn route_cache(&self) -> RouteCacheGuard<'_> {
        let own = self.kept.get(thread_shard()).and_then(|RouteCacheShard(kept)| kept.try_lock());
        own.map_or_else(|| self.other_route_cache(), RouteCacheGuard::Shared)
    }

    #[cold]
    fn other_route_cache(&self) -> RouteCacheGuard<'_> {
        let (before, from) = self.kept.split_at(thread_shard().min(self.kept.len()));
        let free = from.iter().chain(before).find_map(|RouteCacheShard(kept)| kept.try_lock());
        free.map_or_else(|| RouteCacheGuard::Own(Box::default()), RouteCacheGuard::Shared)
    }

    fn find(&self, path: TransferPath) -> Result<PathRoutes> {
        let (costs, unusable) = (self.context.costs.table(), Arc::clone(&self.unusable.read()));
        let backends = self.backends();
        find_registered(backends, path.src.device)?;
        find_registered(backends, path.dst.device)?;
        let parts = (&self.stats, &self.engines, &self.context);
        Ok(PathRoutes::find(&self.methods, &unusable, path, &Topology { backends }, &costs, parts))
    }
}

fn devices(backends: &[Registered]) -> impl Iterator<Item = &DeviceInfo> {
    backends.iter().flat_map(|registered| &registered.devices)
}

fn find_registered(backends: &[Registered], device: DeviceId) -> Result<&Registered> {
    backends.iter().find(|registered| registered.device(device).is_some()).ok_or_else(|| {
        let known: Vec<_> = backends
            .iter()
            .flat_map(|registered| &registered.devices)
            .map(|device| device.id.to_string())
            .collect();
        let known =
            if known.is_empty() { "nothing; call register_backend".to_owned() } else { known.join(", ") };
        Error::new(ErrorKind::UnknownDevice, format!("{device} is not registered; registered: {known}"))
    })
}
