//! Copies of pageable memory by a process that is kept to few processors, next to the best threads by hand on the same ones: their rates, and
//! the seconds of all processors for each GB. `--processors` says how many; without it there are no rows.

use std::{thread, time::Instant};

use anyhow::{Context as _, Result};
use transload_core::MemoryKind;

use super::{
    Library,
    large::{Pair, best, by_hand, name, process_seconds, wait_for_idle_threads},
};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    reference::StagedForm,
    row::{Goal, Row},
};

const SIZES: [usize; 2] = [48 << 20, 256 << 20];
/// Goal: rate over that of the best threads by hand.
const LEAST: f64 = 0.9;
const MIB: usize = 1 << 20;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let Some(processors) = fixture.processors() else { return Ok(Vec::new()) };
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    for (up, bytes) in [true, false].into_iter().flat_map(|up| SIZES.map(|bytes| (up, bytes))) {
        let pair = Pair::new(&library, MemoryKind::Pageable, up, fixture.bytes(bytes))?;
        rows.extend(of_pair(fixture, &library, processors, &pair)?);
    }
    library.finish()?;
    Ok(rows)
}

/// Returns the forms of threads by hand of which the fastest is the reference.
fn forms(processors: usize) -> Vec<StagedForm> {
    // As on many processors.
    let mut forms = vec![StagedForm { threads: 8, bytes: 4 * MIB, sleeps: false }];
    for (each, bytes) in [1, 2].into_iter().flat_map(|each| [MIB, 4 * MIB].map(|bytes| (each, bytes))) {
        let threads = each * processors;
        forms.extend([true, false].map(|sleeps| StagedForm { threads, bytes, sleeps }));
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

fn of_pair(fixture: &Fixture<'_>, library: &Library, processors: usize, pair: &Pair) -> Result<Vec<Row>> {
    let bytes = pair.content.len();
    let ours = || Ok(library.manager.copy(&pair.src, &pair.dst).wait()?.method);
    let method = format!("copy().wait(), {}", ours()?);
    let gigabytes = bytes as f64 / 1e9;
    let rate = |copy: &dyn Fn() -> Result<()>| {
        // Threads of the variant before spin for a while, here on the processors of this one.
        let _mostly = wait_for_idle_threads()?;
        let begun = Instant::now();
        copy().map(|()| gigabytes / begun.elapsed().as_secs_f64())
    };
    let work = |copy: &dyn Fn() -> Result<()>| {
        let _mostly = wait_for_idle_threads()?;
        let begun = process_seconds()?;
        copy()?;
        Ok((process_seconds()? - begun) / gigabytes)
    };
    let way = if pair.up { "up" } else { "down" };
    let usable = thread::available_parallelism().map_or(1, usize::from);
    let comparison = |id: &str, what: &str, unit| Comparison {
        id: format!("confined-{processors}/{id}{way}/{bytes}"),
        what: format!("{what} of {bytes} bytes of pageable memory {way} on {usable} processors"),
        unit,
        bytes: bytes as u64,
        repetitions: fixture.repetitions(30),
    };
    let forms = forms(processors);
    let mut variants = Vec::new();
    for form in &forms {
        let (name, copy) = (name(*form), by_hand(fixture, pair, *form)?);
        variants.push(Variant::new(&name, &name, move || rate(&copy)).verified_by(pair));
    }
    let copy = || ours().map(drop);
    variants.push(
        Variant::new("copy", &method, || rate(&copy)).goal(Goal::RatioAtLeast(LEAST)).verified_by(pair),
    );
    let mut rows = comparison("", "a copy", "GB/s").rows_over_best(
        forms.len(),
        fixture.group,
        fixture.is_simulated(),
        variants,
    )?;
    if !wait_for_idle_threads()? {
        eprintln!("no processor time of confined copies: a thread of the process does not sleep");
        return Ok(rows);
    }
    let best_name = rows.first().and_then(|row| row.reference.clone()).context("a reference")?;
    let by_hand = best(fixture, pair, &rows, &forms)?;
    let variants = vec![
        Variant::new("threads", &best_name, || work(&by_hand)).verified_by(pair),
        Variant::new("copy", &method, || work(&copy)).verified_by(pair),
    ];
    rows.extend(
        comparison("processor-time/", "the processor time of a copy", "s/GB").rows(fixture, variants)?,
    );
    Ok(rows)
}
