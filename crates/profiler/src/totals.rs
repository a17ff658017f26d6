//! How many transfers ended in which way.

use std::fmt;

/// Counts since the log was made or cleared. Taken while transfers run, they belong to one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Transfers that were enqueued.
    pub submitted: u64,
    /// Those whose bytes are in place.
    pub completed: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those whose handle was dropped before their end was seen.
    pub abandoned: u64,
    /// Bytes of the completed ones.
    pub bytes: u64,
    /// Ends, of any kind, on a device that a software driver played.
    pub simulated: u64,
    /// Records that made room for later ones.
    pub displaced: u64,
}

impl Totals {
    /// Transfers whose end was heard of, whatever it was.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.failed + self.abandoned
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitted, completed, failed, abandoned, bytes, simulated, .. } = self;
        write!(
            f,
            "{submitted} submitted, {completed} completed with {bytes} bytes, {failed} failed, {abandoned} abandoned"
        )?;
        if *simulated > 0 {
            write!(f, " ({simulated} simulated)")?;
        }
        Ok(())
    }
}
