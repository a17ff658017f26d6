//! Between two devices without the host, once the pair was enabled both ways and verified by bytes.

use parking_lot::RwLock;
use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Operation, RejectReason, Result, TransferMethod, TransferPath,
};

use super::{Context, Job, Method, Route, peer_check};

/// Which pairs can be trusted is found out once each, and kept for the life of the manager.
#[derive(Debug, Default)]
pub(super) struct PeerToPeer {
    verdicts: RwLock<Vec<(Pair, Verdict)>>,
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
}

impl Method for PeerToPeer {
    fn method(&self) -> TransferMethod {
        TransferMethod::PeerToPeer
    }

    /// The source's device does the copying: writing to a peer is as fast as reading from one.
    fn applicable(&self, path: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        let relayed = |device| match context.has_peer(device) {
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
        if !context.are_peers(src, dst) {
            return Err(RejectReason::NoPeerAccess);
        }
        if [path.src, path.dst].iter().any(|place| place.kind != MemoryKind::Device) {
            return Err(RejectReason::NotDeviceMemory);
        }
        // A pair that failed on the way there is not taken on the way back.
        self.known(pair(src, dst)).unwrap_or(Ok(()))?;
        context.route(src).ok_or(RejectReason::NoQueue)
    }

    /// Enables and verifies the pair at its first transfer, which that one waits for. Two threads that are first at once
    /// both do it, to the same end: no lock is held meanwhile.
    fn prepare(&self, path: TransferPath, route: &Route) -> Result<(), RejectReason> {
        let pair = pair(path.src.device, path.dst.device);
        match self.known(pair) {
            Some(verdict) => verdict,
            None => self.keep(pair, find_out(&*route.backend, pair)),
        }
    }

    /// One operation whatever the size: cutting it would only cost rate.
    fn submit(&self, route: &Route, job: &Job<'_>) -> Result<Fence> {
        let queue = job.lease_to_copy(&*route.backend, route.lane)?;
        transload_core::submit(&*queue, &Operation::CopyPeer { src: job.src, dst: job.dst }, job.timing)
    }
}

fn find_out(backend: &dyn Backend, (a, b): Pair) -> Verdict {
    for (device, peer) in [(a, b), (b, a)] {
        backend.enable_peer_access(device, peer).map_err(|_| RejectReason::NoPeerAccess)?;
    }
    match peer_check::is_faithful(backend, a, b) {
        Ok(true) => Ok(()),
        Ok(false) => Err(RejectReason::PeerCorrupts),
        Err(_) => Err(RejectReason::PeerUnverified),
    }
}
