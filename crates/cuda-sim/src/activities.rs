//! What engines did, as CUPTI's records tell it.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use crate::{
    api::cupti,
    op::{Op, Work},
    options::SimDeviceBuilder,
    state::Device,
    timing::Engine,
};

/// `CUPTI_ACTIVITY_KIND_...`.
const COPY: u32 = 1;
const FILL: u32 = 2;
pub(crate) const DRIVER: u32 = 4;
const KERNEL: u32 = 10;
const PEER_COPY: u32 = 22;
pub(crate) const CORRELATION: u32 = 39;
pub(crate) const KINDS: [u32; 6] = [COPY, FILL, DRIVER, KERNEL, PEER_COPY, CORRELATION];

/// Returns the size of a record of CUDA 13.0.
pub(crate) fn size_of_kind(kind: u32) -> usize {
    match kind {
        // `CUpti_ActivityMemcpy6`, `...MemcpyPtoP4`.
        COPY | PEER_COPY => 96,
        // `CUpti_ActivityMemset4`.
        FILL => 88,
        // `CUpti_ActivityAPI`.
        DRIVER => 40,
        // `CUpti_ActivityKernel10`.
        KERNEL => 216,
        CORRELATION => 24,
        _ => size_of::<cupti::Migration>(),
    }
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activity {
    /// Which external id a call has.
    Correlation {
        kind: u32,
        id: u64,
        call: u32,
    },
    /// A call of the driver.
    Driver {
        call: u32,
    },
    Worked(Worked),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Worked {
    kind: u32,
    /// `CUpti_ActivityMemcpyKind`.
    direction: u8,
    /// `CUpti_ChannelType`.
    channel: u32,
    bytes: u64,
    pieces: u64,
    times: (u64, u64),
    device: u32,
    stream: u32,
    call: u32,
}

impl Activity {
    /// Describes an operation that an engine worked on from and to times of the device's clock; `None` if it is none of CUPTI's.
    fn of(
        op: &Op,
        engine: Engine,
        (device, stream): (u32, u32),
        (begin, end): (u64, u64),
        options: &SimDeviceBuilder,
    ) -> Option<Self> {
        let (kind, direction, bytes, pieces) = match &op.work {
            Work::Copies(_) => {
                let (kind, direction) = match engine {
                    Engine::ToDevice => (COPY, 1),
                    Engine::ToHost => (COPY, 2),
                    Engine::Peer => (PEER_COPY, 10),
                    Engine::None => (COPY, 9),
                    _ => (COPY, 8),
                };
                // None is left when it ends.
                (kind, direction, op.copied.0, op.copied.1)
            }
            Work::Fill(fill) => (FILL, 0, (fill.width * fill.element) as u64, 1),
            Work::Kernel(_) => (KERNEL, 0, 0, 1),
            _ => return None,
        };
        let channel = match engine {
            Engine::ToDevice | Engine::ToHost | Engine::Peer => 2,
            _ => 1,
        };
        let times = (host_time(begin, options), host_time(end, options));
        let call = op.call;
        Some(Self::Worked(Worked { kind, direction, channel, bytes, pieces, times, device, stream, call }))
    }

    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Correlation { .. } => CORRELATION,
            Self::Driver { .. } => DRIVER,
            Self::Worked(Worked { kind, .. }) => *kind,
        }
    }

    /// Returns the record as the library delivers it; fields that no user here reads are 0.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; size_of_kind(self.kind())];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.kind().to_ne_bytes());
        match self {
            Self::Correlation { kind, id, call } => {
                put(4, &kind.to_ne_bytes());
                put(8, &id.to_ne_bytes());
                put(16, &call.to_ne_bytes());
            }
            Self::Driver { call } => put(32, &call.to_ne_bytes()),
            Self::Worked(work) => {
                let (device, call, channel) = match work.kind {
                    KERNEL => (40, 92, 172),
                    PEER_COPY => (32, 60, 88),
                    _ => (32, 44, 80),
                };
                if work.kind != KERNEL {
                    put(4, &[work.direction]);
                    put(8, &work.bytes.to_ne_bytes());
                }
                if work.kind == COPY {
                    put(88, &work.pieces.to_ne_bytes());
                }
                put(16, &work.times.0.to_ne_bytes());
                put(24, &work.times.1.to_ne_bytes());
                put(device, &work.device.to_ne_bytes());
                put(device + 8, &work.stream.to_ne_bytes());
                put(call, &work.call.to_ne_bytes());
                put(channel, &work.channel.to_ne_bytes());
            }
        }
        bytes
    }
}

/// Records what an operation did on a device, from and to times of the device's clock.
pub(crate) fn record(owner: &Device, op: &Op, engine: Engine, place: (u32, u32), (begin, end): (u64, u64)) {
    if matches!(op.work, Work::Prefetch { .. } | Work::Kernel(_)) {
        cupti::time_migrations(|| [begin, end].map(|at| host_time(at, &owner.options)).into());
    }
    if op.call > 0
        && owner.faults.sticky.is_none()
        && let Some(activity) = Activity::of(op, engine, place, (begin, end), &owner.options)
    {
        cupti::record_activity(activity);
    }
}

/// Returns the number of a new call.
pub(crate) fn next_call() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An instant, and the same as nanoseconds of the time of day.
fn base() -> (Instant, u64) {
    static BASE: OnceLock<(Instant, u64)> = OnceLock::new();
    *BASE.get_or_init(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    })
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time of the records' clock: the host's, as with a real CUPTI.
pub(crate) fn now() -> u64 {
    let (instant, time) = base();
    time.saturating_add(nanoseconds(instant.elapsed()))
}

/// Converts a time of a device's clock, as CUPTI does. Virtual time begins with the process.
pub(crate) fn host_time(at: u64, options: &SimDeviceBuilder) -> u64 {
    let (instant, time) = base();
    match options.pace {
        None => time.saturating_add(at),
        Some(pace) => {
            let of = pace.host_instant(at);
            match of.checked_duration_since(instant) {
                Some(after) => time.saturating_add(nanoseconds(after)),
                None => time.saturating_sub(nanoseconds(instant.saturating_duration_since(of))),
            }
        }
    }
}
