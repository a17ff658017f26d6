//! Rules about packages: layers, allowed dependencies, and a documented reason for each dependency.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Finding;

/// Each package's layer. A package may depend on lower layers only.
const LAYERS: [(&str, u8); 17] = [
    ("transload-core", 0),
    ("transload-cuda-sys", 0),
    ("transload-executor", 1),
    ("transload-cuda-sim", 1),
    ("transload-memory", 2),
    ("transload-streams", 3),
    ("transload-backend-cpu", 4),
    ("transload-backend-cuda", 4),
    ("transload-backend-wgpu", 4),
    ("transload-transfer", 4),
    ("transload-dlpack", 4),
    ("transload-profiler", 4),
    ("transload", 5),
    ("transload-cli", 6),
    ("transload-benches", 6),
    ("transload-probe", 6),
    ("xtask", 6),
];

/// Packages that must not depend on a device family.
const NEUTRAL: [&str; 4] =
    ["transload-core", "transload-executor", "transload-transfer", "transload-profiler"];

/// Packages that use CUDA.
const CUDA: [&str; 8] = [
    "cust",
    "cust_raw",
    "cudarc",
    "transload-cuda-sys",
    "transload-cuda-sim",
    "transload-memory",
    "transload-streams",
    "transload-backend-cuda",
];

const LICENCE: &str = "MIT OR Apache-2.0";

/// A package of the workspace.
#[derive(Clone, Debug)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) manifest: PathBuf,
    description: String,
    license: String,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Debug)]
struct Dependency {
    name: String,
    is_dev: bool,
}

/// Parses the packages of `cargo metadata`.
pub(super) fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    Ok(packages
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            manifest: PathBuf::from(text(&package["manifest_path"])),
            description: text(&package["description"]),
            license: text(&package["license"]),
            dependencies: package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|dependency| Dependency {
                    name: text(&dependency["name"]),
                    is_dev: dependency["kind"] == "dev",
                })
                .collect(),
        })
        .collect())
}

/// Checks every rule about packages and their dependencies.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    packages
        .iter()
        .flat_map(|package| {
            let name = &package.name;
            let mut texts = Vec::new();
            if package.description.len() < 10 {
                texts.push("has no description".to_owned());
            }
            if package.license != LICENCE {
                texts.push(format!("is licensed `{}`, not `{LICENCE}`", package.license));
            }
            match layer(name) {
                Some(layer) => {
                    texts.extend(
                        package.dependencies.iter().filter_map(|to| dependency_fault(name, layer, to)),
                    );
                }
                None => texts.push("is in no layer of xtask/src/tidy/manifests.rs".to_owned()),
            }
            texts.into_iter().map(|text| Finding::new(name, None, text)).collect::<Vec<_>>()
        })
        .collect()
}

fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(package, _)| *package == name).map(|(_, layer)| *layer)
}

/// Returns the violation of one dependency, if any.
fn dependency_fault(from: &str, from_layer: u8, to: &Dependency) -> Option<String> {
    let name = to.name.as_str();
    // Tests may depend on their own layer and on the software driver.
    if to.is_dev {
        let is_upward = layer(name).is_some_and(|layer| layer > from_layer);
        return is_upward.then(|| format!("dev-depends on {name}, which is in a higher layer"));
    }
    if layer(name).is_some_and(|layer| layer >= from_layer) {
        return Some(format!("depends on {name}, which is not in a lower layer"));
    }
    if NEUTRAL.contains(&from) && CUDA.contains(&name) {
        return Some(format!("depends on {name}, but may use core's traits only"));
    }
    if name == "transload-cuda-sim" && from_layer < 5 {
        return Some("depends on the software driver outside tests".to_owned());
    }
    if name == "anyhow" && from_layer < 5 {
        return Some("depends on anyhow: libraries have typed errors".to_owned());
    }
    None
}

/// Versions are in the workspace's table only.
pub(super) fn check_versions(package: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in manifest.lines().enumerate().map(|(index, line)| (index, line.trim())) {
        if line.starts_with('[') {
            in_dependencies = line.ends_with("dependencies]");
        } else if in_dependencies
            && line.contains('=')
            && !line.starts_with('#')
            && !line.replace(' ', "").contains("workspace=true")
            // The package itself, with other features for its tests.
            && !line.replace(' ', "").contains("{path=\".\"")
        {
            let name = line.split('=').next().unwrap_or(line).trim();
            let text = format!("line {} gives {name} its own version: use the workspace's table", index + 1);
            findings.push(Finding::new(package, None, text));
        }
    }
    findings
}

/// Each entry of the workspace's table has a reason in the architecture's section on dependencies.
pub(super) fn check_reasons(table: &str, architecture: &str) -> Vec<Finding> {
    let section = architecture.split("\n## Dependencies\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let entries = table.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let entries = entries.split("\n[").next().unwrap_or_default();
    entries
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .filter(|name| !name.starts_with("transload"))
        .filter(|name| !section.contains(&format!("`{name}`")))
        .map(|name| {
            let text = format!("gives no reason for the dependency `{name}` under \"Dependencies\"");
            Finding::new("docs/architecture.md", None, text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, is_dev)| Dependency { name: (*name).to_owned(), is_dev: *is_dev });
        Package {
            name: name.to_owned(),
            manifest: PathBuf::new(),
            description: "A description.".to_owned(),
            license: LICENCE.to_owned(),
            dependencies: dependencies.collect(),
        }
    }

    fn broken(name: &str, dependencies: &[(&str, bool)]) -> usize {
        check(&[package(name, dependencies)]).len()
    }

    #[test]
    fn dependencies_point_down() {
        assert_eq!(broken("transload-streams", &[("transload-memory", false), ("parking_lot", false)]), 0);
        assert_eq!(broken("transload-memory", &[("transload-streams", false)]), 1);
        assert_eq!(broken("transload-transfer", &[("transload-profiler", false)]), 1);
        assert_eq!(broken("transload-transfer", &[("transload-backend-cpu", true)]), 0);
        assert_eq!(broken("transload-core", &[("transload-backend-cpu", true)]), 1);
    }

    #[test]
    fn neutral_packages_depend_on_core_alone() {
        assert_eq!(broken("transload-transfer", &[("transload-core", false)]), 0);
        assert_eq!(broken("transload-transfer", &[("transload-cuda-sys", false)]), 1);
        assert_eq!(broken("transload-core", &[("cust", false)]), 1);
    }

    #[test]
    fn library_with_software_driver_or_anyhow_is_reported() {
        assert_eq!(broken("transload-streams", &[("transload-cuda-sim", false), ("anyhow", false)]), 2);
        assert_eq!(broken("transload-streams", &[("transload-cuda-sim", true)]), 0);
        assert_eq!(broken("transload-cli", &[("transload-cuda-sim", false), ("anyhow", false)]), 0);
    }

    #[test]
    fn a_package_has_a_floor_a_description_and_the_licence() {
        assert_eq!(broken("transload-new", &[]), 1);
        let mut bare = package("transload-core", &[]);
        bare.description = "x".to_owned();
        bare.license.clear();
        assert_eq!(check(&[bare]).len(), 2);
    }

    #[test]
    fn version_outside_the_table_is_reported() {
        let manifest = "[package]\nversion = \"1\"\n[dependencies]\na = { workspace = true }\nb.workspace = true\n\
                        # c = \"1\"\n[target.'cfg(unix)'.dev-dependencies]\nd = \"1\"\np = { path = \".\" }\n[lints]\nworkspace = true\n";
        let findings = check_versions("p", manifest);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("gives d its own version"), "{findings:?}");
    }

    #[test]
    fn dependency_without_a_reason_is_reported() {
        let table = "[workspace.dependencies]\ntransload-core = {}\na = \"1\"\nb = { version = \"1\" }\n\n[other]\nc = 1\n";
        let reasons = "# A\n`b`\n## Dependencies\n- `a`: good.\n## After\n`b`\n";
        let findings = check_reasons(table, reasons);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("`b`"));
    }
}
