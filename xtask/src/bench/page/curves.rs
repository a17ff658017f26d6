//! Bandwidth and time over size of each path, with break points and rejections.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::{
    Page,
    chart::{Axis, svg},
    letter,
};
use crate::bench::{
    format::{about, path, size},
    paths::{Change, Path},
};

pub(super) fn section(page: &Page<'_>) -> Markup {
    html! {
        p.dim {
            "Each method is a line with the letter of the legend above; the shade around it is its p10–p90 range. The thick grey line \
             follows the chosen method. Broken lines are references. Upright lines: where the choice changes (solid, “plan”), and where \
             the fastest method changes by the times of this run (dotted, “best”). Both axes are logarithmic."
        }
        @for (index, of) in page.paths.iter().enumerate() { (one(index, of)) }
    }
}

/// Returns whether a path has charts.
pub(super) fn is_drawn(of: &Path) -> bool {
    !of.simulated && svg(0, of, Axis::Time).is_some()
}

fn one(index: usize, of: &Path) -> Markup {
    let charts = Axis::BOTH.map(|axis| if of.simulated { None } else { svg(index, of, axis) });
    html! {
        article.path aria-labelledby={ "path-" (index) } {
            h3 id={ "path-" (index) } { (path(&of.name)) @if of.simulated { " (simulated)" } }
            @if charts.iter().any(Option::is_some) {
                figure { div.charts { @for chart in charts.iter().flatten() { (chart) } } (legend(of)) }
            }
            (facts(of))
        }
    }
}

fn legend(of: &Path) -> Markup {
    let keys: Vec<_> = of.methods.keys().map(|method| (letter(method).0, method)).collect();
    html! {
        figcaption {
            @for (index, (short, method)) in keys.iter().enumerate() { @if index > 0 { ", " } (short) " " (method) }
            @for (name, kind) in of.references.keys().zip(["dashed", "dotted", "dash-dotted"]) { "; " (kind) ": " (name) }
            "."
        }
    }
}

fn facts(of: &Path) -> Markup {
    // One line for each reason: its methods, and the sizes if not all.
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let tried: BTreeSet<u64> = of
        .choices
        .iter()
        .map(|choice| choice.bytes)
        .chain(of.rejections.values().flatten().copied())
        .collect();
    for ((method, reason), sizes) in &of.rejections {
        let sizes = intervals(sizes, &tried).map_or_else(String::new, |sizes| format!(" at {sizes}"));
        reasons.entry(reason).or_default().push(format!("{method}{sizes}"));
    }
    html! {
        ul.facts {
            @if of.simulated && !of.choices.is_empty() { li { "Chosen: " (chosen(of)) "." } }
            @if !of.planned.is_empty() || !of.measured.is_empty() || !of.calibrated.is_empty() {
                li {
                    "The choice changes " (breaks(&of.planned))
                    @if !of.simulated { "; the fastest method by this run's times changes " (breaks(&of.measured)) }
                    @if !of.calibrated.is_empty() && !of.simulated {
                        "; by a calibration at "
                        (of.calibrated.iter().map(|bytes| about(*bytes)).collect::<Vec<_>>().join(", "))
                    }
                    "."
                }
            }
            @if !reasons.is_empty() {
                li {
                    "Rejected: "
                    @for (index, (reason, methods)) in reasons.iter().enumerate() {
                        @if index > 0 { "; " }
                        (methods.join(", ")) " (" (reason) ")"
                    }
                    "."
                }
            }
        }
    }
}

/// Returns some of the sizes at which methods were tried as intervals; `None` if they are all.
fn intervals(sizes: &[u64], tried: &BTreeSet<u64>) -> Option<String> {
    let mut intervals: Vec<(u64, u64)> = Vec::new();
    let mut is_open = false;
    for bytes in tried {
        let is_in = sizes.contains(bytes);
        match intervals.last_mut() {
            Some(last) if is_in && is_open => last.1 = *bytes,
            _ if is_in => intervals.push((*bytes, *bytes)),
            _ => {}
        }
        is_open = is_in;
    }
    let text = |(low, high): &(u64, u64)| match low == high {
        true => size(*low),
        false => format!("{} to {}", size(*low), size(*high)),
    };
    let is_all = tried.iter().all(|bytes| sizes.contains(bytes));
    (!is_all).then(|| intervals.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn chosen(of: &Path) -> String {
    let mut runs: Vec<(&str, u64)> = Vec::new();
    for choice in &of.choices {
        if runs.last().is_none_or(|(method, _)| *method != choice.method) {
            runs.push((&choice.method, choice.bytes));
        }
    }
    let text = |(method, bytes): &(&str, u64)| format!("{method} from {}", size(*bytes));
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn breaks(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nowhere".to_owned();
    }
    let text = |change: &Change| {
        let at = if change.low == change.high {
            format!("at {}", about(change.low))
        } else {
            format!("between {} and {}", size(change.low), size(change.high))
        };
        format!("{at} from {} to {}", change.from, change.to)
    };
    changes.iter().map(text).collect::<Vec<_>>().join(", ")
}
