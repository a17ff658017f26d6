//! Every row, folded by group.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{Page, curves, scrolling};
use crate::bench::{
    format::{Direction, is_count, number, quantity},
    paths::{Path, parse},
    results::ResultRow,
};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let mut groups: BTreeMap<&str, Vec<&ResultRow>> = BTreeMap::new();
    let paths: Vec<&Path> = page.paths.iter().filter(|of| curves::is_drawn(of)).collect();
    let (drawn, others): (Vec<&ResultRow>, Vec<_>) =
        page.results.rows.iter().partition(|row| is_drawn(&paths, row));
    for row in &others {
        let group = row.id.split_once('/').map_or(row.id.as_str(), |(group, _)| group);
        let group = if Direction::of(group).is_some() { "copies" } else { group };
        groups.entry(group).or_default().push(*row);
    }
    let verified = others.iter().filter(|row| row.verified && row.bytes > 0).count();
    html! {
        p {
            (page.results.rows.len() - drawn.len()) " rows"
            @if verified > 0 { ", " (verified) " of them with every byte compared" }
            ". Each group unfolds. The results file and its record have a row's full description."
            @if !drawn.is_empty() {
                " " (drawn.len()) " more are those of each method, path and size: the charts above have them, their values in the charts' descriptions."
            }
        }
        @for (group, rows) in &groups {
            details {
                summary { code { (group) } ", " (rows.len()) @if rows.len() == 1 { " row" } @else { " rows" } }
                (table(group, rows))
            }
        }
    }
}

/// Returns whether a chart has all that is known of a row.
fn is_drawn(drawn: &[&Path], row: &ResultRow) -> bool {
    let is_plain = row.goal.is_none() && row.reference.is_none() && (row.bytes == 0 || row.verified);
    let Some((path, method, bytes)) = row.id.strip_prefix("methods/").and_then(parse) else { return false };
    is_plain && drawn.iter().any(|of| of.name == path && of.at(&method, bytes).is_some())
}

fn table(group: &str, rows: &[&ResultRow]) -> Markup {
    let table = html! {
        table.rows {
            caption { "Rows of " (group) }
            thead {
                tr {
                    th scope="col" { "Row" }
                    @for name in ["Value", "p10 – p90"] { th.n scope="col" { (name) } }
                    th scope="col" { "Reference" } th.n scope="col" { "Ratio" } th scope="col" { "Goal" }
                }
            }
            tbody { @for row in rows { (line(row)) } }
        }
    };
    scrolling(&format!("Rows of {group}"), &table)
}

fn line(row: &ResultRow) -> Markup {
    let cells = cells(row);
    // A row ends with its last cell that says something.
    let filled = cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
    html! { tr { th scope="row" { (row.id) } @for cell in cells.iter().take(filled) { td { (cell) } } } }
}

fn cells(row: &ResultRow) -> [String; 5] {
    // What the software driver takes says nothing about hardware.
    let is_hidden = row.simulated && !is_count(&row.unit);
    let mut value = if is_hidden { "simulated".to_owned() } else { quantity(row.value, &row.unit) };
    if row.simulated && !is_hidden {
        value.push_str(" (simulated)");
    }
    if row.bytes > 0 && !row.verified {
        value.push_str(", NOT COMPARED");
    }
    let is_spread = !is_hidden && (row.p10, row.p90) != (row.value, row.value);
    let spread = is_spread.then(|| format!("{} – {}", number(row.p10), number(row.p90)));
    let reference = row.reference.as_ref().zip(row.reference_value).filter(|_| !is_hidden);
    let reference = reference.map(|(name, value)| format!("{name}: {}", number(value)));
    let ratio = row.ratio.filter(|_| !is_hidden).map(|ratio| format!("{ratio:.3}"));
    let outcome = row.met.map_or("", |is_met| if is_met { ": met" } else { ": missed" });
    let goal = row.goal.as_ref().map(|goal| format!("{goal}{outcome}"));
    [Some(value), spread, reference, ratio, goal].map(Option::unwrap_or_default)
}
