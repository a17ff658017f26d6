//! Every row, folded by group.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{Page, scrolling};
use crate::bench::{
    format::{Direction, is_count, number, quantity},
    results::ResultRow,
};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let mut groups: BTreeMap<&str, Vec<&ResultRow>> = BTreeMap::new();
    for row in &page.results.rows {
        let group = row.id.split_once('/').map_or(row.id.as_str(), |(group, _)| group);
        let group = if Direction::of(group).is_some() { "copies" } else { group };
        groups.entry(group).or_default().push(row);
    }
    let verified = page.results.rows.iter().filter(|row| row.verified && row.bytes > 0).count();
    html! {
        p {
            (page.results.rows.len()) " rows"
            @if verified > 0 { ", " (verified) " of them with every byte compared" }
            ". Each group unfolds."
        }
        @for (group, rows) in &groups {
            details { summary { code { (group) } ", " (rows.len()) " rows" } (table(group, rows)) }
        }
    }
}

fn table(group: &str, rows: &[&ResultRow]) -> Markup {
    let table = html! {
        table {
            caption { "Rows of " (group) }
            thead {
                tr {
                    th scope="col" { "Row" }
                    @for name in ["Value", "p10 – p90"] { th.n scope="col" { (name) } }
                    th scope="col" { "Reference" } th.n scope="col" { "Ratio" } th scope="col" { "Goal" } th scope="col" { "Bytes" }
                }
            }
            tbody { @for row in rows { (line(row)) } }
        }
    };
    scrolling(&format!("Rows of {group}"), &table)
}

fn line(row: &ResultRow) -> Markup {
    // What the software driver takes says nothing about hardware, and some descriptions contain times.
    let is_hidden = row.simulated && !is_count(&row.unit);
    let nothing = || "–".to_owned();
    html! {
        tr {
            th scope="row" {
                code { (row.id) }
                @if !row.simulated && !row.path.is_empty() { br; span.dim { (row.path) ", " (row.method) } }
            }
            @if is_hidden {
                td.n { "simulated" } td.n { "–" } td { "–" } td.n { "–" }
            } @else {
                td.n { (quantity(row.value, &row.unit)) @if row.simulated { " (simulated)" } }
                td.n { (number(row.p10)) " – " (number(row.p90)) }
                td {
                    @match (&row.reference, row.reference_value) {
                        (Some(name), Some(value)) => { (name) ": " (number(value)) },
                        _ => "–",
                    }
                }
                td.n { (row.ratio.map_or_else(nothing, |ratio| format!("{ratio:.3}"))) }
            }
            td {
                (row.goal.as_deref().unwrap_or("–"))
                @match row.met { Some(true) => ": met", Some(false) => ": missed", None => "" }
            }
            td { @if row.bytes == 0 { "–" } @else if row.verified { "compared" } @else { "NOT COMPARED" } }
        }
    }
}
