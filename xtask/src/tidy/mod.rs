//! Checks project rules that the compiler does not.

mod manifests;
mod pages;
mod scan;
mod sources;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use xshell::{Shell, cmd};

use crate::{codegen, mutants, record::render};

/// A violation of a rule and its location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// A file, or a package.
    at: String,
    /// A line of the file, from 1.
    line: Option<usize>,
    text: String,
}

impl Finding {
    fn new(at: &str, line: Option<usize>, text: impl Into<String>) -> Self {
        Self { at: at.to_owned(), line, text: text.into() }
    }
}

/// Runs every check; without `check_only`, updates the generated files first.
pub(crate) fn run(sh: &Shell, check_only: bool) -> Result<()> {
    codegen::run(sh, check_only)?;
    render::run(sh, check_only)?;
    check(sh)
}

/// Checks sources and manifests.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    let root = sh.current_dir();
    let sources = read_sources(&root)?;
    let mut findings: Vec<Finding> = sources.iter().flat_map(sources::check).collect();
    findings.extend(sources::check_exceptions(&sources));
    let json = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    let packages = manifests::packages(&serde_json::from_str(&json)?)?;
    findings.extend(manifests::check(&packages));
    for package in &packages {
        let text = fs::read_to_string(&package.manifest)
            .with_context(|| format!("reading {}", package.manifest.display()))?;
        findings.extend(manifests::check_versions(&package.name, &text));
    }
    let table = fs::read_to_string(root.join("Cargo.toml")).context("reading Cargo.toml")?;
    let reasons =
        fs::read_to_string(root.join("docs/architecture.md")).context("reading docs/architecture.md")?;
    findings.extend(manifests::check_reasons(&table, &reasons));
    findings.extend(mutant_findings(&root, &sources)?);
    findings.extend(pages::check(&root, &read_pages(&root)?, &sources));
    findings.sort();
    for Finding { at, line, text } in &findings {
        match line {
            Some(line) => eprintln!("{at}:{line}: {text}"),
            None => eprintln!("{at}: {text}"),
        }
    }
    if !findings.is_empty() {
        bail!("tidy found {} violations", findings.len());
    }
    println!("tidy: {} files and {} packages are in order", sources.len(), packages.len());
    Ok(())
}

/// Checks that the mutants' lists, the code and the page agree.
fn mutant_findings(root: &Path, sources: &[Source]) -> Result<Vec<Finding>> {
    let lists = mutants::list::read(root)?;
    let in_library = sources
        .iter()
        .filter(|source| source.path.split('/').nth(2) == Some("src") && source.path.starts_with("crates/"));
    let code: Vec<(&str, String)> = in_library
        .map(|Source { path, text }| {
            let lines: Vec<String> = scan::lines(text).into_iter().map(|line| line.code).collect();
            (path.as_str(), lines.join("\n"))
        })
        .collect();
    let found = mutants::list::check(&lists, &code).into_iter();
    let mut findings: Vec<Finding> =
        found.map(|fault| Finding::new(&fault.path, fault.line, fault.text)).collect();
    let page = fs::read_to_string(root.join(mutants::table::PAGE)).unwrap_or_default().replace("\r\n", "\n");
    let listed: Vec<_> =
        lists.iter().flat_map(|list| list.mutants.iter().map(|(_, mutant)| mutant)).collect();
    let of_page = mutants::table::names(&page).into_iter();
    let stale: Vec<&str> = listed
        .iter()
        .filter(|mutant| !page.contains(&mutants::table::row_prefix(mutant)))
        .map(|mutant| mutant.name.as_str())
        .chain(of_page.filter(|name| !listed.iter().any(|mutant| mutant.name == *name)))
        .collect();
    if !stale.is_empty() {
        let text = format!("is stale, run `cargo xtask mutants`: {}", stale.join(", "));
        findings.push(Finding::new(mutants::table::PAGE, None, text));
    }
    Ok(findings)
}

/// A Rust source file.
pub(crate) struct Source {
    /// From the workspace's root, with `/`.
    path: String,
    text: String,
}

fn read_sources(root: &Path) -> Result<Vec<Source>> {
    read(root, &["crates", "benches", "xtask"], "rs")
}

/// Reads the pages that describe the code as it is; the changelog also names what is gone.
fn read_pages(root: &Path) -> Result<Vec<Source>> {
    let mut pages = read(root, &["crates", "benches", "docs"], "md")?;
    for name in ["README.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let text = fs::read_to_string(root.join(name)).with_context(|| format!("reading {name}"))?;
        pages.push(Source { path: name.to_owned(), text });
    }
    Ok(pages)
}

/// Reads the files of some folders whose names end like this, in the order of their paths.
fn read(root: &Path, folders: &[&str], ending: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for folder in folders {
        let mut pending: Vec<PathBuf> = vec![root.join(folder)];
        while let Some(folder) = pending.pop() {
            let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
            for entry in entries {
                let entry = entry?;
                let (path, name) = (entry.path(), entry.file_name());
                let is_hidden = name.to_string_lossy().starts_with('.');
                if entry.file_type()?.is_dir() {
                    if !is_hidden && name != "target" {
                        pending.push(path);
                    }
                } else if path.extension().is_some_and(|extension| extension == ending) {
                    let text =
                        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                    let relative = path.strip_prefix(root).unwrap_or(&path);
                    sources.push(Source { path: relative.to_string_lossy().replace('\\', "/"), text });
                }
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}
