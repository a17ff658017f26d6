//! Outcomes of operations that failed, kept for their fences. None is ever lost: neighbours that failed for the same reason
//! share an entry, and all go when no fence of the line is left that could ask.

use transload_core::{Error, Result};

/// Points that failed, and why.
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

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Returns how many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how the operation of a reached point ended.
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
