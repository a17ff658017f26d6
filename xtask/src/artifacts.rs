//! Builds with cargo and locates the results.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use xshell::{Shell, cmd};

/// A build product of cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) package: String,
    /// The package's folder.
    pub(crate) folder: PathBuf,
    pub(crate) target: String,
    /// `bin`, `lib`, `test`, `cdylib`, …
    pub(crate) kind: String,
    /// Whether it is a test runner.
    pub(crate) is_test: bool,
    /// The executable or library.
    pub(crate) path: PathBuf,
}

/// Runs cargo with `arguments` and returns every executable and C library that it built.
pub(crate) fn build(sh: &Shell, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let output = cmd!(sh, "cargo {arguments...} --locked --message-format json-render-diagnostics").read()?;
    output.lines().filter_map(|line| artifact(line).transpose()).collect()
}

/// The workspace's folder for build outputs.
pub(crate) fn target_directory(sh: &Shell) -> Result<PathBuf> {
    metadata(sh)?["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target folder")
}

/// Returns the crate names of the workspace's libraries.
pub(crate) fn libraries(sh: &Shell) -> Result<Vec<String>> {
    let metadata = metadata(sh)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let libraries = targets.filter(|target| target["kind"][0] == "lib");
    Ok(libraries.filter_map(|target| target["name"].as_str()).map(|name| name.replace('-', "_")).collect())
}

/// Returns `cargo metadata` of the workspace.
pub(crate) fn metadata(sh: &Shell) -> Result<Value> {
    let json = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    serde_json::from_str(&json).context("parsing cargo's metadata")
}

/// Parses one message of cargo; `None` unless it names an executable or a C library.
fn artifact(line: &str) -> Result<Option<Artifact>> {
    let message: Value = serde_json::from_str(line).with_context(|| format!("cargo printed {line}"))?;
    if message["reason"] != "compiler-artifact" {
        return Ok(None);
    }
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    let path = match message["executable"].as_str() {
        Some(path) => path,
        None if kind == "cdylib" => message["filenames"][0].as_str().context("a cdylib without a file")?,
        None => return Ok(None),
    };
    if kind == "custom-build" {
        return Ok(None);
    }
    Ok(Some(Artifact {
        package: package_name(message["package_id"].as_str().unwrap_or_default()).to_owned(),
        folder: message["manifest_path"].as_str().map(PathBuf::from).unwrap_or_default().with_file_name(""),
        target: message["target"]["name"].as_str().context("a target without a name")?.to_owned(),
        kind: kind.to_owned(),
        is_test: message["profile"]["test"] == true,
        path: PathBuf::from(path),
    }))
}

/// Returns the name in a package id: `path+file:///x/crates/core#transload-core@0.1.0`, or `…/xtask#0.1.0` if the folder has
/// the package's name.
fn package_name(id: &str) -> &str {
    let (location, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _version)) => name,
        None => location.rsplit('/').next().unwrap_or(location),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_package_id_name_the_package() {
        assert_eq!(package_name("path+file:///x/crates/core#transload-core@0.1.0"), "transload-core");
        assert_eq!(package_name("path+file:///x/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn only_executables_and_libraries_are_listed() {
        let library =
            r#"{"reason":"compiler-artifact","executable":null,"target":{"kind":["lib"],"name":"a"}}"#;
        assert_eq!(artifact(library).unwrap(), None);
        let test = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/memory#transload-memory@0.1.0",
            "executable":"/x/it-1","target":{"kind":["test"],"name":"it"},"profile":{"test":true}}"#;
        let found = artifact(test).unwrap().unwrap();
        assert_eq!(
            (found.package.as_str(), found.target.as_str(), found.is_test),
            ("transload-memory", "it", true)
        );
    }
}
