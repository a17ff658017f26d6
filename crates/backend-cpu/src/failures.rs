//! Errors of failed operations, kept for their fences. None is lost: adjacent points with the same error share an
//! entry, and all are cleared once no fence is left that could query them.

use transload_core::{Error, Result};

/// Failed points and their errors.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    first: u64,
    last: u64,
    error: Error,
}

impl Failures {
    /// Adds a point later than all before it.
    pub(crate) fn add(&mut self, point: u64, error: Error) {
        match self.0.last_mut() {
            Some(entry) if entry.last + 1 == point && is_same(&entry.error, &error) => entry.last = point,
            _ => self.0.push(Entry { first: point, last: point, error }),
        }
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the outcome of a reached point.
    pub(crate) fn of(&self, point: u64) -> Result<()> {
        let index = self.0.partition_point(|entry| entry.last < point);
        match self.0.get(index) {
            Some(entry) if entry.first <= point => Err(entry.error.clone()),
            _ => Ok(()),
        }
    }
}

fn is_same(one: &Error, other: &Error) -> bool {
    one.kind() == other.kind() && one.to_string() == other.to_string()
}

#[cfg(test)]
#[path = "../tests/unit/failures.rs"]
mod tests;
