//! Tests that say `skipped: REASON`: what libtest keeps of tests that pass is read, and only that is shown.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
};

use anyhow::{Context as _, Result, ensure};

/// A test, and why it or a part of it was skipped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    test: String,
    reason: String,
}

/// What a line of a runner's output belongs to.
enum Part {
    Runner,
    /// What a passed test said, of this name; empty before the first.
    Passed(String),
    /// The names of passed tests.
    Names,
}

/// Passes a runner's output on, of what passed tests said only that they were skipped. Returns these.
pub(crate) fn forward(mut from: impl BufRead, to: &mut impl Write) -> io::Result<BTreeSet<Skip>> {
    let mut skips = BTreeSet::new();
    let mut part = Part::Runner;
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        part = match part {
            Part::Runner if text == "successes:" => Part::Passed(String::new()),
            Part::Passed(_) if text == "successes:" => Part::Names,
            Part::Names if !text.is_empty() && !text.starts_with(' ') => Part::Runner,
            same => same,
        };
        match &mut part {
            Part::Names => {}
            Part::Runner => {
                to.write_all(&line)?;
                to.flush()?;
            }
            Part::Passed(test) => {
                let name = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
                if let Some(name) = name {
                    name.clone_into(test);
                } else if let Some(reason) = text.strip_prefix("skipped: ") {
                    let skip = Skip { test: test.clone(), reason: reason.to_owned() };
                    if skips.insert(skip) {
                        writeln!(to, "skipped {test}: {reason}")?;
                    }
                }
            }
        }
        line.clear();
    }
    Ok(skips)
}

/// Fails for skips that the list does not allow: lines of a test and, after a bar, what its reason begins with.
pub(crate) fn check(skips: &BTreeSet<Skip>, list: &str) -> Result<()> {
    let lines = list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let allowed = lines
        .map(|line| line.split_once(" | ").with_context(|| format!("no bar between test and reason: {line}")))
        .collect::<Result<Vec<_>>>()?;
    let is_allowed = |skip: &&Skip| {
        allowed.iter().any(|(test, reason)| *test == skip.test && skip.reason.starts_with(reason))
    };
    let others: Vec<_> = skips.iter().filter(|skip| !is_allowed(skip)).collect();
    let shown: Vec<_> = others.iter().map(|skip| format!("\n{} | {}", skip.test, skip.reason)).collect();
    ensure!(
        others.is_empty(),
        "these tests were skipped, which xtask/skips.txt does not list:{}",
        shown.concat()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests\ntest a::b ... ok\ntest c ... ok\ntest d ... FAILED\n\nsuccesses:\n\n\
                          ---- a::b stdout ----\nskipped: no adapter\nfailures:\nskipped: no adapter\n\n\
                          ---- c stdout ----\nwas not skipped: all ran\n\n\nsuccesses:\n    a::b\n    c\n\nfailures:\n\n\
                          ---- d stdout ----\nskipped: but failed\n\nfailures:\n    d\n\n\
                          test result: FAILED. 2 passed; 1 failed; 0 ignored\n";

    fn forwarded() -> (String, BTreeSet<Skip>) {
        let mut shown = Vec::new();
        let skips = forward(OUTPUT.as_bytes(), &mut shown).unwrap();
        (String::from_utf8(shown).unwrap(), skips)
    }

    #[test]
    fn passed_tests_say_only_what_they_skipped() {
        let (shown, skips) = forwarded();
        let skip = Skip { test: "a::b".to_owned(), reason: "no adapter".to_owned() };
        assert_eq!(skips, BTreeSet::from([skip]));
        let expected = "running 3 tests\ntest a::b ... ok\ntest c ... ok\ntest d ... FAILED\n\nskipped a::b: no adapter\n\
                        failures:\n\n---- d stdout ----\nskipped: but failed\n\nfailures:\n    d\n\n\
                        test result: FAILED. 2 passed; 1 failed; 0 ignored\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn skip_that_the_list_does_not_allow_is_an_error() {
        let (_, skips) = forwarded();
        check(&skips, "# Why.\n\na::b | no adap\n").unwrap();
        for list in ["", "a::b | no device\n", "a | no adapter\n"] {
            let error = check(&skips, list).unwrap_err().to_string();
            assert!(error.ends_with(":\na::b | no adapter"), "{error}");
        }
        assert!(check(&skips, "a::b no adapter\n").is_err());
    }
}
