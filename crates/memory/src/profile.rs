//! What a profiler needs of a device: its clock, and the place for a sink.

use std::{
    collections::VecDeque,
    ffi::c_void,
    hint,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use transload_core::{
    ClockAnchor, ClockId, DeviceClock, DeviceId, Error, ErrorKind, Result, SinkSlot, Stamp,
};
use transload_cuda_sys::{
    AsStream, Context, DriverError, Event, EventTiming, Stream, StreamOptions, check, ffi,
};

use crate::lift;

/// Readings of an anchor, of which the narrowest counts.
const READINGS: usize = 8;
/// From this age on, an anchor's event becomes the one that later times are measured from. The driver returns milliseconds as a 32-bit float,
/// whose steps are 0.25 µs from 2 s on and 0.5 µs from 4 s on.
const BASE_AGE: Duration = Duration::from_secs(2);
/// Time between two anchors at most, so that no time is measured over more than 4 s.
const ANCHOR_INTERVAL: Duration = Duration::from_secs(2);
/// Events in a row by whose least distance it is known how long one takes.
const IN_A_ROW: usize = 16;
/// Events that times are measured from, for stamps that are read late.
const BASES: usize = 16;

/// A device's part in profiling, shared by all its streams.
#[derive(Debug, Default)]
pub struct DeviceProfile {
    sink: SinkSlot,
    clock: OnceLock<Arc<EventClock>>,
}

impl DeviceProfile {
    /// Returns the place for a sink of the operations of the device's streams.
    #[must_use]
    #[inline]
    pub fn sink(&self) -> &SinkSlot {
        &self.sink
    }

    /// Returns the device's clock, which the first call creates.
    ///
    /// # Errors
    /// The driver's.
    pub fn clock(&self, context: &Context) -> Result<&Arc<EventClock>> {
        if let Some(clock) = self.clock.get() {
            return Ok(clock);
        }
        let made = EventClock::new(context).map(Arc::new).map_err(lift)?;
        Ok(self.clock.get_or_init(|| made))
    }
}

/// A device's clock, read by events: nanoseconds since the clock was made.
#[derive(Debug)]
pub struct EventClock {
    id: ClockId,
    device: DeviceId,
    context: Context,
    /// Runs nothing but the events of anchors.
    stream: Mutex<Stream>,
    /// How long an event takes on a stream.
    event: Duration,
    events: Mutex<Events>,
    /// Events of known times, oldest first; never empty.
    bases: RwLock<VecDeque<Base>>,
}

#[derive(Debug, Default)]
struct Events {
    all: Vec<Arc<Event>>,
    /// Indices of those that no stamp has.
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Base {
    event: Arc<Event>,
    at: i64,
}

impl EventClock {
    fn new(context: &Context) -> Result<Self, DriverError> {
        let stream = Stream::new(context, StreamOptions { priority: 0, blocking: false })?;
        let event = Arc::new(Event::new(context, EventTiming::Enabled)?);
        event.record(&stream)?;
        event.synchronize()?;
        let length = length_of_an_event(context, &stream)?;
        Ok(Self {
            id: ClockId::next(),
            device: DeviceId::Cuda(context.device().ordinal()),
            context: context.clone(),
            stream: Mutex::new(stream),
            event: length,
            events: Mutex::default(),
            bases: RwLock::new(VecDeque::from([Base { event, at: 0 }])),
        })
    }

    /// Records when `stream`, of this device, reaches this place.
    ///
    /// # Errors
    /// The driver's.
    pub fn stamp(self: &Arc<Self>, stream: &impl AsStream) -> Result<Stamp, DriverError> {
        let index = self.free_event()?;
        let event = self.event(index);
        // From here on the stamp's drop frees the event.
        let stamp = Stamp::new(Arc::clone(self) as Arc<dyn DeviceClock>, u64::from(index));
        event.map_or(Ok(()), |event| event.record(stream))?;
        Ok(stamp)
    }

    fn free_event(&self) -> Result<u32, DriverError> {
        if let Some(index) = self.events.lock().free.pop() {
            return Ok(index);
        }
        let event = Arc::new(Event::new(&self.context, EventTiming::Enabled)?);
        let mut events = self.events.lock();
        let index = u32::try_from(events.all.len()).unwrap_or(u32::MAX);
        events.all.push(event);
        let room = events.all.len() - events.free.len();
        events.free.reserve(room);
        Ok(index)
    }

    fn event(&self, index: u32) -> Option<Arc<Event>> {
        self.events.lock().all.get(index as usize).map(Arc::clone)
    }

    /// Returns the time of a complete event: from the nearest base, since the driver's steps grow with the distance. After an idle time
    /// that may be the one just after it.
    fn time_of(&self, event: &Event) -> Result<i64, DriverError> {
        let is_any_base = transload_core::mutant!("memory/nearest-base");
        let (mut shortest, mut time) = (f64::INFINITY, 0);
        for base in self.bases.read().iter().rev() {
            let milliseconds = f64::from(event.milliseconds_since(&base.event)?);
            if milliseconds.abs() < shortest || is_any_base {
                (shortest, time) = (milliseconds.abs(), base.at + (milliseconds * 1e6).round() as i64);
            }
            // Earlier ones are farther.
            if milliseconds >= 0.0 && !is_any_base {
                break;
            }
        }
        Ok(time)
    }

    /// Records an event on the idle stream, and waits for it.
    fn read(&self, event: &Event, stream: &Stream) -> Result<ClockAnchor, DriverError> {
        /// Time after which the device is taken to be busy.
        const SPIN: Duration = Duration::from_micros(200);
        let before = Instant::now();
        event.record(stream)?;
        while !event.is_done()? {
            if before.elapsed() > SPIN {
                event.synchronize()?;
            }
        }
        let after = Instant::now();
        Ok(ClockAnchor { device: self.time_of(event)?, before, after })
    }

    fn try_anchor(&self) -> Result<ClockAnchor, DriverError> {
        let stream = self.stream.lock();
        let read = || {
            let event = Arc::new(Event::new(&self.context, EventTiming::Enabled)?);
            Ok::<_, DriverError>((self.read(&event, &stream)?, event))
        };
        let (anchor, event) = ClockAnchor::narrowest(READINGS, read)?;
        let mut bases = self.bases.write();
        let age = bases.back().map_or(0, |base| anchor.device - base.at);
        if u128::try_from(age).is_ok_and(|age| age >= BASE_AGE.as_nanos()) {
            if bases.len() == BASES {
                bases.pop_front();
            }
            bases.push_back(Base { event, at: anchor.device });
        }
        Ok(anchor)
    }
}

/// Returns the least time between two events that a device takes in a row: 1.28 µs on an H200.
fn length_of_an_event(context: &Context, stream: &Stream) -> Result<Duration, DriverError> {
    let event = |_| Event::new(context, EventTiming::Enabled);
    let events = (0..IN_A_ROW).map(event).collect::<Result<Vec<_>, _>>()?;
    let are_recorded = hold(stream)?;
    let recorded = events.iter().try_for_each(|event| event.record(stream));
    are_recorded.store(true, Ordering::Release);
    recorded.and_then(|()| stream.synchronize())?;
    let mut least = f32::INFINITY;
    for (before, event) in events.iter().zip(events.iter().skip(1)) {
        least = least.min(event.milliseconds_since(before)?);
    }
    Ok(Duration::try_from_secs_f32(least / 1e3).unwrap_or_default())
}

/// Holds up what is enqueued on the stream from now on, until the word is set, or for a while.
fn hold(stream: &Stream) -> Result<Arc<AtomicBool>, DriverError> {
    const LONGEST: Duration = Duration::from_millis(5);
    extern "C" fn wait(word: *mut c_void) {
        // SAFETY: made below, and passed to this call alone.
        let is_over = unsafe { Arc::from_raw(word.cast_const().cast::<AtomicBool>()) };
        let begun = Instant::now();
        while !is_over.load(Ordering::Acquire) && begun.elapsed() < LONGEST {
            hint::spin_loop();
        }
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let _bound = stream.context().enter()?;
    let word = Arc::into_raw(Arc::clone(&is_over));
    // SAFETY: the stream is valid by its type's invariant, and of the context that is current; the function owns the word, and calls no
    // driver function.
    let code = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(wait), word.cast_mut().cast()) };
    check("cuLaunchHostFunc", code).map(|()| is_over).inspect_err(|_| {
        // SAFETY: made above; the function is not called.
        drop(unsafe { Arc::from_raw(word) });
    })
}

impl DeviceClock for EventClock {
    fn id(&self) -> ClockId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    /// The driver's documentation of `cuEventElapsedTime` says about 0.5 µs.
    fn resolution(&self) -> Duration {
        Duration::from_nanos(500)
    }

    fn stamp_length(&self) -> Duration {
        self.event
    }

    fn time(&self, token: u64) -> Result<Option<i64>> {
        let event = u32::try_from(token).ok().and_then(|index| self.event(index));
        let event = event.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, format!("token {token} is not one of this clock"))
        })?;
        // One call if it is complete, as it mostly is: other threads' submissions wait for calls of the driver.
        let time = || self.time_of(&event).map(Some);
        time().or_else(|_| if event.is_done()? { time() } else { Ok(None) }).map_err(lift)
    }

    fn release(&self, token: u64) {
        if let Ok(index) = u32::try_from(token) {
            self.events.lock().free.push(index);
        }
    }

    fn anchor(&self) -> Result<ClockAnchor> {
        self.try_anchor().map_err(lift)
    }

    fn anchor_interval(&self) -> Option<Duration> {
        Some(ANCHOR_INTERVAL)
    }
}
