//! The page of one run: one HTML file without external resources, which a browser and a printer can show.

mod changes;
mod chart;
mod choices;
mod curves;
mod directions;
mod goals;
mod rest;
mod verdict;

#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    compare::{Comparison, compare},
    paths::{self, Path},
    results::Results,
};

const STYLE: &str = include_str!("style.css");
/// Rows of a table that are not folded.
const SHOWN: usize = 30;

/// What every section reads.
struct Page<'a> {
    results: &'a Results,
    paths: Vec<Path>,
    comparison: Option<Comparison>,
}

impl<'a> Page<'a> {
    fn new(results: &'a Results, earlier: Option<&Results>) -> Self {
        let comparison = earlier.map(|earlier| compare(results, earlier));
        Self { results, paths: paths::of(results), comparison }
    }
}

/// Returns the verdict, missed goals, and what changed since an earlier run if given, for a file of Markdown, which may contain such
/// elements.
pub(crate) fn summary(results: &Results, earlier: Option<&Results>) -> String {
    let page = Page::new(results, earlier);
    let text = html! {
        h2 { "Benchmark" } (verdict::section(&page)) (facts(results)) (command(results))
        @if !goals::missed(results).is_empty() { h3 { "Goals" } (goals::section(&page)) }
        @if earlier.is_some() { h3 { "Changes" } (changes::section(&page)) }
    };
    text.into_string() + "\n"
}

/// Returns the page, with the changes since an earlier run if given.
pub(crate) fn html(results: &Results, earlier: Option<&Results>) -> String {
    let page = Page::new(results, earlier);
    let sections = [
        ("verdict", "Verdict", verdict::section(&page)),
        ("directions", "Directions", directions::section(&page)),
        ("choices", "Chosen methods", choices::section(&page)),
        ("paths", "Paths", curves::section(&page)),
        ("goals", "Goals", goals::section(&page)),
        ("changes", "Changes", changes::section(&page)),
        ("rows", "All rows", rest::section(&page)),
    ];
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Transload: measured copies" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#verdict" { "Skip to the verdict" }
                header { h1 { "Transload: measured copies" } (facts(results)) }
                nav aria-label="Sections" {
                    ul { @for (id, title, _) in &sections { li { a href={ "#" (id) } { (title) } } } }
                }
                main {
                    @for (id, title, content) in &sections {
                        section id=(id) aria-labelledby={ (id) "-title" } {
                            h2 id={ (id) "-title" } { (title) }
                            (content)
                        }
                    }
                }
                footer { (command(results)) }
            }
        }
    }
    .into_string()
}

fn facts(results: &Results) -> Markup {
    let unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    html! {
        p.facts {
            (results.hardware) "; driver " (unknown(&results.driver)) ", CUDA " (unknown(&results.cuda)) "; "
            (results.cpu) "; " (results.date) ", commit " code { (unknown(&results.commit)) } "."
        }
        @if results.simulated {
            p.simulated {
                strong { "Simulated. " }
                "A software driver took the place of a GPU: choices, counts and compared bytes hold, times do not exist. \
                 Rates are shown of the real host only."
            }
        }
    }
}

/// What was run, which may be long.
fn command(results: &Results) -> Markup {
    html! { p.facts { "Command: " code { (results.command) } } }
}

/// A table that scrolls in a box of its own, also by keyboard.
fn scrolling(label: &str, table: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { (table) } }
}

/// The letter that stands for a method, and its class.
fn letter(method: &str) -> (String, &'static str) {
    let class = match method {
        "DirectCopy" => "m-d",
        "HostStaged" => "m-s",
        "PeerToPeer" => "m-p",
        "UnifiedMemory" => "m-u",
        "ZeroCopy" => "m-z",
        _ => "m-x",
    };
    let first = if class == "m-s" { Some('S') } else { method.chars().find(char::is_ascii_alphanumeric) };
    (first.unwrap_or('?').to_string(), class)
}
