//! Between two devices without the host, once the pair was enabled both ways and verified by bytes.

use parking_lot::{Mutex, RwLock};
use transload_core::{
    Backend, DeviceId, Error, MemoryKind, Operation, RejectReason, Result, Retry, TransferMethod,
    TransferPath, TrySubmitError,
};

use super::{Declined, Method, Route, SingleOperation, Submitted, Topology, TransferRequest, peer_check};

/// Of this many transfers at least one tries a pair again that could not be found out about.
const MAX_SKIPS: u32 = 1023;

/// Which pairs can be trusted is found out once each, and kept for the life of the manager. Where the error that kept
/// from it may pass, such as a want of memory, it is tried again by a later transfer.
#[derive(Debug, Default)]
pub(super) struct PeerToPeer {
    verdicts: RwLock<Vec<(Pair, Verdict)>>,
    /// Pairs that could not be found out about, so far.
    backoffs: Mutex<Vec<(Pair, RetryBackoff)>>,
}

/// How many transfers are still to pass a pair over. Twice as many and one more after each further failure: where memory
/// stays short, trying would cost each transfer more than it could gain.
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
        self.verdicts.read().iter().find(|(of, _)| *of == pair).map(|(_, verdict)| *verdict)
    }

    /// Keeps a verdict, and answers the one that counts: a failed verification beats a passed one.
    fn keep(&self, pair: Pair, verdict: Verdict) -> Verdict {
        let mut verdicts = self.verdicts.write();
        match verdicts.iter_mut().find(|(of, _)| *of == pair) {
            Some((_, kept)) => {
                *kept = kept.and(verdict);
                *kept
            }
            None => {
                verdicts.push((pair, verdict));
                verdict
            }
        }
    }

    /// Whether a transfer passes the pair over, since trying has failed before.
    fn try_skip(&self, pair: Pair) -> bool {
        let mut backoffs = self.backoffs.lock();
        match backoffs.iter_mut().find(|(of, _)| *of == pair) {
            Some((_, backoff)) if backoff.left > 0 => {
                backoff.left -= 1;
                true
            }
            _ => false,
        }
    }

    fn back_off(&self, pair: Pair) {
        let mut backoffs = self.backoffs.lock();
        match backoffs.iter_mut().find(|(of, _)| *of == pair) {
            Some((_, backoff)) => {
                let longer = (backoff.last * 2 + 1).min(MAX_SKIPS);
                *backoff = RetryBackoff { left: longer, last: longer };
            }
            // The next transfer tries at once.
            None => backoffs.push((pair, RetryBackoff::default())),
        }
    }
}

impl Method for PeerToPeer {
    fn method(&self) -> TransferMethod {
        TransferMethod::PeerToPeer
    }

    /// The source's device does the copying: writing to a peer is as fast as reading from one.
    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        let relayed = |device| match topology.has_peer(device) {
            true => RejectReason::NoRelays,
            false => RejectReason::NoPeerAccess,
        };
        match (src.is_cpu(), dst.is_cpu()) {
            (true, true) => return Err(RejectReason::NoDevice),
            (true, false) => return Err(relayed(dst)),
            (false, true) => return Err(relayed(src)),
            (false, false) if src == dst => return Err(RejectReason::SameDevice),
            (false, false) => {}
        }
        if !topology.are_peers(src, dst) {
            return Err(RejectReason::NoPeerAccess);
        }
        if [path.src, path.dst].iter().any(|place| place.kind != MemoryKind::Device) {
            return Err(RejectReason::NotDeviceMemory);
        }
        // A pair that failed on the way there is not taken on the way back.
        self.known(pair(src, dst)).unwrap_or(Ok(()))?;
        topology.route(src).ok_or(RejectReason::NoQueue)
    }

    /// Enables and verifies the pair at its first transfer, which that one waits for. Two threads that are first at once
    /// both do it, to the same end: no lock is held meanwhile.
    fn prepare(&self, path: TransferPath, route: &Route) -> Result<(), Declined> {
        let pair = pair(path.src.device, path.dst.device);
        if let Some(verdict) = self.known(pair) {
            return verdict.map_err(Declined::Permanently);
        }
        if self.try_skip(pair) {
            return Err(Declined::ThisTime);
        }
        match enable_and_verify(&*route.backend, pair) {
            Err(Declined::ThisTime) => {
                self.back_off(pair);
                Err(Declined::ThisTime)
            }
            Err(Declined::Permanently(reason)) => self.keep(pair, Err(reason)).map_err(Declined::Permanently),
            Ok(()) => self.keep(pair, Ok(())).map_err(Declined::Permanently),
        }
    }

    fn single_operation(&self, _: TransferPath) -> Option<SingleOperation> {
        Some(|src, dst| Operation::CopyPeer { src, dst })
    }

    /// One operation whatever the size: cutting it would only cost rate.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, TrySubmitError> {
        let queue = request.lease_to_copy(&*route.backend, route.lane)?;
        request.enqueue(&*queue, &Operation::CopyPeer { src: request.src, dst: request.dst }, request.timing)
    }
}

fn enable_and_verify(backend: &dyn Backend, (a, b): Pair) -> Result<(), Declined> {
    for (device, peer) in [(a, b), (b, a)] {
        let enabled = backend.enable_peer_access(device, peer);
        enabled.map_err(|error| declined(&error, RejectReason::NoPeerAccess))?;
    }
    match peer_check::verify_copies(backend, a, b) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Declined::Permanently(RejectReason::PeerCorrupts)),
        Err(error) => Err(declined(&error, RejectReason::PeerUnverified)),
    }
}

fn declined(error: &Error, otherwise: RejectReason) -> Declined {
    match error.retry() {
        Retry::Never => Declined::Permanently(otherwise),
        Retry::Later | Retry::AfterFreeing => Declined::ThisTime,
    }
}
