//! Rows of memory: what prefetching, advising, filling and pinning cost beside the raw driver, and when unified memory is worth
//! it: the same work on it and on explicit copies.

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

/// All rows of memory on the device with this ordinal, which is the session's; see `comparison::rows`.
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
    fn without_a_gpu_every_part_runs_simulated_and_its_rows_promise_nothing() {
        tested_on_the_software_driver("memory", PARTS.len(), rows);
    }
}
