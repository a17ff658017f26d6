//! Goals of speed, missed ones first.

use maud::{Markup, html};

use super::{Page, SHOWN, scrolling};
use crate::bench::{
    format::{percent, quantity},
    results::{ResultRow, Results},
};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let missed: Vec<&ResultRow> = missed(page.results).into_iter().map(|(row, _)| row).collect();
    let met: Vec<&ResultRow> = with_goal(page.results).filter(|row| row.met == Some(true)).collect();
    if missed.is_empty() && met.is_empty() {
        return html! { p { "No row of this run has a goal." } };
    }
    let (shown, more) = missed.split_at(missed.len().min(SHOWN));
    html! {
        @if missed.is_empty() { p { "All " (met.len()) " goals are met." } }
        @else { (table(&format!("{} missed goals, the farthest first", missed.len()), shown)) }
        @if !more.is_empty() {
            details { summary { (more.len()) " more missed goals" } (table("More missed goals", more)) }
        }
        @if !met.is_empty() {
            details { summary { (met.len()) " goals that are met" } (table("Met goals", &met)) }
        }
    }
}

/// Returns the rows with goals. What is simulated has none.
pub(super) fn with_goal(results: &Results) -> impl Iterator<Item = &ResultRow> {
    results.rows.iter().filter(|row| row.met.is_some() && !row.simulated)
}

/// Returns the rows that miss their goals, each with its value over the goal's, farthest first.
pub(super) fn missed(results: &Results) -> Vec<(&ResultRow, f64)> {
    let missed = with_goal(results).filter(|row| row.met == Some(false));
    let mut missed: Vec<_> = missed.map(|row| (row, beyond(row))).collect();
    missed.sort_by(|a, b| b.1.total_cmp(&a.1));
    missed
}

/// Returns by what factor a row misses its goal, or the farthest of several.
fn beyond(row: &ResultRow) -> f64 {
    let goals = row.goal.as_deref().unwrap_or_default().split(" and ");
    goals.map(|goal| beyond_one(row, goal)).max_by(f64::total_cmp).unwrap_or(1.0)
}

/// Returns the same of one goal; 1 if its text has another form than those of the benchmark.
fn beyond_one(row: &ResultRow, goal: &str) -> f64 {
    let Some((kind, rest)) = goal.split_once("= ") else { return 1.0 };
    let plus = rest.strip_prefix("reference + ");
    let first = plus.unwrap_or(rest).split_whitespace().next();
    let Some(limit) = first.and_then(|number| number.parse::<f64>().ok()) else { return 1.0 };
    let value = match (plus, kind.split_once(' ')) {
        (Some(_), _) => row.value / (row.reference_value.unwrap_or_default() + limit),
        (None, Some(_)) => row.ratio.unwrap_or(limit) / limit,
        (None, None) => row.value / limit,
    };
    if kind.ends_with('>') { 1.0 / value } else { value }
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
                        @if row.met == Some(false) { td.miss.n { "missed, " (percent(beyond(row))) } }
                        @else { td.good { "met" } }
                    }
                }
            }
        }
    };
    scrolling(caption, &table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::hardware_sample;

    #[test]
    fn distance_from_a_goal_is_read_from_its_text() {
        let mut row = hardware_sample().rows.remove(0);
        (row.value, row.reference_value, row.ratio) = (240.0, Some(100.0), Some(2.4));
        for (goal, factor) in [
            ("time <= 1.2 x reference", 2.0),
            ("rate >= 4.8 x reference", 2.0),
            (">= 480 GB/s", 2.0),
            ("<= 120 us", 2.0),
            ("<= reference + 20 us", 2.0),
            ("time <= 3 x reference and <= 120 us", 2.0),
            ("as fast as possible", 1.0),
        ] {
            row.goal = Some(goal.to_owned());
            assert!((beyond(&row) - factor).abs() < 1e-9, "{goal}: {}", beyond(&row));
        }
    }
}
