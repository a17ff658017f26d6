//! The lists `crates/*/mutants.txt`, and a check that they match the code.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};

/// A deliberate fault and the test that must catch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// `<crate>/<omitted-step>`, as in the code.
    pub(crate) name: String,
    /// The package of the test.
    pub(crate) package: String,
    /// The test target: `lib` for unit tests, else the integration test's name.
    pub(crate) target: String,
    /// The test's full path within its target.
    pub(crate) test: String,
    /// The step that the code omits while the fault is active.
    pub(crate) left_out: String,
}

/// A mismatch of list and code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Path from the workspace's root, with `/`.
    pub(crate) path: String,
    /// Line from 1; `None` for the whole file.
    pub(crate) line: Option<usize>,
    pub(crate) text: String,
}

/// The list of one crate.
#[derive(Clone, Debug)]
pub(crate) struct List {
    /// The folder's name under `crates`.
    pub(crate) folder: String,
    /// The mutants with their lines, from 1.
    pub(crate) mutants: Vec<(usize, Mutant)>,
}

impl List {
    /// Returns the file's path from the workspace's root.
    pub(crate) fn path(&self) -> String {
        format!("crates/{}/mutants.txt", self.folder)
    }
}

/// Reads all lists, ordered by folder.
///
/// # Errors
/// If a file cannot be read or a line is invalid.
pub(crate) fn read(root: &Path) -> Result<Vec<List>> {
    let crates = root.join("crates");
    let mut lists = Vec::new();
    for entry in fs::read_dir(&crates).with_context(|| format!("reading {}", crates.display()))? {
        let entry = entry?;
        let path = entry.path().join("mutants.txt");
        if path.exists() {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let folder = entry.file_name().to_string_lossy().into_owned();
            let mutants = parse(&text).with_context(|| format!("in {}", path.display()))?;
            lists.push(List { folder, mutants });
        }
    }
    lists.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(lists)
}

/// Parses a list into entries with their lines.
fn parse(text: &str) -> Result<Vec<(usize, Mutant)>> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| Ok((number, entry(line).with_context(|| format!("line {number}"))?)))
        .collect()
}

fn entry(line: &str) -> Result<Mutant> {
    let fields: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
    let [name, package, target, test, left_out] = fields[..] else {
        bail!("expected `name | package | target | test | what is left out`, got {} fields", fields.len());
    };
    for (what, field) in [("name", name), ("package", package), ("target", target), ("test", test)] {
        let is_word = !field.is_empty() && !field.contains(char::is_whitespace);
        ensure!(is_word, "the {what} is `{field}`, expected one word");
    }
    ensure!(!left_out.is_empty(), "{name} does not say what is left out");
    let [name, package, target, test, left_out] = [name, package, target, test, left_out].map(str::to_owned);
    Ok(Mutant { name, package, target, test, left_out })
}

/// Returns the names in all `mutant!("...")` of a source without comments.
fn used(code: &str) -> Vec<&str> {
    let literal = |after: &'_ str| -> Option<(usize, usize)> {
        let begin = after.find(|c: char| !c.is_whitespace())?;
        let text = after.get(begin..)?.strip_prefix('"')?;
        Some((begin + 1, begin + 1 + text.find('"')?))
    };
    let calls = code.match_indices("mutant!(").map(|(at, call)| &code[at + call.len()..]);
    calls.filter_map(|after| literal(after).and_then(|(begin, end)| after.get(begin..end))).collect()
}

/// Compares the lists with the code: `(path, source without comments)` of each file under `crates/*/src`.
pub(crate) fn check(lists: &[List], sources: &[(&str, String)]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut listed: BTreeMap<&str, &List> = BTreeMap::new();
    for list in lists {
        for (line, mutant) in &list.mutants {
            let mut report = |text| faults.push(Fault { path: list.path(), line: Some(*line), text });
            let Mutant { name, .. } = mutant;
            // `cpu` may stand for `backend-cpu`.
            let is_ours =
                |prefix| prefix == list.folder || list.folder.strip_prefix("backend-") == Some(prefix);
            if name.split_once('/').is_none_or(|(prefix, rest)| !is_ours(prefix) || rest.is_empty()) {
                report(format!("`{name}` does not begin with `{}/`", list.folder));
            }
            if listed.insert(name, list).is_some() {
                report(format!("`{name}` is listed twice"));
            }
        }
    }
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, code) in sources {
        for name in used(code) {
            found.entry(name).or_default().push(path);
            let folder = path.strip_prefix("crates/").and_then(|path| path.split('/').next());
            if listed.get(name).is_none_or(|list| Some(list.folder.as_str()) != folder) {
                let list = format!("crates/{}/mutants.txt", folder.unwrap_or_default());
                let text = format!("`mutant!(\"{name}\")` is not in {list}");
                faults.push(Fault { path: (*path).to_owned(), line: None, text });
            }
        }
    }
    for list in lists {
        for (line, Mutant { name, .. }) in &list.mutants {
            if !found.contains_key(name.as_str()) {
                let text = format!("`{name}` does not occur in the code");
                faults.push(Fault { path: list.path(), line: Some(*line), text });
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# Comment.\n\ncore/a | transload-core | it | order::a | what | or that\n";

    fn list(text: &str) -> List {
        List { folder: "core".to_owned(), mutants: parse(text).unwrap() }
    }

    fn faults(text: &str, code: &str) -> Vec<String> {
        let sources = [("crates/core/src/x.rs", code.to_owned())];
        check(&[list(text)], &sources).into_iter().map(|fault| fault.text).collect()
    }

    #[test]
    fn last_of_five_fields_may_contain_bars() {
        let [(line, mutant)] = &parse(LIST).unwrap()[..] else { panic!("one entry") };
        assert_eq!((*line, mutant.name.as_str(), mutant.target.as_str()), (3, "core/a", "it"));
        assert_eq!((mutant.test.as_str(), mutant.left_out.as_str()), ("order::a", "what | or that"));
    }

    #[test]
    fn invalid_line_is_refused_with_its_number() {
        for (line, said) in [
            ("core/a | transload-core | it | a", "got 4 fields"),
            ("core/a | transload-core | it | a b | c", "the test is `a b`"),
            (" | transload-core | it | a | c", "the name is ``"),
            ("core/a | transload-core | it | a |", "does not say what is left out"),
        ] {
            let error = format!("{:#}", parse(&format!("# x\n{line}")).unwrap_err());
            assert!(error.starts_with("line 2: ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn names_are_found_in_multiline_code() {
        let code = "if mutant!(\"core/a\") || transload_core::mutant!(\n    \"core/b\"\n) { mutant!($name) }";
        assert_eq!(used(code), ["core/a", "core/b"]);
    }

    #[test]
    fn mismatch_of_list_and_code_is_reported() {
        assert_eq!(faults(LIST, "mutant!(\"core/a\")"), Vec::<String>::new());
        assert_eq!(faults(LIST, ""), ["`core/a` does not occur in the code"]);
        let other = faults(LIST, "mutant!(\"core/a\") mutant!(\"core/b\")");
        assert_eq!(other, ["`mutant!(\"core/b\")` is not in crates/core/mutants.txt"]);
        let twice = format!("{LIST}{LIST}");
        assert_eq!(faults(&twice, "mutant!(\"core/a\")"), ["`core/a` is listed twice"]);
        let elsewhere = "memory/a | transload-core | it | a | b";
        assert!(faults(elsewhere, "mutant!(\"memory/a\")")[0].contains("does not begin with `core/`"));
    }

    #[test]
    fn backend_prefix_may_be_omitted() {
        let cpu = |name: &str| {
            let mutants = parse(&format!("{name} | transload-backend-cpu | it | a | b")).unwrap();
            let sources = [("crates/backend-cpu/src/x.rs", format!("mutant!(\"{name}\")"))];
            check(&[List { folder: "backend-cpu".to_owned(), mutants }], &sources)
        };
        assert_eq!((cpu("cpu/a"), cpu("backend-cpu/a")), (Vec::new(), Vec::new()));
        assert_eq!(cpu("backend/a").len(), 1);
    }

    #[test]
    fn name_of_another_crates_list_is_reported() {
        let sources = [("crates/memory/src/x.rs", "mutant!(\"core/a\")".to_owned())];
        let texts: Vec<String> = check(&[list(LIST)], &sources).into_iter().map(|fault| fault.text).collect();
        assert_eq!(texts, ["`mutant!(\"core/a\")` is not in crates/memory/mutants.txt"]);
    }
}
