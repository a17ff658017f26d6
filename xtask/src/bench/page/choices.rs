//! The chosen method by path and size.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{Page, letter, scrolling, verdict::wrong};
use crate::bench::{
    format::{path, seconds, size},
    paths::{Choice, Path},
};

const METHODS: [(&str, &str); 5] = [
    ("DirectCopy", "one copy by the driver"),
    ("HostStaged", "in parts through pinned buffers, by several threads"),
    ("PeerToPeer", "between two GPUs"),
    ("UnifiedMemory", "migration of unified memory's pages"),
    ("ZeroCopy", "a kernel that reads or writes host memory"),
];

pub(super) fn section(page: &Page<'_>) -> Markup {
    let chosen = || page.paths.iter().filter(|path| !path.choices.is_empty());
    if chosen().next().is_none() {
        return html! { p { "This run does not contain which methods were chosen." } };
    }
    let sizes: BTreeSet<u64> =
        chosen().flat_map(|path| path.choices.iter().map(|choice| choice.bytes)).collect();
    let table = html! {
        table.matrix {
            caption { "Method chosen automatically, by path and size" }
            thead {
                tr { th scope="col" { "Path" } @for bytes in &sizes { th scope="col" { (size(*bytes)) } } }
            }
            tbody {
                @for of in chosen() {
                    tr {
                        th scope="row" { (path(&of.name)) @if of.simulated { " (simulated)" } }
                        @for bytes in &sizes { (cell(of.choices.iter().find(|choice| choice.bytes == *bytes))) }
                    }
                }
            }
        }
    };
    html! {
        ul.legend {
            @for (method, meaning) in METHODS {
                li { span.key.(letter(method).1) { (letter(method).0) } (method) ": " (meaning) }
            }
        }
        p.dim {
            "Hatched: another method, named in the cell, is faster by the given percentage and more than 3\u{a0}%. ZeroCopy is never \
             called better, since it takes time from kernels, which copies alone do not show."
        }
        (scrolling("Chosen methods", &table))
        (wrong_list(&wrong(page)))
    }
}

fn cell(choice: Option<&Choice>) -> Markup {
    let Some(choice) = choice else { return html! { td.none { "–" } } };
    let (short, class) = letter(&choice.method);
    match choice.wrong() {
        None => html! {
            td.(class) title=(choice.method) { span aria-hidden="true" { (short) } span.unseen { (choice.method) } }
        },
        Some(better) => {
            let slower = format!("{:.0}\u{a0}%", (better.ratio - 1.0) * 100.0);
            let text = format!("wrong: {} chosen, {} is {slower} faster", choice.method, better.method);
            html! {
                td.(class).wrong title=(text) {
                    b aria-hidden="true" { (short) " ✗" small { (letter(&better.method).0) " +" (slower) } }
                    span.unseen { (text) }
                }
            }
        }
    }
}

fn wrong_list(wrong: &[(&Path, &Choice)]) -> Markup {
    html! {
        @if !wrong.is_empty() {
            ul {
                @for (of, choice) in wrong.iter().take(super::SHOWN) {
                    @if let Some(better) = choice.wrong() {
                        li {
                            (size(choice.bytes)) " " (path(&of.name)) ": " (choice.method) " was chosen and takes "
                            (seconds(better.seconds[0])) "; " (better.method) " takes " (seconds(better.seconds[1])) "."
                            @if better.is_uncertain { " The p10–p90 ranges overlap, so noise may explain it." }
                        }
                    }
                }
            }
        }
    }
}
