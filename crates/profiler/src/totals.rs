//! Counts of transfers by outcome.

use std::fmt;

/// Counts since the log was created or cleared: a consistent snapshot, even while transfers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Totals {
    /// Transfers that were enqueued.
    pub submitted: u64,
    /// Transfers that completed.
    pub completed: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Transfers whose handles were dropped before their end was observed.
    pub abandoned: u64,
    /// Bytes of the completed transfers.
    pub bytes: u64,
    /// Transfers with any outcome that ran on a software driver.
    pub simulated: u64,
    /// Records overwritten by later ones.
    pub displaced: u64,
}

impl Totals {
    /// Returns the number of transfers with any outcome.
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
