//! A card for each direction: rate, share of the raw driver, time of 4 KiB, and the difference to an earlier run.

use maud::{Markup, html};

use super::Page;
use crate::bench::{
    format::{Direction, path, percent, quantity, size},
    results::ResultRow,
};

const SMALL: u64 = 4096;

pub(super) fn section(page: &Page<'_>) -> Markup {
    html! {
        p.dim {
            "What one copy with an automatically chosen method reaches, next to the raw driver's copy in the same run \
             (memcpy within the host). 100\u{a0}% is equal."
        }
        ul.cards { @for direction in Direction::ALL { li { h3 { (direction.name()) } (card(page, direction)) } } }
    }
}

/// A row of automatic choice: its path and size.
struct Copy<'a> {
    path: &'a str,
    bytes: u64,
    row: &'a ResultRow,
}

/// Returns the rows `PATH/METHOD/BYTES` of a direction.
fn copies<'a>(page: &'a Page<'_>, direction: Direction) -> Vec<Copy<'a>> {
    let parse = |row: &'a ResultRow| {
        let (path, rest) = row.id.split_once('/')?;
        let bytes = rest.split_once('/')?.1.parse().ok()?;
        (Direction::of(path) == Some(direction)).then_some(Copy { path, bytes, row })
    };
    page.results.rows.iter().filter_map(parse).collect()
}

fn card(page: &Page<'_>, direction: Direction) -> Markup {
    let copies = copies(page, direction);
    let of_direction = page.paths.iter().filter(|path| Direction::of(&path.name) == Some(direction));
    let choices: usize = of_direction.map(|path| path.choices.len()).sum();
    if let Some(simulated) = copies.iter().find(|copy| copy.row.simulated) {
        let is_here = |row: &&ResultRow| row.id.contains(simulated.path) && row.verified && row.bytes > 0;
        let verified = page.results.rows.iter().filter(is_here).count();
        return html! {
            p.big { "simulated" }
            p.dim { (choices) " choices of a method; every byte compared in " (verified) " measurements " (path(simulated.path)) }
        };
    }
    let mut rates: Vec<&Copy<'_>> = Vec::new();
    for copy in copies.iter().filter(|copy| copy.row.unit == "GB/s") {
        match rates.iter_mut().find(|known| known.path == copy.path) {
            Some(known) if known.bytes < copy.bytes => *known = copy,
            Some(_) => {}
            None => rates.push(copy),
        }
    }
    let Some((first, others)) = rates.split_first() else {
        return html! { p.dim { "Not measured in this run." } };
    };
    let small = copies.iter().find(|copy| copy.path == first.path && copy.bytes == SMALL);
    let before = |copy: &Copy<'_>| page.comparison.as_ref()?.factor(&copy.row.id);
    html! {
        p.big { (quantity(first.row.value, &first.row.unit)) }
        p.dim { (size(first.bytes)) ", " (path(first.path)) }
        dl {
            div { dt { "Of the raw rate" } dd { (share(first.row)) } }
            @if let Some(small) = small {
                div {
                    dt { "Time of 4 KiB" }
                    dd {
                        (quantity(small.row.value, &small.row.unit))
                        @if let Some(raw) = small.row.reference_value { " (raw " (quantity(raw, &small.row.unit)) ")" }
                    }
                }
            }
            div {
                dt { "Since the earlier run" }
                dd {
                    @match before(first) {
                        Some(factor) => { "rate " (percent(factor)) },
                        None => "none given",
                    }
                    @if let Some(factor) = small.and_then(before) { ", time of 4 KiB " (percent(1.0 / factor)) }
                }
            }
            @for copy in others {
                div { dt { (path(copy.path)) } dd { (quantity(copy.row.value, &copy.row.unit)) ", " (share(copy.row)) } }
            }
        }
    }
}

fn share(row: &ResultRow) -> String {
    row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.1}\u{a0}%", ratio * 100.0))
}
