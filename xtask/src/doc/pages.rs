//! Checks the links of the Markdown pages: to files of the tree, and to headings in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::target;

/// Returns the dead links of all pages, each with its page.
pub(super) fn dead_links(root: &Path) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    collect(root, &mut pages)?;
    let mut dead = Vec::new();
    for page in &pages {
        let text = read(page)?;
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.parent().unwrap_or(root);
            let to = if file.is_empty() { page.clone() } else { target(folder, file) };
            let is_page = to.extension().is_some_and(|extension| extension == "md");
            let alive = to.exists()
                && (heading.is_empty() || !is_page || headings(&read(&to)?).iter().any(|one| one == heading));
            if !alive {
                dead.push((link.to_owned(), page.strip_prefix(root).unwrap_or(page).display().to_string()));
            }
        }
    }
    Ok(dead)
}

fn read(page: &Path) -> Result<String> {
    fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                collect(&path, pages)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// Returns the lines outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the targets of `[text](target)`, except those on other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    targets.filter_map(|rest| rest.split_once(')').map(|(link, _)| link)).filter(|link| !link.contains("://"))
}

/// Returns the fragments of a page's headings, as GitHub names them.
fn headings(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    headings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_link_of_a_page_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("docs")).unwrap();
        let page = "# One\n[a](docs/a.md#two-words) [b](docs/b.md) [c](#one) [d](#two) [e](https://e.org/x)\n\
                    [f](docs/a.md#three)\n```\n[g](no.md)\n```\n";
        fs::write(root.join("README.md"), page).unwrap();
        fs::write(root.join("docs/a.md"), "## Two `words`!\n[up](../README.md#one)\n").unwrap();
        let dead: Vec<String> = dead_links(root).unwrap().into_iter().map(|(link, _)| link).collect();
        assert_eq!(dead, ["docs/b.md", "#two", "docs/a.md#three"]);
    }
}
