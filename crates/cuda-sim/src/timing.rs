//! Virtual time: the duration of operations on the simulated hardware.

use crate::{
    kernels::occupied_ns,
    memory::{Allocation, Memory},
    op::{Copy, Op, Operand, Work},
    options::SimDeviceBuilder,
};

/// Bandwidth within a device's memory in GB/s.
const LOCAL_GBPS: f64 = 2_000.0;
/// Fraction of the link's speed for pageable memory, which the driver stages.
const PAGEABLE_FRACTION: f64 = 0.3;
/// Duration in nanoseconds of recording an event.
const EVENT_NS: u64 = 500;

/// A hardware engine; processes one operation at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    ToDevice,
    ToHost,
    Peer,
    /// The multiprocessors, for a kernel of fewer blocks than there are.
    SomeMultiprocessors,
    /// All of them: no other kernel runs.
    AllMultiprocessors,
    Compute,
    None,
}

/// Time until which each engine of a device is busy, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Engines {
    to_device: u64,
    to_host: u64,
    peer: u64,
    /// Kernels that occupy all multiprocessors, and others.
    all_multiprocessors: u64,
    some_multiprocessors: u64,
}

impl Engines {
    /// Returns the time from which on all are free.
    pub(crate) fn all_free_at(&self) -> u64 {
        self.to_device
            .max(self.to_host)
            .max(self.peer)
            .max(self.all_multiprocessors)
            .max(self.some_multiprocessors)
    }

    /// Schedules an operation that is ready at `ready`. Returns its end time.
    pub(crate) fn reserve(&mut self, engine: Engine, ready: u64, duration: u64) -> u64 {
        let free_at = match engine {
            Engine::ToDevice => &mut self.to_device,
            Engine::ToHost => &mut self.to_host,
            Engine::Peer => &mut self.peer,
            Engine::AllMultiprocessors => {
                self.all_multiprocessors = self.all_multiprocessors.max(self.some_multiprocessors);
                &mut self.all_multiprocessors
            }
            Engine::SomeMultiprocessors => {
                let end = ready.max(self.all_multiprocessors).saturating_add(duration);
                self.some_multiprocessors = self.some_multiprocessors.max(end);
                return end;
            }
            Engine::Compute | Engine::None => return ready.saturating_add(duration),
        };
        *free_at = ready.max(*free_at).saturating_add(duration);
        *free_at
    }
}

/// Returns the engine an operation uses and its duration in nanoseconds.
pub(crate) fn cost(
    op: &Op,
    device: &SimDeviceBuilder,
    memory: &Memory,
    peers_enabled: bool,
) -> (Engine, u64) {
    let time = |bytes: usize, gbps: f64| (bytes as f64 / gbps.max(1e-6)) as u64;
    match &op.work {
        Work::Copies(copies) => {
            let mut engine = Engine::Compute;
            let mut total = device.latency_ns;
            if copies.len() > 1 {
                total = total.saturating_add(device.batch_piece_ns.saturating_mul(copies.len() as u64));
            }
            for copy in copies {
                let (served, gbps) = link(copy, device, memory, peers_enabled);
                engine = served;
                total = total.saturating_add(time(copy.bytes(), gbps));
            }
            (engine, total)
        }
        Work::Fill(fill) => (Engine::Compute, 2_000 + time(fill.width * fill.element, LOCAL_GBPS)),
        Work::Kernel(run) => {
            let begin = if run.is_early { 0 } else { 3_000 };
            let mut total = occupied_ns(&run.host_kernel, &run.launch).saturating_add(begin);
            for access in run.accesses(memory) {
                let local = memory.find(access.address).is_some_and(Allocation::is_device);
                let host = device.kernel_host_gbps.unwrap_or(device.host_gbps);
                let gbps = if local { LOCAL_GBPS } else { host };
                total = total.saturating_add(time(access.bytes, gbps));
            }
            let (x, y, z) = run.launch.grid;
            let blocks = u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z));
            match blocks < u64::try_from(device.multiprocessors).unwrap_or(0) {
                true => (Engine::SomeMultiprocessors, total),
                false => (Engine::AllMultiprocessors, total),
            }
        }
        Work::Prefetch { bytes, to, .. } => {
            let host = *to == crate::Residency::Host;
            let engine = if host { Engine::ToHost } else { Engine::ToDevice };
            (engine, device.latency_ns + time(*bytes, device.host_gbps))
        }
        Work::Allocate { .. } | Work::Free { .. } => (Engine::None, 1_000),
        Work::Wait | Work::Host(_) | Work::Word { .. } | Work::WriteWord { .. } => (Engine::None, 0),
        Work::Record { .. } => (Engine::None, EVENT_NS),
    }
}

/// Returns how many nanoseconds after an event an operation begins: if CUPTI records it, as many as another event takes, as on an H200.
pub(crate) fn after_event(op: &Op) -> u64 {
    match &op.work {
        Work::Copies(_) | Work::Fill(_) | Work::Kernel(_) if op.call != 0 => EVENT_NS,
        _ => 0,
    }
}

fn link(copy: &Copy, device: &SimDeviceBuilder, memory: &Memory, peers_enabled: bool) -> (Engine, f64) {
    let on = |place: &Operand| match place {
        Operand::Address(address) => {
            memory.find(*address).filter(|found| found.is_device()).map(|found| found.device)
        }
        Operand::Pageable(_) | Operand::Staged(_) => None,
    };
    let pageable = |place: &Operand| !matches!(place, Operand::Address(_));
    match (on(&copy.from), on(&copy.to)) {
        (Some(from), Some(to)) if from == to => (Engine::Compute, LOCAL_GBPS),
        (Some(_), Some(_)) if peers_enabled => (Engine::Peer, device.peer_gbps),
        // Through the host: both links in sequence.
        (Some(_), Some(_)) => (Engine::Peer, device.host_gbps / 2.0),
        (None, Some(_)) => {
            (Engine::ToDevice, device.host_gbps * if pageable(&copy.from) { PAGEABLE_FRACTION } else { 1.0 })
        }
        (Some(_), None) => {
            (Engine::ToHost, device.host_gbps * if pageable(&copy.to) { PAGEABLE_FRACTION } else { 1.0 })
        }
        (None, None) => (Engine::None, 10.0),
    }
}
