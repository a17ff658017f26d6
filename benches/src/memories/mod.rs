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

use crate::comparison::Parts;

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "memory",
    &[
        ("prefetching", migrating::rows),
        ("advising", advising::rows),
        ("filling", filling::rows),
        ("pinned allocation", pinning::rows),
        ("the same work by other ways", round_trip::rows),
        ("automatic prefetch", predicting::rows),
        ("prediction of short launches", short_launches::rows),
    ],
);

#[cfg(test)]
mod tests {
    use crate::comparison::tested_on_the_software_driver;

    use super::*;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver(PARTS);
    }
}
