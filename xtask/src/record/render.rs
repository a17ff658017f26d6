//! Renders the records under docs/benchmarks as one page.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use xshell::Shell;

use super::{Record, Row};
use crate::bench::chart::number;

const FOLDER: &str = "docs/benchmarks";
const PAGE: &str = "docs/benchmarks/README.md";

/// Writes the page; with `check`, fails if the committed one differs.
pub(crate) fn run(sh: &Shell, check: bool) -> Result<()> {
    let root = sh.current_dir();
    let text = page(&records(&root.join(FOLDER))?);
    let path = root.join(PAGE);
    if check {
        // A checkout may have converted line endings.
        let committed = fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
        ensure!(committed == text, "{PAGE} is stale: run `cargo xtask render` and commit the result");
        println!("{PAGE} is current");
    } else {
        fs::create_dir_all(root.join(FOLDER)).with_context(|| format!("creating {FOLDER}"))?;
        fs::write(&path, text).with_context(|| format!("writing {PAGE}"))?;
        println!("wrote {PAGE}");
    }
    Ok(())
}

/// Returns every record with its file name, newest first.
fn records(folder: &Path) -> Result<Vec<(String, Record)>> {
    let mut paths: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?,
        Err(_) => Vec::new(),
    };
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.reverse();
    paths
        .iter()
        .map(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Ok((name, Record::read(path)?))
        })
        .collect()
}

fn page(records: &[(String, Record)]) -> String {
    let mut out = String::from(
        "<!-- Rendered by `cargo xtask render` from the JSON files of this folder. Do not edit. -->\n\n\
         # Results on record\n\n\
         Absolute figures hold for the machine that a record names. What carries over are the ratios: both sides of a\n\
         ratio were measured in one run.\n",
    );
    if records.is_empty() {
        out.push_str("\nNothing is on record yet.\n");
    }
    for (name, record) in records {
        section(&mut out, name, record);
    }
    out
}

fn section(out: &mut String, name: &str, record: &Record) {
    let Record { hardware, driver, cuda, cpu, date, commit, command, rows, tests, notes, .. } = record;
    let title = name.trim_end_matches(".json");
    let _infallible = write!(out, "\n## {title}\n\n[{name}]({name})\n\n");
    if rows.iter().any(|row| row.simulated) {
        out.push_str(
            "**Rows marked `simulated` come from the software driver and say nothing about hardware.**\n\n",
        );
    }
    let facts = [
        ("Hardware", hardware),
        ("Driver", driver),
        ("CUDA", cuda),
        ("CPU", cpu),
        ("Date", date),
        ("Commit", commit),
    ];
    for (name, value) in facts {
        let _infallible = writeln!(out, "- {name}: {}", cell(value));
    }
    let _infallible = writeln!(out, "- Command: `{command}`");
    for note in notes {
        let _infallible = write!(out, "\n{note}\n");
    }
    if !rows.is_empty() {
        out.push_str("\n| Row | Value | Unit | p10 – p90 | Reference | Ratio | Goal | Met |\n");
        out.push_str("|---|---:|---|---:|---|---:|---|---|\n");
        for row in rows {
            row_line(out, row);
        }
    }
    chosen(out, record);
    if !tests.is_empty() {
        out.push_str(
            "\n| Tests | Executed | Skipped | Failed | Not run because |\n|---|---:|---:|---:|---|\n",
        );
        for test in tests {
            let mut reasons = test.skip_reasons.clone();
            reasons.sort_unstable();
            reasons.dedup();
            let _infallible = writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                cell(&test.binary),
                test.executed,
                test.skipped,
                test.failed,
                cell(&reasons.join("; "))
            );
        }
    }
}

/// Writes the automatic choices, one path a line. Rejections are in the record only.
fn chosen(out: &mut String, record: &Record) {
    let mut paths: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for choice in &record.choices {
        let text = format!("{}: {}", choice.bytes, choice.method);
        paths.entry(&choice.path).or_default().push(text);
    }
    if !paths.is_empty() {
        out.push_str("\n| Path | Method that automatic choice took, by bytes |\n|---|---|\n");
    }
    for (path, taken) in paths {
        let _infallible = writeln!(out, "| {} | {} |", cell(path), cell(&taken.join("; ")));
    }
}

fn row_line(out: &mut String, row: &Row) {
    let nothing = || "–".to_owned();
    let spread = match (row.p10, row.p90) {
        (Some(p10), Some(p90)) => format!("{} – {}", number(p10), number(p90)),
        _ => nothing(),
    };
    let reference = match (&row.reference, row.reference_value) {
        (Some(name), Some(value)) => format!("{}: {}", cell(name), number(value)),
        _ => nothing(),
    };
    let _infallible = writeln!(
        out,
        "| {}{} | {} | {} | {spread} | {reference} | {} | {} | {} |",
        cell(&row.id),
        if row.simulated { " (simulated)" } else { "" },
        number(row.value),
        cell(&row.unit),
        row.ratio.map_or_else(nothing, |ratio| format!("{ratio:.3}")),
        row.goal.as_deref().map_or_else(nothing, cell),
        row.met.map_or("–", |met| if met { "yes" } else { "**no**" }),
    );
}

/// Escapes text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_every_row_test_count_and_missed_goal() {
        let record = crate::record::sample();
        let text = page(&[("2026-11-20-h200-copies.json".to_owned(), record.clone())]);
        for row in &record.rows {
            assert!(text.contains(&format!("| {} (simulated) |", row.id)));
        }
        assert!(text.contains("| transload--it | 12 | 0 | 0 |"));
        assert!(text.contains("| cpu.pinned-to-cuda:0.device | 4096: DirectCopy |"), "{text}");
        assert!(text.contains("**no**") && text.contains("- Commit: 0eefb92"));
    }

    #[test]
    fn page_without_records_says_so() {
        assert!(page(&[]).contains("Nothing is on record yet."));
    }

    #[test]
    fn bar_in_a_cell_is_escaped() {
        assert_eq!(cell("a|b"), "a\\|b");
    }
}
