//! What a tracking resource has alive, as a text for people: the largest segments first.

use std::fmt;

use transload_core::Place;

use super::tracking::TrackedSegment;

/// Live segments of one resource. Printed with a precision, `{:.3}`, it shows so many of the largest; without one, ten. With
/// `{:#}` the calls that led to each are shown, where they are kept.
#[derive(Clone, Debug)]
pub struct TrackingReport {
    place: Place,
    segments: Vec<TrackedSegment>,
}

impl TrackingReport {
    pub(super) fn new(place: Place, mut segments: Vec<TrackedSegment>) -> Self {
        segments.sort_by_key(|segment| (std::cmp::Reverse(segment.bytes), segment.number));
        Self { place, segments }
    }

    /// The segments, the largest first.
    #[must_use]
    pub fn segments(&self) -> &[TrackedSegment] {
        &self.segments
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }
}

impl fmt::Display for TrackingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        let shown = f.precision().unwrap_or(SHOWN).min(self.segments.len());
        write!(f, "{}: {} segments alive, {} bytes", self.place, self.segments.len(), self.bytes())?;
        for segment in &self.segments[..shown] {
            write!(f, "\n{:>14} bytes at {:#x} (#{})", segment.bytes, segment.address, segment.number)?;
            if let Some(caller) = segment.caller {
                write!(f, " for {caller}")?;
            }
            if let Some(backtrace) = segment.backtrace.as_ref().filter(|_| f.alternate()) {
                write!(f, "\n{backtrace}")?;
            }
        }
        match self.segments.len() - shown {
            0 => Ok(()),
            left => write!(f, "\nand {left} more"),
        }
    }
}
