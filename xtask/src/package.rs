//! Packages the crates that are meant for others as for a registry, and builds each from its package.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::artifacts;

/// Checks the manifests, packages every published crate, checks what the packages contain, and builds them with each other in place
/// of the workspace's crates.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let metadata = artifacts::metadata(sh)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let published: Vec<&Value> = packages.iter().filter(|package| package["publish"].is_null()).collect();
    let faults: Vec<String> =
        published.iter().flat_map(|package| manifest_faults(package, packages)).collect();
    ensure!(faults.is_empty(), "not ready to publish:\n  {}", faults.join("\n  "));

    let name_of = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let names: Vec<String> = published.iter().copied().map(name_of).collect();
    let selected = names.iter().flat_map(|name| ["--package", name.as_str()]);
    // Quiet: cargo otherwise warns of each test that a package omits. Cargo's own verification would build against packages of an
    // earlier run, which have the same versions.
    cmd!(sh, "cargo package --quiet --locked --allow-dirty --no-verify {selected...}").quiet().run()?;

    let target = artifacts::target_directory(sh)?;
    let folder = target.join("package").join("unpacked");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let here = machine_paths(&sh.current_dir());
    let (mut members, mut patches) = (String::new(), String::new());
    for (package, name) in published.iter().zip(&names) {
        let unpacked = format!("{name}-{}", package["version"].as_str().unwrap_or_default());
        let archive = target.join("package").join(format!("{unpacked}.crate"));
        // Without the archive's times, which are the same for any content.
        cmd!(sh, "tar --extract --gzip --touch --file {archive} --directory {folder}").quiet().run()?;
        content_faults(&folder.join(&unpacked), &here).with_context(|| format!("the package {name}"))?;
        members.push_str(&format!("{unpacked:?}, "));
        patches.push_str(&format!("{name} = {{ path = {unpacked:?} }}\n"));
    }
    // The profile of the workspace and its target folder, so that what other crates give is not built again.
    let ours = fs::read_to_string(sh.current_dir().join("Cargo.toml"))?.replace("\r\n", "\n");
    let profile = ours.find("\n[profile.dev]").zip(ours.find("\n[profile.release]"));
    let profile = profile.and_then(|(from, to)| ours.get(from..to)).context("Cargo.toml has no profile")?;
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}{profile}"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(sh.current_dir().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let _in_folder = sh.push_dir(&folder);
    // Clippy, since it takes its flags for these crates only.
    let what = ["--workspace", "--lib", "--bins", "--examples", "--all-features"];
    cmd!(sh, "cargo clippy --quiet {what...} --target-dir {target} -- -D warnings").quiet().run()?;
    println!("package: {} crates are ready to publish: {}", names.len(), names.join(", "));
    Ok(())
}

/// Returns what a published package lacks.
fn manifest_faults(package: &Value, all: &[Value]) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut faults = Vec::new();
    if package["readme"] != "README.md" {
        faults.push(format!("{name} has no README.md of its own"));
    }
    if package["documentation"] != format!("https://docs.rs/{name}") {
        faults.push(format!("{name} does not give https://docs.rs/{name} as its documentation"));
    }
    if package["metadata"]["docs"]["rs"]["all-features"] != true {
        faults.push(format!("{name} has no all-features in [package.metadata.docs.rs]"));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let is_private =
            all.iter().any(|other| other["name"] == dependency["name"] && !other["publish"].is_null());
        if is_private {
            faults.push(format!("{name} depends on {}, which is not published", dependency["name"]));
        }
        // Cargo omits a dependency of tests that has a path only. Another one must be on the registry before the package.
        if dependency["name"] == name && dependency["req"] != "*" {
            faults.push(format!("{name} depends on itself; give `path = \".\"` only"));
        }
    }
    faults
}

/// Returns paths that are of this machine alone.
fn machine_paths(root: &Path) -> Vec<String> {
    let of = |name| env::var_os(name).map(PathBuf::from);
    let paths = [Some(root.to_owned()), of("CARGO_HOME"), of("RUSTUP_HOME"), of("HOME"), of("USERPROFILE")];
    // A short path, such as `/`, occurs anywhere.
    paths
        .into_iter()
        .flatten()
        .map(|path| format!("{}/", path.display()))
        .filter(|path| path.len() > 4)
        .collect()
}

/// Fails if an unpacked package lacks a page, links out of itself, or has a file that names a path of this machine.
fn content_faults(folder: &Path, machine: &[String]) -> Result<()> {
    for page in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        let path = folder.join(page);
        // On a system without symbolic links a licence is a file with the path of the text.
        ensure!(fs::metadata(&path).is_ok_and(|file| file.len() > 100), "{page} is missing or empty");
    }
    let page = fs::read_to_string(folder.join("README.md")).context("reading README.md")?;
    ensure!(!page.contains("](.."), "README.md links to a file that is not in the package");
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes);
            if let Some(named) = machine.iter().find(|named| text.contains(*named)) {
                bail!("{} names {named}", path.display());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn package_without_page_or_with_private_dependency_is_reported() {
        let private = json!({ "name": "b", "publish": [] });
        let mut package = json!({
            "name": "a", "publish": null, "readme": "README.md", "documentation": "https://docs.rs/a",
            "metadata": { "docs": { "rs": { "all-features": true } } },
            "dependencies": [{ "name": "a", "req": "*" }],
        });
        assert_eq!(manifest_faults(&package, std::slice::from_ref(&private)), Vec::<String>::new());
        package["dependencies"] = json!([{ "name": "a", "req": "^0.1" }, { "name": "b", "req": "^0.1" }]);
        package["readme"] = Value::Null;
        package["documentation"] = Value::Null;
        package["metadata"] = Value::Null;
        assert_eq!(manifest_faults(&package, &[private]).len(), 5);
    }

    #[test]
    fn package_with_a_local_path_or_a_dead_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for page in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            fs::write(folder.path().join(page), "x".repeat(200)).unwrap();
        }
        let machine = ["/home/me/".to_owned()];
        content_faults(folder.path(), &machine).unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "// see /home/me/notes").unwrap();
        assert!(content_faults(folder.path(), &machine).unwrap_err().to_string().contains("/home/me/"));
        fs::write(folder.path().join("src/lib.rs"), "// see notes").unwrap();
        fs::write(folder.path().join("README.md"), format!("[up](../../README.md){}", "x".repeat(200)))
            .unwrap();
        assert!(
            content_faults(folder.path(), &machine).unwrap_err().to_string().contains("not in the package")
        );
        fs::write(folder.path().join("README.md"), "x".repeat(200)).unwrap();
        fs::write(folder.path().join("LICENSE-MIT"), "../../LICENSE-MIT").unwrap();
        assert!(content_faults(folder.path(), &machine).is_err());
    }
}
