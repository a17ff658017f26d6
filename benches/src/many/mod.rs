//! Rows of many pieces at once between a pinned and a device pool: batches by copy engines and by one copy kernel, next to a loop of
//! raw copies, the raw batch call, and a copy kernel over a list of pieces launched by hand.

mod pieces;
mod raw_list;
mod shapes;

use anyhow::Result;

use crate::{
    comparison::{self, Fixture, Part},
    cuda::Session,
    options::Options,
    row::Row,
};

/// Every part, in order.
const PARTS: [Part; 2] =
    [("up", |fixture| rows_of(fixture, true)), ("down", |fixture| rows_of(fixture, false))];

/// Number and length in bytes of the pieces, and the goals in ms for a copy kernel up.
const SHAPES: [(usize, usize, Option<f64>); 5] = [
    (1_000, 4 << 10, Some(0.13)),
    (10_000, 4 << 10, Some(1.1)),
    (4_096, 32 << 10, None),
    (1_000, 64 << 10, None),
    (300, 1 << 20, None),
];

fn rows_of(fixture: &Fixture<'_>, up: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (count, bytes, goal) in SHAPES {
        rows.extend(shapes::rows(fixture, (fixture.amount(count), bytes), up, goal)?);
    }
    Ok(rows)
}

/// All rows of many pieces on the session's device; see `comparison::rows`.
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
    comparison::rows("many", &PARTS, (options, session, ordinal), begin, failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver("many", PARTS.len(), rows);
    }
}
