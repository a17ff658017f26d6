//! Clocks of devices, and instants on them.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{DeviceId, Error, ErrorKind, Result};

/// Identifies a clock within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClockId(u64);

impl ClockId {
    /// Returns a new id, for a backend's new clock.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A clock of a device read together with the host's: the device's read `device` at some instant from `before` to `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAnchor {
    /// The device's clock in nanoseconds.
    pub device: i64,
    /// The host's clock before.
    pub before: Instant,
    /// The host's clock after.
    pub after: Instant,
}

impl ClockAnchor {
    /// Reads a clock so many times, at least once. Returns the reading during which the host's clock went on least, which tells the device's instant best, with what
    /// `read` returned beside it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn narrowest<T, E>(
        readings: usize,
        mut read: impl FnMut() -> Result<(Self, T), E>,
    ) -> Result<(Self, T), E> {
        let width = |anchor: &Self| anchor.after.saturating_duration_since(anchor.before);
        let mut best = read()?;
        for _ in 1..readings {
            let other = read()?;
            if width(&other.0) < width(&best.0) && !crate::mutant!("core/narrowest-reading") {
                best = other;
            }
        }
        Ok(best)
    }
}

/// A device's clock. It counts nanoseconds from an instant of its own, at a rate that may differ from the host's by some hundred
/// millionths. All methods may be called from any thread, and call the driver.
pub trait DeviceClock: Send + Sync + 'static {
    /// Returns its id, from [`ClockId::next`].
    fn id(&self) -> ClockId;

    /// Returns the device.
    fn device(&self) -> DeviceId;

    /// Returns the largest error of an instant on this clock, without that of comparing it with another one.
    fn resolution(&self) -> Duration;

    /// Returns how long a stamp itself takes on its queue, by which the span between two stamps is longer than what lies between them. By twice
    /// as much, while engines are recorded: an operation then begins as long after a stamp as another stamp would.
    fn stamp_length(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the instant of a stamp's token in nanoseconds, or `None` if the queue has not reached it.
    ///
    /// # Errors
    /// The driver's, if the instant will never be known.
    fn time(&self, token: u64) -> Result<Option<i64>>;

    /// Called once for each token when its stamp is dropped.
    fn release(&self, token: u64);

    /// Reads the clock together with the host's. Takes some ten microseconds, longer while the device is busy. The result is the
    /// narrowest of several readings.
    ///
    /// # Errors
    /// The driver's.
    fn anchor(&self) -> Result<ClockAnchor>;

    /// Returns how long after an [`anchor`](Self::anchor) the next one is due at the latest, for stamps between the two to be
    /// exact; `None` if never.
    fn anchor_interval(&self) -> Option<Duration>;
}

/// The instant at which a queue reached a place in its order. Keeps the clock alive, not the queue.
pub struct Stamp {
    clock: Arc<dyn DeviceClock>,
    token: u64,
}

impl Stamp {
    /// Creates a stamp of the clock's `token`.
    #[must_use]
    pub fn new(clock: Arc<dyn DeviceClock>, token: u64) -> Self {
        Self { clock, token }
    }

    /// Creates a stamp of an instant of the host.
    #[must_use]
    pub fn of_host(instant: Instant) -> Self {
        let clock = HostClock::get();
        let token = clock.nanoseconds(instant).cast_unsigned();
        Self { clock, token }
    }

    /// Creates a stamp of an instant of the host that is not known yet, and what sets it. If that is dropped instead, the instant will
    /// never be known.
    #[must_use]
    pub fn of_host_later() -> (Self, PendingStamp) {
        let later = Arc::new(HostLater { host: HostClock::get(), instant: Mutex::new(Later::Pending) });
        (Self { clock: Arc::clone(&later) as _, token: 0 }, PendingStamp { later })
    }

    /// Returns its clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn DeviceClock> {
        &self.clock
    }

    /// Returns the instant in nanoseconds of its clock, or `None` if the queue has not reached it.
    ///
    /// # Errors
    /// The driver's, if the instant will never be known, as after the loss of the device.
    pub fn time(&self) -> Result<Option<i64>> {
        self.clock.time(self.token)
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        self.clock.release(self.token);
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stamp").field("clock", &self.clock.id()).field("token", &self.token).finish()
    }
}

/// Sets a stamp of the host.
pub struct PendingStamp {
    later: Arc<HostLater>,
}

impl PendingStamp {
    /// Sets the instant.
    pub fn set(self, instant: Instant) {
        *self.later.instant.lock() = Later::Known(instant);
    }
}

impl Drop for PendingStamp {
    fn drop(&mut self) {
        let mut instant = self.later.instant.lock();
        if matches!(*instant, Later::Pending) {
            *instant = Later::Never;
        }
    }
}

impl fmt::Debug for PendingStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingStamp").finish_non_exhaustive()
    }
}

enum Later {
    Pending,
    Known(Instant),
    Never,
}

/// The host's clock, for one instant that is not known yet.
struct HostLater {
    host: Arc<HostClock>,
    instant: Mutex<Later>,
}

impl DeviceClock for HostLater {
    fn id(&self) -> ClockId {
        self.host.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn resolution(&self) -> Duration {
        self.host.resolution()
    }

    fn time(&self, _: u64) -> Result<Option<i64>> {
        match *self.instant.lock() {
            Later::Pending => Ok(None),
            Later::Known(instant) => Ok(Some(self.host.nanoseconds(instant))),
            Later::Never => {
                Err(Error::new(ErrorKind::Interrupted, "what should have set the instant was dropped"))
            }
        }
    }

    fn release(&self, _: u64) {}

    fn anchor(&self) -> Result<ClockAnchor> {
        self.host.anchor()
    }

    fn anchor_interval(&self) -> Option<Duration> {
        None
    }
}

/// The host's monotonic clock, of which a token is the instant itself.
struct HostClock {
    id: ClockId,
    origin: Instant,
}

impl HostClock {
    fn get() -> Arc<Self> {
        static CLOCK: OnceLock<Arc<HostClock>> = OnceLock::new();
        Arc::clone(CLOCK.get_or_init(|| Arc::new(Self { id: ClockId::next(), origin: Instant::now() })))
    }

    /// Returns the nanoseconds since the origin; negative before it.
    fn nanoseconds(&self, instant: Instant) -> i64 {
        let whole = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        match instant.checked_duration_since(self.origin) {
            Some(since) => whole(since),
            None => -whole(self.origin.saturating_duration_since(instant)),
        }
    }
}

impl DeviceClock for HostClock {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn time(&self, token: u64) -> Result<Option<i64>> {
        Ok(Some(token.cast_signed()))
    }

    fn release(&self, _: u64) {}

    fn anchor(&self) -> Result<ClockAnchor> {
        let now = Instant::now();
        Ok(ClockAnchor { device: self.nanoseconds(now), before: now, after: now })
    }

    fn anchor_interval(&self) -> Option<Duration> {
        None
    }
}
