//! Single methods against hand-written equivalents: staging, peer copies, managed memory, copies in place.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use transload_core::{DeviceId, ErrorKind, MemoryKind, Place, Transfer, TransferMethod, TransferPath};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    case::{Case, Ends, Location, Side, Testbed as _},
    cuda::Session,
    grid::{self, Point},
    measure::in_turns,
    reference::{PeerCopy, PrefetchedCopy, Reference, Staged},
    row::{Goal, Row},
    rows::Bench,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A method, a path, and the baseline to compare with.
#[derive(Clone, Copy)]
struct Measurement {
    /// Prefix of the row's id.
    group: &'static str,
    path: TransferPath,
    method: TransferMethod,
    baseline: Baseline,
    sizes: &'static [usize],
}

#[derive(Clone, Copy, PartialEq)]
enum Baseline {
    /// The driver's own copy.
    Driver,
    /// Staging by threads.
    Threads,
    /// The driver's peer copy.
    Peer,
    /// Prefetch and copy.
    Prefetch,
    /// The library's direct copy.
    DirectCopy,
}

impl Baseline {
    fn name(self) -> &'static str {
        match self {
            Self::Driver => "raw driver",
            Self::Threads => "8 staging threads by hand",
            Self::Peer => "raw peer copy",
            Self::Prefetch => "raw prefetch and copy",
            Self::DirectCopy => "DirectCopy",
        }
    }

    fn goal(self, bytes: usize) -> Option<Goal> {
        match (self, bytes) {
            (Self::Driver, _) => Some(Goal::RatioAtLeast(1.0)),
            (Self::Peer, 4096) => Some(Goal::RatioAtMost(1.3)),
            (Self::Peer, 268_435_456) => Some(Goal::RatioAtLeast(0.97)),
            (Self::Prefetch, _) => Some(Goal::RatioAtMost(1.1)),
            _ => None,
        }
    }
}

fn measurements(session: &Session) -> Vec<Measurement> {
    use Baseline::{DirectCopy, Driver, Peer, Prefetch, Threads};
    use TransferMethod::{HostStaged, PeerToPeer, UnifiedMemory, ZeroCopy};
    const STAGED: &[usize] = &[MIB, 3 * MIB, 16 * MIB, 48 * MIB, 256 * MIB];
    const PEERS: &[usize] = &[4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB];
    const MANAGED: &[usize] = &[MIB, 16 * MIB, 256 * MIB];
    const IN_PLACE: &[usize] = &[4 * KIB, 64 * KIB, MIB, 16 * MIB];
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let here = |kind| Place::new(session.device(), kind);
    let (pageable, there) = (host(MemoryKind::Pageable), here(MemoryKind::Device));
    let mut measurements = Vec::new();
    let mut measurement = |group, src, dst, method, baseline, sizes| {
        measurements.push(Measurement { group, path: TransferPath::new(src, dst), method, baseline, sizes });
    };
    for (src, dst) in [(pageable, there), (there, pageable)] {
        measurement("staged/beside-driver", src, dst, HostStaged, Driver, STAGED);
        measurement("staged/beside-threads", src, dst, HostStaged, Threads, STAGED);
    }
    if let Some(peer) = session.peer() {
        let peer = Place::new(peer, MemoryKind::Device);
        measurement("peer", there, peer, PeerToPeer, Peer, PEERS);
        measurement("peer", peer, there, PeerToPeer, Peer, PEERS);
    }
    measurement("managed", here(MemoryKind::Unified), there, UnifiedMemory, Prefetch, MANAGED);
    measurement("in-place", host(MemoryKind::Mapped), there, ZeroCopy, DirectCopy, IN_PLACE);
    measurements
}

impl Bench<'_> {
    /// Measures every method against its baselines.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn method_baselines(&mut self, session: &Session, mut next: impl FnMut(&str)) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for measurement in measurements(session) {
            for bytes in
                measurement.sizes.iter().copied().filter(|bytes| *bytes <= grid::largest(self.options))
            {
                let what = format!("{} by {}, {bytes} bytes", measurement.path, measurement.method);
                next(&what);
                rows.extend(self.measure(session, measurement, Point::aligned(bytes)).context(what)?);
            }
        }
        Ok(rows)
    }

    fn measure(&mut self, session: &Session, measurement: Measurement, point: Point) -> Result<Option<Row>> {
        let Measurement { group, path, method, baseline, .. } = measurement;
        let options = TransferOptions::new().only(method);
        let planned = self.manager.plan(path.src, path.dst, point.bytes as u64, &options);
        if planned.is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            // The rows of all methods give the reason.
            return Ok(None);
        }
        let mut case = case(self.manager, session, measurement, point)?;
        match case.ends.submit_with(&options).and_then(Transfer::wait) {
            Ok(report) => ensure!(report.method == method, "requested {method}, got {}", report.method),
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (ours, theirs) = (case.source(Side::Ours)?, case.source(Side::Reference)?);
        let move_home = |source| match baseline {
            Baseline::Prefetch => session.migrate(source, point.bytes, Location::Host),
            _ => Ok(()),
        };
        let by_library = |ends: &Ends<'_>| {
            move_home(ours)?;
            let begun = Instant::now();
            ends.copy_with(&options)?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let reference = |reference: &mut dyn Reference| {
            move_home(theirs)?;
            let begun = Instant::now();
            reference.submit()?;
            reference.finish()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let most = match point.bytes {
            0..=1_048_576 => usize::MAX,
            1_048_577..=16_777_216 => 60,
            _ => 30,
        };
        let repetitions = grid::repetitions(self.options, point.bytes);
        let repetitions =
            if self.options.repetitions.is_some() { repetitions } else { repetitions.min(most) };
        let times = in_turns(&mut case, self.content, repetitions, by_library, reference)?;
        let bytes = point.bytes as f64;
        let (unit, both) = if point.is_small() || baseline == Baseline::Prefetch {
            ("us", times.map(|time| time * 1e6))
        } else {
            ("GB/s", times.map(|time| bytes / time / 1e9))
        };
        let id = format!("{group}/{}/{method}/{}", grid::name(path), grid::size(point));
        let text = format!("{path}, {method} beside {}", baseline.name());
        let row = Row::new(id, text, method.name(), point.bytes as u64, unit, both.ours);
        let row = match baseline {
            Baseline::DirectCopy => row.against_library(baseline.name(), both.reference),
            _ => row.against(baseline.name(), both.reference),
        };
        let row = row.obtained(self.testbed.is_simulated(), both.verified);
        Ok(Some(row.with_goal(baseline.goal(point.bytes))))
    }
}

/// Creates both sides with the measurement's baseline.
fn case<'a>(
    manager: &'a CrossBackendTransferManager,
    session: &Session,
    measurement: Measurement,
    point: Point,
) -> Result<Case<'a>> {
    let Measurement { path, baseline, .. } = measurement;
    let bytes = point.bytes;
    let context = |place: Place| session.context(place.device);
    if baseline == Baseline::DirectCopy {
        let direct = TransferOptions::new().only(TransferMethod::DirectCopy);
        return Case::with_options(manager, session, path, point, direct);
    }
    Case::with(manager, session, path, point, |src, dst| {
        // SAFETY: the case guarantees the memory, in the contexts of the path's devices.
        let reference: Box<dyn Reference> = unsafe {
            match baseline {
                Baseline::Driver | Baseline::DirectCopy => session.reference(src, dst, bytes)?,
                Baseline::Threads => {
                    Box::new(Staged::new(session.context(session.device())?, &[(src, dst, bytes)])?)
                }
                Baseline::Peer => {
                    Box::new(PeerCopy::new(context(path.src)?, context(path.dst)?, src, dst, bytes)?)
                }
                Baseline::Prefetch => Box::new(PrefetchedCopy::new(context(path.dst)?, src, dst, bytes)?),
            }
        };
        Ok(reference)
    })
}
