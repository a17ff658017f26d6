//! Changes since an earlier run.

use maud::{Markup, html};

use super::{Page, scrolling};
use crate::bench::{
    compare::Change,
    format::{path, percent, quantity, size},
};

/// Changes of each kind that are not folded.
const FEW: usize = 20;

pub(super) fn section(page: &Page<'_>) -> Markup {
    let Some(comparison) = &page.comparison else {
        return html! { p { "No earlier run was given: " code { "cargo xtask bench --compare OLD.json" } " adds it." } };
    };
    html! {
        p {
            "Compared with the run of " (comparison.earlier) ". A measurement counts as changed if its median differs by more than 5 % \
             and lies outside the other run's p10–p90 range; one measured only once, by more than 20 %. Where a reference was measured \
             in both runs, the ratio to it must have changed as much: else the machine did. A reference that is the library itself is a measurement \
             of its own."
        }
        @if let Some(other) = &comparison.other_machine {
            p.simulated { strong { "Other machine. " } "The differences inform only (" (other) ")." }
        }
        @for (name, changes) in [("worse", &comparison.worse), ("better", &comparison.better)] {
            (list(name, changes))
        }
        @if !comparison.gone.is_empty() {
            details {
                summary { (comparison.gone.len()) " measurements of that run are not in this one" }
                ul { @for id in &comparison.gone { li { code { (id) } } } }
            }
        }
        @if !comparison.choices.is_empty() {
            h3 { "Choices that differ" }
            ul {
                @for (of, bytes, before, now) in comparison.choices.iter().take(FEW) {
                    li { (size(*bytes)) " " (path(of)) ": " (before) " then, " (now) " now" }
                }
                @if comparison.choices.len() > FEW { li { "and " (comparison.choices.len() - FEW) " more" } }
            }
        }
    }
}

fn list(name: &str, changes: &[Change]) -> Markup {
    let (shown, more) = changes.split_at(changes.len().min(FEW));
    html! {
        @if changes.is_empty() { p { "No measurement is " (name) "." } }
        @else { (table(&format!("{} measurements that are {name}", changes.len()), shown)) }
        @if !more.is_empty() {
            details { summary { (more.len()) " more that are " (name) } (table(&format!("More that are {name}"), more)) }
        }
    }
}

fn table(caption: &str, changes: &[Change]) -> Markup {
    let table = html! {
        table {
            caption { (caption) }
            thead {
                tr {
                    th scope="col" { "Measurement" }
                    @for name in ["Then", "Now", "Change"] { th.n scope="col" { (name) } }
                }
            }
            tbody {
                @for change in changes {
                    tr {
                        th scope="row" { code { (change.id) } }
                        td.n { (quantity(change.before, &change.unit)) }
                        td.n { (quantity(change.after, &change.unit)) }
                        td.n.miss[change.factor < 1.0].good[change.factor > 1.0] {
                            @if change.before == 0.0 { "from 0" } @else { (percent(change.after / change.before)) }
                        }
                    }
                }
            }
        }
    };
    scrolling(caption, &table)
}
