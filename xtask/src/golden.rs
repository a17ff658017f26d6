//! Compares what operations do on the software driver with a committed file.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

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
    check(&sh.current_dir(), FILE, &now, options.summary.as_deref(), &mut io::stdout())
}

/// Compares a file in `directory` with what is `now`, and prints the difference.
///
/// # Errors
/// If they differ.
fn check(
    directory: &Path,
    file: &str,
    now: &Path,
    summary: Option<&Path>,
    out: &mut impl Write,
) -> Result<()> {
    // The heading of a hunk is the operation's name.
    let mut diff = Command::new("git");
    let options = ["--no-pager", "diff", "--no-index", "--no-color", "--unified=1", file];
    diff.current_dir(directory).args(options);
    let output = diff.arg(now).output().context("starting git")?;
    // A missing file is 1, too.
    let is_compared = match output.status.code() {
        Some(1) => !output.stdout.is_empty(),
        code => code == Some(0),
    };
    ensure!(is_compared, "comparing {file}: {}", String::from_utf8_lossy(&output.stderr));
    let diff = String::from_utf8_lossy(&output.stdout);
    write!(out, "{diff}")?;
    if let Some(path) = summary {
        summary::append(path, &markdown(&diff))?;
    }
    if !diff.is_empty() {
        bail!("operations do other things than {file} says; if that is meant: `cargo xtask golden --update`");
    }
    writeln!(out, "what operations do is as {file} says")?;
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

    /// The program ends with the error, so its exit code is not 0.
    #[test]
    fn other_file_is_an_error_after_its_difference_is_shown() {
        let directory = std::env::temp_dir().join(format!("transload-golden-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (now, summary) = (directory.join("now.txt"), directory.join("summary.md"));
        let committed = "copy, waited\n  cuMemcpyAsync 1\n";
        fs::write(directory.join("golden.txt"), committed).unwrap();
        let compare = |text: &str| {
            fs::write(&now, text).unwrap();
            let mut shown = Vec::new();
            let compared = check(&directory, "golden.txt", &now, Some(&summary), &mut shown);
            (compared.map_err(|error| error.to_string()), String::from_utf8(shown).unwrap())
        };
        assert_eq!(compare(committed), (Ok(()), "what operations do is as golden.txt says\n".to_owned()));
        let (compared, shown) = compare(&committed.replace('1', "2"));
        let error = compared.unwrap_err();
        assert!(error.contains("golden.txt") && error.contains("cargo xtask golden --update"), "{error}");
        assert!(shown.contains("-  cuMemcpyAsync 1\n+  cuMemcpyAsync 2\n"), "{shown}");
        assert!(fs::read_to_string(&summary).unwrap().contains("**They differ from"));
        fs::remove_file(directory.join("golden.txt")).unwrap();
        assert!(compare(committed).0.is_err(), "nothing to compare with");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn long_difference_is_cut_off_in_the_summary() {
        let text = markdown(&"+  cuMemcpyAsync 1\n".repeat(SHOWN + 5));
        assert_eq!(text.matches("+  cuMemcpyAsync 1\n").count(), SHOWN);
        assert!(text.ends_with("and 5 lines more\n"), "{text}");
    }
}
