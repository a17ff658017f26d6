//! Records of what the engines of devices did, for a profiler.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{
    ClockAnchor, ClockId, DeviceClock, DeviceId, EngineRecord, EngineRecording, Error, ErrorKind, Result,
};

use super::{
    operation_calls::RECORDINGS,
    session::{self, Listener},
};

/// Records that are kept until they are taken; further ones are counted as lost.
const MOST: usize = 1 << 18;

/// What was received and not taken.
#[derive(Debug)]
pub(crate) struct Activities {
    devices: Vec<u32>,
    received: Mutex<(Vec<EngineRecord>, u64)>,
}

impl Activities {
    pub(super) fn add(&self, record: EngineRecord) {
        let is_ours = match record {
            EngineRecord::Worked(work) => {
                matches!(work.device, DeviceId::Cuda(ordinal) if self.devices.contains(&ordinal))
            }
            _ => true,
        };
        if is_ours {
            let (records, lost) = &mut *self.received.lock();
            match records.len() < MOST {
                true => records.push(record),
                false => *lost += 1,
            }
        }
    }

    pub(super) fn add_lost(&self, count: u64) {
        let lost = &mut self.received.lock().1;
        *lost = lost.saturating_add(count);
    }
}

/// Copies, fills and kernels of devices, as CUPTI records them: exact spans, by which engine, and for which operation. All of this process's work on the devices is
/// recorded, whoever enqueued it. Ends when it is dropped.
pub struct ActivityRecording {
    activities: Arc<Activities>,
    clock: Arc<dyn DeviceClock>,
}

impl ActivityRecording {
    /// Starts a recording. CUPTI is opened by the first one, like [`MigrationTracker`](crate::MigrationTracker) does.
    ///
    /// # Errors
    /// `Unsupported` if CUPTI is not found, has an unknown version, or is used by another tool; with the cause.
    pub fn start(devices: impl IntoIterator<Item = u32>) -> Result<Self> {
        let received = Mutex::default();
        let activities = Arc::new(Activities { devices: devices.into_iter().collect(), received });
        session::add_listener(Listener::Activities(Arc::clone(&activities)))?;
        RECORDINGS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { activities, clock: Arc::new(CuptiClock { id: ClockId::next() }) })
    }
}

impl EngineRecording for ActivityRecording {
    fn clock(&self) -> &Arc<dyn DeviceClock> {
        &self.clock
    }

    fn take(&self, records: &mut Vec<EngineRecord>) -> Result<u64> {
        session::flush_complete()?;
        let (received, lost) = std::mem::take(&mut *self.activities.received.lock());
        records.extend(received);
        Ok(lost)
    }
}

impl Drop for ActivityRecording {
    fn drop(&mut self) {
        RECORDINGS.fetch_sub(1, Ordering::Relaxed);
        session::remove_listener(&Listener::Activities(Arc::clone(&self.activities)));
    }
}

impl fmt::Debug for ActivityRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityRecording").field("devices", &self.activities.devices).finish_non_exhaustive()
    }
}

/// The clock of CUPTI's records: the host's time of day, to which the library converts the devices' times.
struct CuptiClock {
    id: ClockId,
}

impl DeviceClock for CuptiClock {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    /// A GPU's own timer has steps of 32 ns; what the library's conversion adds is not documented.
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn time(&self, token: u64) -> Result<Option<i64>> {
        Err(Error::new(ErrorKind::InvalidArgument, format!("token {token} is not one of this clock")))
    }

    fn release(&self, _: u64) {}

    fn anchor(&self) -> Result<ClockAnchor> {
        /// Readings, of which the narrowest counts.
        const READINGS: usize = 8;
        let mut best: Option<ClockAnchor> = None;
        for _ in 0..READINGS {
            let before = Instant::now();
            let device = session::timestamp()?.cast_signed();
            let after = Instant::now();
            if best.is_none_or(|best| after - before < best.after - best.before) {
                best = Some(ClockAnchor { device, before, after });
            }
        }
        best.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the clock of CUPTI was not read"))
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }
}
