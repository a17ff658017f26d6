//! Names of code in pages: what is in backticks exists.

use std::{collections::BTreeSet, path::Path};

use super::{Finding, Source, scan};

/// Reports paths that do not exist, members `A::b` that no code names, and what is said to be `a` in `crates/b.rs` but is not.
pub(super) fn check(root: &Path, pages: &[Source], sources: &[Source]) -> Vec<Finding> {
    let mut words: BTreeSet<String> = BTreeSet::new();
    for line in sources.iter().flat_map(|source| scan::lines(&source.text)) {
        words.extend(line.bare.split(|c| !is_word(c)).map(str::to_owned));
    }
    let mut findings = Vec::new();
    for page in pages {
        let (pieces, mut line) = (page.text.split('`').collect::<Vec<_>>(), 1);
        for (index, piece) in pieces.iter().enumerate() {
            let name = piece.strip_suffix("()").unwrap_or(piece);
            let member = name.rsplit("::").next().unwrap_or(name);
            let is_member = member.len() < name.len() && name.chars().all(|c| is_word(c) || c == ':');
            let is_wrong =
                is_path(piece) && !root.join(piece).exists() || is_member && !words.contains(member);
            let file = pieces.get(index + 2).filter(|_| pieces[index + 1].trim() == "in");
            let file = file.and_then(|path| sources.iter().find(|source| source.path == **path));
            let is_elsewhere =
                file.is_some_and(|file| member.chars().all(is_word) && !declares(&file.text, member));
            if index % 2 == 1 && (is_wrong || is_elsewhere) {
                let text = format!("`{piece}` is not in the code{}", if is_wrong { "" } else { " there" });
                findings.push(Finding::new(&page.path, Some(line), text));
            }
            line += piece.matches('\n').count();
        }
    }
    findings
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_path(text: &str) -> bool {
    ["crates/", "benches/", "xtask/"].iter().any(|folder| text.starts_with(folder))
        && !text.contains(|c: char| c == '*' || c.is_whitespace())
}

fn declares(text: &str, name: &str) -> bool {
    let declared = |(at, _): (usize, &str)| {
        let ends = !text[at + name.len()..].starts_with(is_word);
        ends && ["fn ", "struct ", "enum ", "trait "].iter().any(|keyword| text[..at].ends_with(keyword))
    };
    text.match_indices(name).any(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [source("xtask/src/main.rs", "//! A::gone\nfn main() { A::b() }\n")];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = check(&root, &[source("README.md", page)], &sources).into_iter();
        found.map(|finding| format!("{}: {}", finding.line.unwrap(), finding.text)).collect()
    }

    #[test]
    fn names_that_exist_are_in_order() {
        let page = "`A::b()`, `main` in\n`xtask/src/main.rs`, `crates/*/x` and `other`\n```rust\nA::c()\n```\n`A::b`";
        assert_eq!(findings(page), Vec::<String>::new());
    }

    #[test]
    fn names_that_are_gone_are_reported() {
        for (page, found) in [
            ("a\n`A::gone`", "2: `A::gone` is not in the code"),
            ("`xtask/src/gone.rs`", "1: `xtask/src/gone.rs` is not in the code"),
            ("`A::b` in `xtask/src/main.rs`", "1: `A::b` is not in the code there"),
        ] {
            assert_eq!(findings(page), [found]);
        }
    }
}
