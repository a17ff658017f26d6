//! Rows of memory: costs of prefetching, advising, filling and pinning compared with the raw driver, and the same work on
//! unified memory and with explicit copies.

mod advising;
mod filling;
mod migrating;
mod pinning;
mod predicting;
mod round_trip;
mod short_launches;
mod upload_loop;

use anyhow::Result;

use crate::{
    comparison::{self, Part},
    cuda::Session,
    options::Options,
    row::Row,
};

/// Every part, in order.
const PARTS: [Part; 7] = [
    ("prefetching", migrating::rows),
    ("advising", advising::rows),
    ("filling", filling::rows),
    ("pinned allocation", pinning::rows),
    ("the same work by other ways", round_trip::rows),
    ("automatic prefetch", predicting::rows),
    ("prediction of short launches", short_launches::rows),
];

/// All rows of memory on the session's device; see `comparison::rows`.
///
/// # Errors
/// If the library or the driver fails before the first part or after the last.
pub fn rows(
    options: &Options,
    session: &Session,
    ordinal: u32,
    begin: &dyn Fn(&str),
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    comparison::rows("memory", &PARTS, (options, session, ordinal), begin, failures)
}

#[cfg(test)]
mod tests {
    use crate::comparison::tested_on_the_software_driver;

    use super::*;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver("memory", PARTS.len(), rows);
    }
}
