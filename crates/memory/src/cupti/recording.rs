//! Records of what the engines of devices did, for a profiler.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{
    ClockAnchor, ClockId, DeviceClock, DeviceId, EngineRecord, EngineRecording, Error, ErrorKind, Migration,
    PageFaults, Result,
};

use super::{
    library::Source,
    operation_calls::RECORDINGS,
    session::{self, Listener},
};
use crate::{
    CudaDevice, CudaFeature, MigrationTracker,
    migrations::{Event, Record},
};

/// Records that are kept until they are taken; further ones are counted as lost.
const MOST: usize = 1 << 18;

/// What was received and not taken.
#[derive(Debug)]
pub(crate) struct Activities {
    devices: Vec<u32>,
    /// Whether migrations are of use: a tracker may have them recorded, of contexts that CUPTI does not know all of.
    takes_migrations: bool,
    received: Mutex<(Vec<EngineRecord>, u64)>,
}

impl Activities {
    pub(super) fn add(&self, record: EngineRecord) {
        let device = match record {
            EngineRecord::Worked(work) => Some(work.device),
            EngineRecord::Migrated(_) | EngineRecord::Faulted(_) if !self.takes_migrations => return,
            EngineRecord::Migrated(migration) => Some(migration.device),
            EngineRecord::Faulted(faults) => faults.device,
            _ => None,
        };
        let is_ours = |device| matches!(device, DeviceId::Cuda(ordinal) if self.devices.contains(&ordinal));
        if device.is_none_or(is_ours) {
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

impl From<&Record> for EngineRecord {
    fn from(record: &Record) -> Self {
        let Record { address, event, times: (begin, end) } = *record;
        let migrated = |ordinal, to_device, by_fault, bytes| {
            let (device, begin, end) = (DeviceId::Cuda(ordinal), begin.cast_signed(), end.cast_signed());
            Self::Migrated(Migration { device, to_device, by_fault, address, bytes, begin, end })
        };
        // A driver that does not time them leaves zeros.
        let served = (begin > 0 && end >= begin).then(|| (begin.cast_signed(), end.cast_signed()));
        let faulted = |device: Option<DeviceId>, count| {
            Self::Faulted(PageFaults { device, address, count, served: device.and(served) })
        };
        match event {
            Event::ToDevice { device, bytes, by_faults } => migrated(device, true, by_faults, bytes),
            Event::ToHost { device, bytes } => migrated(device, false, false, bytes),
            Event::GpuFault { device, groups } => faulted(Some(DeviceId::Cuda(device)), groups),
            Event::CpuFault => faulted(None, 1),
        }
    }
}

/// Copies, fills and kernels of devices, as CUPTI records them: exact spans, by which engine, and for which operation. All of this process's work on the devices is
/// recorded, also that of other libraries. Ends when it is dropped.
///
/// Migrations and page faults of unified memory are recorded too, if CUPTI was loaded before the process's first CUDA context, as by a recording of no device.
pub struct ActivityRecording {
    activities: Arc<Activities>,
    clock: Arc<dyn DeviceClock>,
    migrations: Result<()>,
}

impl ActivityRecording {
    /// Starts a recording. CUPTI is opened by the first one, like [`MigrationTracker`](crate::MigrationTracker) does.
    ///
    /// # Errors
    /// `Unsupported` if CUPTI is not found, has an unknown version, or is used by another tool; with the cause.
    pub fn start<'a>(devices: impl IntoIterator<Item = &'a CudaDevice>) -> Result<Self> {
        let devices: Vec<_> = devices.into_iter().collect();
        session::use_source(Source::Activities)?;
        // What a tracker's test of the counters moves is recorded for nobody.
        let tested: Result<Vec<_>> = to_test(&devices).into_iter().map(MigrationTracker::start).collect();
        let migrations = tested.and_then(|tested| {
            let used = session::use_source(Source::Migrations);
            drop(tested);
            used
        });
        // None of these comes later.
        let _delivered = session::flush(true);
        let (devices, received) = (devices.iter().map(|device| device.ordinal()).collect(), Mutex::default());
        let takes_migrations = migrations.is_ok();
        let activities = Arc::new(Activities { devices, takes_migrations, received });
        session::push_listener(Listener::Activities(Arc::clone(&activities)));
        RECORDINGS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { activities, clock: Arc::new(CuptiClock { id: ClockId::next() }), migrations })
    }
}

/// Returns the devices on which migrations are tested: those that were in use before CUPTI was opened, which would not be known to it if it came too late.
/// Others have no context, and get none. Where no device migrates single pages, the test of one says so.
fn to_test<'a>(devices: &[&'a CudaDevice]) -> Vec<&'a CudaDevice> {
    let migrates = |device: &CudaDevice| {
        device.supports_feature(CudaFeature::ConcurrentManagedAccess).is_ok_and(|is_so| is_so)
    };
    let is_used = |device: &CudaDevice| {
        device.has_context() || transload_core::mutant!("memory/recording-makes-no-context")
    };
    if !devices.iter().any(|device| migrates(device)) {
        return devices.iter().copied().take(1).collect();
    }
    devices.iter().copied().filter(|device| migrates(device) && is_used(device)).collect()
}

impl EngineRecording for ActivityRecording {
    fn clock(&self) -> &Arc<dyn DeviceClock> {
        &self.clock
    }

    fn records_migrations(&self) -> Result<()> {
        self.migrations.clone()
    }

    fn take(&self, records: &mut Vec<EngineRecord>, all: bool) -> Result<u64> {
        session::flush(all)?;
        let (received, lost) = std::mem::take(&mut *self.activities.received.lock());
        records.extend(received);
        Ok(lost)
    }
}

impl Drop for ActivityRecording {
    fn drop(&mut self) {
        RECORDINGS.fetch_sub(1, Ordering::Relaxed);
        session::remove_listener(&Listener::Activities(Arc::clone(&self.activities)));
        if self.migrations.is_ok() {
            session::end_source(Source::Migrations);
        }
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
        let read = || {
            let before = Instant::now();
            let device = session::timestamp()?.cast_signed();
            Ok((ClockAnchor { device, before, after: Instant::now() }, ()))
        };
        ClockAnchor::narrowest(READINGS, read).map(|(anchor, ())| anchor)
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }
}
