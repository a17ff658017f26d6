//! User events: recorded on a stream, waited for, queried, and timed.

use std::time::Duration;

use transload_core::{Error, Result};
use transload_cuda_sys::{DriverError, Event, EventTiming};
use transload_memory::{CudaDevice, lift_in};

use crate::CudaStream;

/// A point in a stream's work. Usable from any thread.
#[derive(Debug)]
pub struct CudaEvent {
    event: Event,
}

impl CudaEvent {
    /// Creates an event with a timestamp on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let context = device.context()?;
        let event = Event::new(context, EventTiming::Enabled).map_err(|error| lift_in(context, error))?;
        Ok(Self { event })
    }

    /// Records the work enqueued on `stream` so far. The stream must be of the event's device.
    ///
    /// # Errors
    /// The driver's, for example for a stream of another device.
    pub fn record(&self, stream: &CudaStream) -> Result<()> {
        stream.own.check_usable()?;
        self.event.record(stream.own.stream()).map_err(|error| stream.own.lift(error))
    }

    /// Returns whether the recorded work is complete; true for an event never recorded.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done().map_err(|error| self.lift(error))
    }

    /// Blocks until the recorded work is done.
    ///
    /// # Errors
    /// The driver's.
    pub fn synchronize(&self) -> Result<()> {
        self.event.synchronize().map_err(|error| self.lift(error))
    }

    /// Returns the device time from `start` to this event; both must have been recorded and be done.
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed_since(&self, start: &Self) -> Result<Duration> {
        self.event.elapsed_since(&start.event).map_err(|error| self.lift(error))
    }

    #[cold]
    fn lift(&self, error: DriverError) -> Error {
        lift_in(self.event.context(), error)
    }

    /// Returns the driver's event.
    #[must_use]
    pub fn driver(&self) -> &Event {
        &self.event
    }
}
