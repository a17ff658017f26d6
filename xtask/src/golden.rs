//! Compares what operations do on the software driver with a committed file.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use xshell::Shell;

use crate::{artifacts, summary};

#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// Rewrite the file.
    #[arg(long)]
    update: bool,
    /// Append the result to this file as Markdown.
    #[arg(long, value_name = "PATH")]
    summary: Option<PathBuf>,
}

impl Options {
    /// Checks; in a workflow of GitHub with a summary.
    pub(crate) fn for_every_change() -> Self {
        Self { update: false, summary: summary::of_workflow() }
    }
}

const PACKAGE: &str = "transload-benches";
const PROGRAM: &str = "transload-golden";
/// The committed file, from the workspace's root.
const FILE: &str = "benches/golden.txt";
/// Lines of a difference that a summary shows.
const SHOWN: usize = 300;

/// Runs the program, and compares what it prints with the committed file, or rewrites that.
///
/// # Errors
/// If they differ: the difference is printed before. If the program fails.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    // Like the benchmark, which needs the same crates.
    let built =
        artifacts::build(sh, &["build", "--quiet", "--release", "--package", PACKAGE, "--bin", PROGRAM])?;
    let program = built.into_iter().find(|artifact| artifact.target == PROGRAM);
    let program = program.with_context(|| format!("cargo built no program {PROGRAM}"))?;
    let output = Command::new(&program.path).output().with_context(|| format!("starting {PROGRAM}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{PROGRAM} failed: {}\n{errors}", output.status);
    if options.update {
        return fs::write(sh.current_dir().join(FILE), output.stdout)
            .with_context(|| format!("writing {FILE}"));
    }
    let now = artifacts::target_directory(sh)?.join("golden.txt");
    fs::write(&now, output.stdout).with_context(|| format!("writing {}", now.display()))?;
    // The heading of a hunk is the operation's name.
    let mut diff = Command::new("git");
    diff.current_dir(sh.current_dir()).args([
        "--no-pager",
        "diff",
        "--no-index",
        "--no-color",
        "--unified=1",
        FILE,
    ]);
    let output = diff.arg(&now).output().context("starting git")?;
    let is_compared = matches!(output.status.code(), Some(0 | 1));
    ensure!(is_compared, "comparing {FILE}: {}", String::from_utf8_lossy(&output.stderr));
    let diff = String::from_utf8_lossy(&output.stdout);
    print!("{diff}");
    if let Some(path) = &options.summary {
        summary::append(path, &markdown(&diff))?;
    }
    if !diff.is_empty() {
        bail!("operations do other things than {FILE} says; if that is meant: `cargo xtask golden --update`");
    }
    println!("what operations do is as {FILE} says");
    Ok(())
}

fn markdown(diff: &str) -> String {
    let title = "## What operations do on the software driver\n\n";
    if diff.is_empty() {
        return format!(
            "{title}Driver calls, allocations, choices and virtual times are as `{FILE}` says.\n"
        );
    }
    let lines: Vec<&str> =
        diff.lines().filter(|line| !line.starts_with("diff ") && !line.starts_with("index ")).collect();
    let (shown, more) = lines.split_at(lines.len().min(SHOWN));
    let more = if more.is_empty() { String::new() } else { format!("\nand {} lines more\n", more.len()) };
    format!(
        "{title}**They differ from `{FILE}`.** If that is meant, `cargo xtask golden --update` makes it part of the change.\n\n\
         ```diff\n{}\n```\n{more}",
        shown.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_shows_the_difference_and_says_how_to_accept_it() {
        assert!(markdown("").contains("are as `benches/golden.txt` says"));
        let text = markdown(
            "diff --git a b\nindex 1..2\n@@ -1 +1 @@ copy, waited\n-  cuMemcpyAsync 1\n+  cuMemcpyAsync 2\n",
        );
        assert!(
            text.contains("```diff\n@@ -1 +1 @@ copy, waited\n-  cuMemcpyAsync 1\n+  cuMemcpyAsync 2\n```\n"),
            "{text}"
        );
        assert!(text.contains("cargo xtask golden --update") && !text.contains("lines more"), "{text}");
    }

    #[test]
    fn long_difference_is_cut_off_in_the_summary() {
        let text = markdown(&"+  cuMemcpyAsync 1\n".repeat(SHOWN + 5));
        assert_eq!(text.matches("+  cuMemcpyAsync 1\n").count(), SHOWN);
        assert!(text.ends_with("and 5 lines more\n"), "{text}");
    }
}
