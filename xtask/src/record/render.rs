//! Renders the records under docs/benchmarks: a page for each, and an index.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use xshell::Shell;

use super::{Record, Row, index::index};
use crate::bench::format::number;

const FOLDER: &str = "docs/benchmarks";
/// The first line of every rendered page. The folder also has pages written by hand.
pub(super) const MARK: &str =
    "<!-- Rendered by `cargo xtask render` from the JSON files of this folder. Do not edit. -->\n";

/// Writes the pages and deletes those without a record; with `check`, fails if the committed ones differ.
pub(crate) fn run(sh: &Shell, check: bool) -> Result<()> {
    let folder = sh.current_dir().join(FOLDER);
    let (wanted, committed) = (pages(&records(&folder)?), rendered(&folder)?);
    let stale: Vec<&str> = wanted
        .iter()
        .filter(|(name, text)| committed.get(*name) != Some(text))
        .map(|(name, _)| name)
        .chain(committed.keys().filter(|name| !wanted.contains_key(*name)))
        .map(String::as_str)
        .collect();
    if check {
        let list = stale.join(", ");
        ensure!(
            stale.is_empty(),
            "stale in {FOLDER}: {list}; run `cargo xtask render` and commit the result"
        );
        println!("{FOLDER} is current");
        return Ok(());
    }
    for name in &stale {
        let path = folder.join(name);
        match wanted.get(*name) {
            Some(text) => fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?,
            None => fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?,
        }
    }
    println!("{FOLDER}: {} of {} pages changed", stale.len(), wanted.len());
    Ok(())
}

/// Returns the folder's files with this ending, sorted.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    paths.sort();
    Ok(paths)
}

/// Returns the rendered pages of the folder by file name.
fn rendered(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    for path in files(folder, "md")? {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // A checkout may have converted line endings.
        let text = text.replace("\r\n", "\n");
        if text.starts_with(MARK) {
            pages.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text);
        }
    }
    Ok(pages)
}

/// Returns every record by its file name without `.json`.
fn records(folder: &Path) -> Result<BTreeMap<String, Record>> {
    let named = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Record::read(path)?))
    };
    files(folder, "json")?.iter().map(named).collect()
}

/// Returns the text of every page by its file name.
fn pages(records: &BTreeMap<String, Record>) -> BTreeMap<String, String> {
    let of_record = |(name, record): (&String, &Record)| (format!("{name}.md"), page(name, record));
    let mut pages: BTreeMap<String, String> = records.iter().map(of_record).collect();
    pages.insert("README.md".to_owned(), index(records));
    pages
}

/// Returns the page of one record.
fn page(name: &str, record: &Record) -> String {
    let Record { hardware, driver, cuda, cpu, date, commit, command, rows, tests, notes, .. } = record;
    let mut out = format!(
        "{MARK}\n# {name}\n\n\
         Rendered from [{name}.json]({name}.json). All records, and how the rows are measured: [index](README.md).\n\n"
    );
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
            row_line(&mut out, row);
        }
    }
    chosen(&mut out, record);
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
    out
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
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_every_row_test_count_and_missed_goal() {
        let record = crate::record::sample();
        let pages = pages(&BTreeMap::from([("2026-11-20-h200-copies".to_owned(), record.clone())]));
        let text = &pages["2026-11-20-h200-copies.md"];
        for row in &record.rows {
            assert!(text.contains(&format!("| {} (simulated) |", row.id)));
        }
        assert!(text.contains("| transload--it | 12 | 0 | 0 |"));
        assert!(text.contains("| cpu.pinned-to-cuda:0.device | 4096: DirectCopy |"), "{text}");
        assert!(text.contains("**no**") && text.contains("- Commit: 0eefb92"));
        let index = &pages["README.md"];
        assert!(index.contains("[2026-11-20-h200-copies](2026-11-20-h200-copies.md)"), "{index}");
    }

    #[test]
    fn stale_pages_fail_the_check_and_are_rewritten_or_deleted() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("streams.md"), "# By hand\n").unwrap();
        fs::write(folder.join("2026-11-19-gone.md"), format!("{MARK}\n# 2026-11-19-gone\n")).unwrap();
        let record = serde_json::to_string(&crate::record::sample()).unwrap();
        fs::write(folder.join("2026-11-20-h200-copies.json"), record).unwrap();
        let sh = Shell::new().unwrap();
        sh.change_dir(root.path());
        let error = run(&sh, true).unwrap_err().to_string();
        for name in ["2026-11-19-gone.md", "2026-11-20-h200-copies.md", "README.md"] {
            assert!(error.contains(name), "{error}");
        }
        run(&sh, false).unwrap();
        run(&sh, true).unwrap();
        let names: Vec<_> =
            files(&folder, "md").unwrap().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["2026-11-20-h200-copies.md", "README.md", "streams.md"]);
    }

    #[test]
    fn bar_in_a_cell_is_escaped() {
        assert_eq!(cell("a|b"), "a\\|b");
    }
}
