//! Copies between two devices without the host. Each pair is first enabled both ways and verified.

use std::time::Instant;

use dashmap::DashMap;
use transload_core::{
    Backend, DeviceId, Error, MemoryKind, Operation, RejectReason, Result, Retry, TransferMethod,
    TransferPath, WorkloadType,
};

use super::{
    Declined, Method, Route, SingleOperation, Submitted, Topology, TransferRequest,
    device_scratch::has_kernel, peer_check,
};
use crate::{attempt::NotSubmitted, built_in::ENGINE_ROW, report_events};

/// Most transfers in a row that skip a pair whose verification failed temporarily.
const MAX_SKIPS: u32 = 1023;

/// Each pair is verified once for the life of the manager. After a temporary error, such as a shortage of memory, a
/// later transfer tries again.
#[derive(Debug, Default)]
pub(super) struct PeerToPeer {
    verdicts: DashMap<Pair, Verdict>,
    /// Pairs whose verification failed temporarily.
    backoffs: DashMap<Pair, RetryBackoff>,
}

/// Exponential backoff, in transfers, of a pair: 2n + 1 after each further failure.
#[derive(Clone, Copy, Debug, Default)]
struct RetryBackoff {
    left: u32,
    last: u32,
}

/// Two devices in ascending order.
type Pair = (DeviceId, DeviceId);
type Verdict = Result<(), RejectReason>;

fn pair(a: DeviceId, b: DeviceId) -> Pair {
    if a <= b { (a, b) } else { (b, a) }
}

impl PeerToPeer {
    fn known(&self, pair: Pair) -> Option<Verdict> {
        self.verdicts.get(&pair).map(|verdict| *verdict)
    }

    /// Stores a verdict, and returns the one that counts: a failed verification overrides a passed one.
    fn keep(&self, pair: Pair, verdict: Verdict) -> Verdict {
        let mut kept = self.verdicts.entry(pair).or_insert(verdict);
        *kept = kept.and(verdict);
        *kept
    }

    /// Returns whether this transfer skips the pair, and counts it.
    fn try_skip(&self, pair: Pair) -> bool {
        let Some(mut backoff) = self.backoffs.get_mut(&pair) else { return false };
        let skips = backoff.left > 0;
        backoff.left -= u32::from(skips);
        skips
    }

    /// Returns the number of transfers that skip the pair from now on. After the first failure the next one tries again.
    fn back_off(&self, pair: Pair) -> u32 {
        let lengthen = |backoff: &mut RetryBackoff| {
            let longer = (backoff.last * 2 + 1).min(MAX_SKIPS);
            *backoff = RetryBackoff { left: longer, last: longer };
        };
        self.backoffs.entry(pair).and_modify(lengthen).or_default().left
    }
}

impl Method for PeerToPeer {
    fn method(&self) -> TransferMethod {
        TransferMethod::PeerToPeer
    }

    /// The source's device copies: writing to a peer is as fast as reading from one.
    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        match (src.is_cpu(), dst.is_cpu()) {
            (true, true) => return Err(RejectReason::NoDevice),
            (true, false) | (false, true) => return Err(RejectReason::HostSide),
            (false, false) if src == dst => return Err(RejectReason::SameDevice),
            (false, false) => {}
        }
        if !topology.are_peers(src, dst) {
            return Err(RejectReason::NoPeerAccess);
        }
        if [path.src, path.dst].iter().any(|place| place.kind != MemoryKind::Device) {
            return Err(RejectReason::NotDeviceMemory);
        }
        // A pair that failed in either direction is not used.
        self.known(pair(src, dst)).unwrap_or(Ok(()))?;
        let mut route = topology.route(src).ok_or(RejectReason::NoQueue)?;
        // Its queues may also copy by a kernel that accesses the peer's memory.
        route.has_kernel = has_kernel(&*route.backend, src);
        Ok(route)
    }

    /// Enables and verifies the pair at its first transfer, which blocks meanwhile. Holds no lock, so two threads may
    /// both do it, with the same result.
    fn prepare(&self, path: &TransferPath, route: &Route) -> Result<(), Declined> {
        let pair = pair(path.src.device, path.dst.device);
        if let Some(verdict) = self.known(pair) {
            return verdict.map_err(Declined::Permanently);
        }
        if self.try_skip(pair) {
            return Err(Declined::ThisTime);
        }
        let begun = Instant::now();
        let verdict = match enable_and_verify(&*route.backend, pair) {
            Ok(()) => Ok(()),
            Err(Unverified { error: Some(error), .. }) if error.retry() != Retry::Never => {
                report_events::peer_retry(pair, self.back_off(pair), &error);
                return Err(Declined::ThisTime);
            }
            Err(Unverified { reason, error }) => {
                report_events::peer_rejected(pair, reason, error.as_ref());
                Err(reason)
            }
        };
        report_events::first_use("verification of peer copies", pair.0, begun.elapsed());
        self.keep(pair, verdict).map_err(Declined::Permanently)
    }

    fn single_operation(&self, _: TransferPath) -> Option<SingleOperation> {
        Some(|src, dst| Operation::CopyPeer { src, dst })
    }

    /// One operation for any size: chunks would only lower the rate. By a copy engine, also if it is urgent: what engines between peers have to do is not counted.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted> {
        if let Some(rows) = request.rows() {
            // A kernel waits for those that run, but a copy engine takes microseconds for each row.
            let request =
                TransferRequest { by_kernel: route.has_kernel && rows.width() < ENGINE_ROW, ..*request };
            return self.submit_many(route, &request, &rows.pairs(request.src, request.dst)?);
        }
        let queue = request.queue(&*route.backend, route.lane, WorkloadType::Memory)?;
        request.enqueue(&*queue, &Operation::CopyPeer { src: request.src, dst: request.dst }, request.timing)
    }

    fn takes_many(&self, _: &TransferPath) -> bool {
        true
    }
}

/// Why a pair is not verified.
struct Unverified {
    reason: RejectReason,
    /// `None` if the calls succeeded and the bytes were wrong.
    error: Option<Error>,
}

fn enable_and_verify(backend: &dyn Backend, (a, b): Pair) -> Result<(), Unverified> {
    let failed = |reason| move |error| Unverified { reason, error: Some(error) };
    for (device, peer) in [(a, b), (b, a)] {
        backend.enable_peer_access(device, peer).map_err(failed(RejectReason::NoPeerAccess))?;
    }
    match peer_check::verify_copies(backend, a, b).map_err(failed(RejectReason::PeerUnverified))? {
        true => Ok(()),
        false => Err(Unverified { reason: RejectReason::PeerCorrupts, error: None }),
    }
}
