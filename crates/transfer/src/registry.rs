//! Which backends there are, what their paths cost, and the routes found so far.

use std::sync::Arc;

use parking_lot::RwLock;
use transload_core::{
    Backend, CostBasis, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, PathCost, Place, Rejected,
    Result, TransferPath,
};

use crate::{
    costs::CostTable,
    engine_queue::EngineQueues,
    methods::{self, Context, Method},
    planner::PathRoutes,
    row::Rows,
};

/// A backend and the devices that it had when it was registered.
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

/// Reading takes a read lock for a moment; no backend is called under a lock.
pub(crate) struct Registry {
    methods: [Arc<dyn Method>; 5],
    engines: EngineQueues,
    state: RwLock<State>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { methods: methods::all(), engines: EngineQueues::default(), state: RwLock::default() }
    }
}

#[derive(Default)]
struct State {
    backends: Arc<Vec<Registered>>,
    costs: Arc<CostTable>,
    /// Counts changes, so that routes found from older knowledge are not kept.
    generation: u64,
    /// Sorted by path.
    routes: Vec<Arc<PathRoutes>>,
    /// Methods that found out, when they were to be taken, that they cannot be.
    found_out: Arc<Vec<(TransferPath, Rejected)>>,
}

impl State {
    fn changed(&mut self) {
        self.generation += 1;
        self.routes.clear();
    }

    fn position(&self, path: TransferPath) -> Result<usize, usize> {
        self.routes.binary_search_by(|routes| routes.path.cmp(&path))
    }
}

impl Registry {
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where one of its devices is registered already; then nothing is changed.
    pub(crate) fn register(&self, backend: Arc<dyn Backend>) -> Result<()> {
        let devices = backend.devices();
        let costs = backend.default_costs();
        let mut state = self.state.write();
        for device in &devices {
            if let Some(other) = state.backends.iter().find(|other| other.device(device.id).is_some()) {
                let text = format!(
                    "{} of the {} backend is already registered by the {} backend; each device needs a backend of its own",
                    device.id,
                    backend.name(),
                    other.backend.name()
                );
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        Arc::make_mut(&mut state.backends).push(Registered { backend, devices });
        Arc::make_mut(&mut state.costs).set(costs, CostBasis::BuiltIn);
        state.changed();
        Ok(())
    }

    pub(crate) fn set_costs(&self, costs: Vec<PathCost>, basis: CostBasis) {
        let mut state = self.state.write();
        Arc::make_mut(&mut state.costs).set(costs, basis);
        state.changed();
    }

    /// Takes a method out of the routes of a path.
    pub(crate) fn reject(&self, path: TransferPath, rejected: Rejected) {
        let mut state = self.state.write();
        let known = state.found_out.iter().any(|(of, known)| *of == path && known.method == rejected.method);
        if !known {
            Arc::make_mut(&mut state.found_out).push((path, rejected));
        }
        state.changed();
    }

    /// Forgets the copies that are complete, and so what they keep alive.
    pub(crate) fn sweep_engines(&self) {
        self.engines.sweep();
    }

    /// Waits for what the methods do by themselves.
    ///
    /// # Errors
    /// As for [`Method::drain`].
    pub(crate) fn drain_methods(&self) -> Result<()> {
        self.methods.iter().try_for_each(|method| method.drain())
    }

    pub(crate) fn forget_routes(&self) {
        self.state.write().changed();
    }

    pub(crate) fn backends(&self) -> Arc<Vec<Registered>> {
        Arc::clone(&self.state.read().backends)
    }

    /// # Errors
    /// [`ErrorKind::UnknownDevice`], naming the devices that are registered.
    pub(crate) fn backend(&self, device: DeviceId) -> Result<Arc<dyn Backend>> {
        let backends = self.backends();
        known(&backends, device).map(|registered| Arc::clone(&registered.backend))
    }

    /// Fails where nobody can make memory of the place's kind there. A device that lists no kinds says nothing of them.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`].
    pub(crate) fn check_offered(&self, place: Place) -> Result<()> {
        let backends = self.backends();
        let own = known(&backends, place.device)?;
        let of_device = own
            .device(place.device)
            .is_some_and(|device| device.kinds.is_empty() || device.kinds.contains(&place.kind));
        // The host's memory is made by other devices too.
        let of_another = place.device.is_cpu()
            && matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped)
            && devices(&backends).any(|device| device.kinds.contains(&place.kind));
        if of_device || of_another { Ok(()) } else { Err(self.not_offered(place)) }
    }

    /// Nobody makes memory of the place's kind there; says which kinds there are.
    pub(crate) fn not_offered(&self, place: Place) -> Error {
        let backends = self.backends();
        let offered: Vec<_> = devices(&backends)
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

    /// The routes of a path: kept ones, or found now.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`].
    pub(crate) fn routes(&self, path: TransferPath, rows: &Rows) -> Result<Arc<PathRoutes>> {
        loop {
            let (backends, costs, found_out, generation) = {
                let state = self.state.read();
                if let Some(routes) = state.position(path).ok().and_then(|at| state.routes.get(at)) {
                    return Ok(Arc::clone(routes));
                }
                (
                    Arc::clone(&state.backends),
                    Arc::clone(&state.costs),
                    Arc::clone(&state.found_out),
                    state.generation,
                )
            };
            known(&backends, path.src.device)?;
            known(&backends, path.dst.device)?;
            let context = Context { backends: &backends };
            let found =
                PathRoutes::find(&self.methods, &found_out, path, &context, &costs, (rows, &self.engines));
            let found = Arc::new(found);
            let mut state = self.state.write();
            if state.generation != generation {
                continue;
            }
            if let Err(at) = state.position(path) {
                state.routes.insert(at, Arc::clone(&found));
            }
            return Ok(found);
        }
    }
}

fn devices(backends: &[Registered]) -> impl Iterator<Item = &DeviceInfo> {
    backends.iter().flat_map(|registered| &registered.devices)
}

fn known(backends: &[Registered], device: DeviceId) -> Result<&Registered> {
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
