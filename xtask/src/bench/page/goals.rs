//! Goals of speed, missed ones first.

use maud::{Markup, html};

use super::{Page, SHOWN, scrolling};
use crate::bench::{
    format::{percent, quantity},
    goals::{beyond, is_missed},
    results::{ResultRow, Results},
};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let missed: Vec<&ResultRow> = missed(page.results).into_iter().map(|(row, _)| row).collect();
    let near = near(page.results);
    let met = with_goal(page.results).filter(|row| row.met == Some(true)).count();
    if missed.is_empty() && near.is_empty() && met == 0 {
        return html! { p { "No row of this run has a goal." } };
    }
    let (shown, more) = missed.split_at(missed.len().min(SHOWN));
    html! {
        @if missed.is_empty() && near.is_empty() { p { "All " (met) " goals are met: " (where_met()) } }
        @else if missed.is_empty() { p { "No goal is missed." } }
        @else { (table(&format!("{} missed goals, the farthest first", missed.len()), shown)) }
        @if !more.is_empty() {
            details { summary { (more.len()) " more missed goals" } (table("More missed goals", more)) }
        }
        @if !near.is_empty() {
            details { summary { (near.len()) " goals that are near: the spread reaches them" } (table("Near goals", &near)) }
        }
        @if met > 0 && met < with_goal(page.results).count() {
            p { (met) @if met == 1 { " goal is met: " } @else { " goals are met; " } (where_met()) }
        }
    }
}

fn where_met() -> Markup {
    html! { "see " a href="#rows" { "all rows" } "." }
}

/// Returns the rows with goals. What is simulated has none.
pub(super) fn with_goal(results: &Results) -> impl Iterator<Item = &ResultRow> {
    results.rows.iter().filter(|row| row.met.is_some() && !row.simulated)
}

/// Returns the rows whose medians miss their goals, and whose spreads reach them.
pub(super) fn near(results: &Results) -> Vec<&ResultRow> {
    with_goal(results).filter(|row| row.met == Some(false) && !is_missed(row)).collect()
}

/// Returns the rows that miss their goals, each with its value over the goal's, farthest first.
pub(super) fn missed(results: &Results) -> Vec<(&ResultRow, f64)> {
    let missed = with_goal(results).filter(|row| is_missed(row));
    let mut missed: Vec<_> = missed.map(|row| (row, beyond(row))).collect();
    missed.sort_by(|a, b| b.1.total_cmp(&a.1));
    missed
}

fn table(caption: &str, rows: &[&ResultRow]) -> Markup {
    let table = html! {
        table {
            caption { (caption) }
            thead {
                tr {
                    th scope="col" { "Measurement" }
                    th.n scope="col" { "Value" } th scope="col" { "Reference" } th.n scope="col" { "Ratio" }
                    th scope="col" { "Goal" } th scope="col" { "Outcome" }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        th scope="row" { code { (row.id) } }
                        td.n { (quantity(row.value, &row.unit)) }
                        td {
                            @if let Some(name) = &row.reference { (name) ": " }
                            (row.reference_value.map_or_else(|| "–".to_owned(), |value| quantity(value, &row.unit)))
                        }
                        td.n { (row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))) }
                        td.goal { (row.goal.as_deref().unwrap_or_default()) }
                        td.miss.n {
                            @if is_missed(row) { "missed" } @else { "near" }
                            // None of a goal of 0.
                            @if beyond(row).is_finite() { ", " (percent(beyond(row))) }
                        }
                    }
                }
            }
        }
    };
    scrolling(caption, &table)
}
