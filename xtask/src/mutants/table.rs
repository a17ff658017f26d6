//! The results as a table: for the terminal, as JSON, and as docs/mutants.md.

use std::fmt::Write as _;

use serde::Serialize;

use super::{list::Mutant, process::End};

/// The page, from the workspace's root.
pub(crate) const PAGE: &str = "docs/mutants.md";

/// A mutant and the result of its test.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) left_out: String,
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) test: String,
    pub(crate) end: End,
    pub(crate) seconds: f64,
}

impl Outcome {
    pub(crate) fn new(mutant: &Mutant, end: End, seconds: f64) -> Self {
        let Mutant { name, package, target, test, left_out } = mutant.clone();
        Self { name, left_out, package, target, test, end, seconds }
    }

    /// Returns whether the test caught the mutant.
    pub(crate) fn is_caught(&self) -> bool {
        matches!(self.end, End::Failed | End::Died | End::TimedOut)
    }

    /// Describes how it was caught.
    fn how(&self) -> &'static str {
        match self.end {
            End::Failed => "the test fails",
            End::Died => "the process dies",
            End::TimedOut => "the test does not end",
            End::Passed => "SURVIVES",
            End::NoTest => "NO SUCH TEST",
            End::Broken => "FAILS WITHOUT IT, TOO",
        }
    }
}

/// Returns the table for a terminal.
pub(crate) fn text(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for outcome in outcomes {
        let Outcome { name, seconds, package, target, test, .. } = outcome;
        let how = outcome.how();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:width$}  {how:22} {seconds:6.1} s  {package}, {target}: {test}");
    }
    let caught = outcomes.iter().filter(|outcome| outcome.is_caught()).count();
    let _ = writeln!(out, "{caught} of {} mutants caught", outcomes.len());
    out
}

const HEAD: &str = "\
<!-- Written by `cargo xtask mutants` from crates/*/mutants.txt and what it found. Do not edit. -->

# Mutants

Each row is a step of the code, omitted deliberately, and the test that must fail. The steps are marked in the code by
`transload_core::mutant!(\"name\")`, which is `false` in every ordinary build. `cargo xtask mutants` builds the tests once with
`--cfg mutants`, checks that each listed test passes, and then runs it once for each mutant in its own process with a time
limit. The list names the test in advance; another failing test does not count.

`RUSTFLAGS=\"--cfg mutants\" cargo xtask bundle` puts the faults into a bundle for a machine with a GPU, where the environment variable
`TRANSLOAD_MUTANT` names one and `TRANSLOAD_TEST_DRIVER=real` has a test use the GPU. There `wgpu/cuda-waits` and `wgpu/waits-for-cuda`
leave out the wait for one semaphore.

";

const TAIL: &str = "
What this list does not show:

- It contains only the faults that somebody thought of. A step that is not listed may lack a test.
- A caught mutant shows that its test can fail, not that the code is correct: an interleaving that no test reaches stays
  unseen. The loom models and the software driver's seeds cover interleavings.
- Each mutant omits one step completely. A step that is done too late, on the wrong thread, or wrong once in a million
  times is a different fault.
- A mutant that makes its test hang is caught by the time limit. This shows that the test depends on the step, not that its
  message names the step.
- The tests run on the software driver. Differences of a real driver are covered by the tests on hardware.
";

/// Returns the page.
pub(crate) fn page(outcomes: &[Outcome]) -> String {
    let mut out = HEAD.to_owned();
    out.push_str("| mutant | what is left out | test that must fail | caught how |\n|---|---|---|---|\n");
    for outcome in outcomes {
        let Outcome { name, left_out, package, target, test, .. } = outcome;
        let left_out = left_out.replace('|', "\\|");
        let _ =
            writeln!(out, "| `{name}` | {left_out} | {package}, {target}: `{test}` | {} |", outcome.how());
    }
    out.push_str(TAIL);
    out
}

/// Returns the beginning of a mutant's row, which does not depend on the run.
pub(crate) fn row_prefix(mutant: &Mutant) -> String {
    let Mutant { name, package, target, test, left_out } = mutant;
    format!("| `{name}` | {} | {package}, {target}: `{test}` | ", left_out.replace('|', "\\|"))
}

/// Returns the mutants' names on the page.
pub(crate) fn names(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(end: End) -> (Mutant, Outcome) {
        let mutant = Mutant {
            name: "core/a".to_owned(),
            package: "transload-core".to_owned(),
            target: "it".to_owned(),
            test: "order::a".to_owned(),
            left_out: "a | b".to_owned(),
        };
        let outcome = Outcome::new(&mutant, end, 1.25);
        (mutant, outcome)
    }

    #[test]
    fn page_says_how_each_mutant_was_caught() {
        let (mutant, outcome) = outcome(End::TimedOut);
        let page = page(&[outcome]);
        assert!(page.contains(&(row_prefix(&mutant) + "the test does not end |\n")), "{page}");
        assert_eq!(names(&page), ["core/a"]);
    }

    #[test]
    fn only_a_failing_test_catches() {
        for (end, is_caught) in [
            (End::Failed, true),
            (End::Died, true),
            (End::TimedOut, true),
            (End::Passed, false),
            (End::NoTest, false),
            (End::Broken, false),
        ] {
            let (_, outcome) = outcome(end);
            assert_eq!(outcome.is_caught(), is_caught, "{end:?}");
            assert_eq!(text(&[outcome]).contains("1 of 1"), is_caught);
        }
    }
}
