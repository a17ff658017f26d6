//! The verdict: goals, choices and changes, in sentences with numbers.

use maud::{Markup, html};

use super::{
    Page,
    goals::{missed, near, with_goal},
};
use crate::bench::{
    format::{path, quantity, size},
    paths::{Choice, Path},
};

/// Failures, and wrong choices, that are described, the worst first.
const NAMED: usize = 2;

pub(super) fn section(page: &Page<'_>) -> Markup {
    let wrong = wrong(page);
    let is_worse =
        page.comparison.as_ref().is_some_and(|it| it.other_machine.is_none() && !it.worse.is_empty());
    let failed = page.results.failed();
    let is_bad = !failed.is_empty() || !missed(page.results).is_empty() || !wrong.is_empty() || is_worse;
    html! {
        p.verdict.bad[is_bad] {
            (failures(&failed))
            @if page.results.simulated { "This run is simulated. " } (goals(page)) " " (choices(page, &wrong)) " " (changes(page))
        }
    }
}

/// Errors may have several lines, which would end the block of Markdown that the summary is.
fn failures(failed: &[String]) -> Markup {
    let one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let named: Vec<_> = failed.iter().take(NAMED).map(one_line).collect();
    html! {
        @if !failed.is_empty() {
            strong { (failed.len()) @if failed.len() == 1 { " part failed" } @else { " parts failed" } }
            ": " (named.join("; "))
            @if failed.len() > NAMED { "; and " (failed.len() - NAMED) " more" }
            ". "
        }
    }
}

fn goals(page: &Page<'_>) -> Markup {
    let count = with_goal(page.results).count();
    let (missed, near) = (missed(page.results), near(page.results).len());
    html! {
        @match (count, missed.first()) {
            (0, _) if page.results.simulated => "No goal of speed applies.",
            (0, _) => "No measurement of this run has a goal.",
            (_, None) if near > 0 => {
                strong { (count - near) " of " (count) " goals of speed are met" } "; the spread reaches " @if near == 1 { "the other." } @else { "the others." }
            },
            (_, None) => { strong { "All " (count) " goals of speed are met" } @if page.results.simulated { ", those of the host alone" } "." },
            (_, Some((row, _))) => {
                strong { (missed.len()) " of " (count) " goals of speed are missed" }
                ": farthest from its goal is " code { (row.id) } " with " (quantity(row.value, &row.unit))
                @if let Some(ratio) = row.ratio.filter(|_| row.goal.as_ref().is_some_and(|goal| goal.contains("x reference"))) { ", " (format!("{ratio:.2}")) " times the reference" }
                " (goal: " (row.goal.as_deref().unwrap_or_default()) ")."
                @if near > 0 { " The spread reaches " (near) " more." }
            },
        }
    }
}

/// Returns wrong choices, the worst first.
pub(super) fn wrong<'a>(page: &'a Page<'_>) -> Vec<(&'a Path, &'a Choice)> {
    let all = page.paths.iter().flat_map(|path| path.choices.iter().map(move |choice| (path, choice)));
    let mut wrong: Vec<_> = all.filter(|(_, choice)| choice.wrong().is_some()).collect();
    let ratio = |choice: &Choice| choice.wrong().map_or(1.0, |better| better.ratio);
    wrong.sort_by(|a, b| ratio(b.1).total_cmp(&ratio(a.1)));
    wrong
}

fn choices(page: &Page<'_>, wrong: &[(&Path, &Choice)]) -> Markup {
    let all = page.paths.iter().flat_map(|path| &path.choices).count();
    let judged: usize = page.paths.iter().filter(|path| !path.simulated).map(|path| path.choices.len()).sum();
    // Those after a calibration, which have rows of their own.
    let calibrated = page
        .results
        .rows
        .iter()
        .filter(|row| row.id.starts_with("choice/wrong/") && !row.simulated)
        .filter(|row| row.ratio.is_some_and(|ratio| ratio > crate::bench::paths::WRONG))
        .count();
    html! {
        @if all == 0 {
            "Which copy methods were chosen was not measured."
        } @else if judged == 0 {
            (all) " automatic choices of a copy method were made; whether they are the fastest, only a GPU shows."
        } @else if wrong.is_empty() {
            (all) " automatic choices of a copy method were made, and "
            @if judged == all { "each" } @else { "each of the " (judged) " that were timed" }
            " is within 3\u{a0}% of the fastest."
        } @else {
            strong { (wrong.len()) " of " (judged) " automatic choices of a copy method are more than 3\u{a0}% slower than the fastest" }
            ": "
            @for (index, (of, choice)) in wrong.iter().take(NAMED).enumerate() {
                @if let Some(better) = choice.wrong() {
                    @if index > 0 { "; " }
                    (size(choice.bytes)) " " (path(&of.name)) " by " (choice.method) " takes " (format!("{:.2}", better.ratio))
                    " times as long as by " (better.method)
                }
            }
            @if wrong.len() > NAMED { "; and " (wrong.len() - NAMED) " more" }
            "."
        }
        @if calibrated > 0 { " After a calibration, " (calibrated) " are." }
    }
}

fn changes(page: &Page<'_>) -> Markup {
    let Some(comparison) = &page.comparison else { return html! {} };
    html! {
           @if comparison.other_machine.is_some() {
               "The earlier run was on another machine: its differences inform only. "
           }
           "Since the run of " (comparison.earlier) ", "
           @if comparison.compared == 0 {
               "no row can be compared."
           } @else {
               strong { (comparison.worse.len()) " of " (comparison.compared) " measurements are worse" }
               " and " (comparison.better.len()) " better"
               @if let Some(worst) = comparison.worse.first() {
                   "; the largest loss is " code { (worst.id) } ", " (quantity(worst.before, &worst.unit)) " → "
                   (quantity(worst.after, &worst.unit))
               }
               "."
           }
    @if !comparison.gone.is_empty() { " " (comparison.gone.len()) " of that run are missing." }
           @if !comparison.choices.is_empty() {
               " " (comparison.choices.len()) @if comparison.choices.len() == 1 { " choice differs." } @else { " choices differ." }
           }
       }
}
