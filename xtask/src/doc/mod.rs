//! Renders the documentation of every crate and checks its links, and those of the Markdown pages.

mod pages;

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use xshell::{Shell, cmd};

use crate::artifacts;

/// Renders with warnings denied, then fails on dead links.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let dead = pages::dead_links(&sh.current_dir())?;
    ensure_alive(&dead, &sh.current_dir())?;
    let folder = artifacts::target_directory(sh)?.join("doc");
    // Pages of an earlier run would hide dead links.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    // rustdoc links to crates whose folder exists, and cargo removes a crate's folder before rendering it: so one job only.
    for name in artifacts::libraries(sh)? {
        sh.create_dir(folder.join(name))?;
    }
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    cmd!(sh, "cargo doc --workspace --no-deps --all-features --locked --jobs 1").quiet().run()?;
    let dead: Vec<_> = dead_links(&folder)?.into_iter().collect();
    ensure_alive(&dead, &folder)
}

fn ensure_alive(dead: &[(String, String)], folder: &Path) -> Result<()> {
    let list: Vec<String> = dead.iter().map(|(link, page)| format!("  {link} on {page}")).collect();
    ensure!(list.is_empty(), "{} dead links in {}:\n{}", list.len(), folder.display(), list.join("\n"));
    Ok(())
}

/// Returns relative links to missing files, each with one page that contains it.
fn dead_links(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut dead = BTreeMap::new();
    // Source listings contain arbitrary strings.
    let sources = root.join("src");
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path == sources {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let html =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                // The last section: documentation of other crates, whose pages are not rendered.
                let own = html.split("id=\"blanket-implementations\"").next().unwrap_or_default();
                for link in links(own).filter(|link| !target(&folder, link).exists()) {
                    let page = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                    dead.entry(link.to_owned()).or_insert(page);
                }
            }
        }
    }
    Ok(dead)
}

/// Returns the link targets of a page, except fragments, other sites, script templates, and the index of all crates, which
/// rustdoc does not generate by default.
fn links(html: &str) -> impl Iterator<Item = &str> {
    html.split("href=\"").skip(1).filter_map(|rest| {
        let link = rest.split('"').next()?.split(['#', '?']).next()?;
        let scheme = link.split_once(':').is_some_and(|(scheme, rest)| {
            !rest.starts_with(':') && scheme.chars().all(|char| char.is_ascii_lowercase())
        });
        (!link.is_empty()
            && !scheme
            && !link.starts_with("//")
            && !link.contains("${")
            && link != "./index.html")
            .then_some(link)
    })
}

/// Resolves a link relative to a folder, without `..`.
fn target(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in folder.join(link).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_are_returned() {
        let html = r##"<a href="a.html#x"><a href="#x"><a href="https://e.org/b"><a href="../c/d.html?q">
            <link href="../static.files/${f}"><a href="Self::len"><a href="transload_core::Loan">"##;
        assert_eq!(
            links(html).collect::<Vec<_>>(),
            ["a.html", "../c/d.html", "Self::len", "transload_core::Loan"]
        );
    }

    #[test]
    fn dead_links_are_reported_with_their_page() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("one")).unwrap();
        fs::write(root.join("one/index.html"), r#"<a href="../two.html"><a href="Self::len">"#).unwrap();
        let two = r#"<a href="one/index.html#top"><h2 id="blanket-implementations"><a href="crate::Span">"#;
        fs::write(root.join("two.html"), two).unwrap();
        let dead = dead_links(root).unwrap();
        let page = Path::new("one").join("index.html").display().to_string();
        assert_eq!(dead.into_iter().collect::<Vec<_>>(), [("Self::len".to_owned(), page)]);
    }
}
