//! Compares variants of one operation: the basis of the rows of streams, memory and scaling.

pub(crate) mod concurrent;
pub(crate) mod cudarc_baseline;
mod fixture;
mod interleaved;
pub(crate) mod pairs;

use anyhow::Result;

use crate::{cuda::Session, options::Options, row::Row};

pub(crate) use fixture::Fixture;
pub(crate) use interleaved::{Comparison, Variant, Verify};

/// Name and function of a part of a group.
type Part = (&'static str, fn(&Fixture<'_>) -> Result<Vec<Row>>);
/// Name and parts of a group.
pub(crate) type Parts = (&'static str, &'static [Part]);

/// Measures all parts of a group on the session's device. A part that fails loses its rows only; the error goes to
/// `failures`.
///
/// # Errors
/// If the library or the driver fails before the first part or after the last.
pub(crate) fn rows(
    (group, parts): Parts,
    (options, session, ordinal): (&Options, &Session, u32),
    begin: &dyn Fn(&str),
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let fixture = Fixture::new(group, options, session, ordinal)?;
    let mut rows = Vec::new();
    for (name, part) in parts.iter().filter(|(name, _)| fixture.wants(name)) {
        begin(&format!("{group}, {name}"));
        match part(&fixture) {
            Ok(more) => rows.extend(more.into_iter().map(|row| row.of_part(name))),
            Err(error) => failures.push(format!("{group}, {name}: {error:#}")),
        }
    }
    fixture.finish()?;
    Ok(rows)
}

/// Runs a group on the software driver: every part has rows, with unique ids and without goals. Returns them.
#[cfg(test)]
pub(crate) fn tested_on_the_software_driver((group, parts): Parts) -> Vec<Row> {
    use std::{cell::Cell, collections::BTreeSet};

    use clap::Parser as _;

    let ordinal = crate::cuda::simulate(7).unwrap();
    let session = Session::open(ordinal).unwrap();
    let options = Options::parse_from(["transload-bench", "--quick", "--simulate", "--repetitions", "2"]);
    let (mut failures, begun) = (Vec::new(), Cell::new(0));
    let begin = |_: &str| begun.set(begun.get() + 1);
    let rows = rows((group, parts), (&options, &session, ordinal), &begin, &mut failures).unwrap();
    assert_eq!((failures, begun.get()), (Vec::new(), parts.len()));
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), rows.len(), "ids are unique");
    for row in &rows {
        assert!(row.id.is_ascii() && row.id.starts_with(&format!("{group}/")), "{}", row.id);
        assert!(row.simulated && row.goal.is_none(), "{}", row.id);
        assert!(parts.iter().any(|(part, _)| *part == row.part), "{} is of the part {}", row.id, row.part);
        let figures = [row.value, row.p10, row.p50, row.p90];
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure >= 0.0), "{}: {figures:?}", row.id);
        assert!(row.verified || row.bytes == 0, "{} moved bytes that were not verified", row.id);
        assert!(!row.id.contains("cudarc"), "cudarc cannot use the software driver");
    }
    rows
}
