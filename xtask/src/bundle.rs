//! Collects stripped programs and tests, packed, in a folder that runs on a machine without Rust.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::{
    artifacts::{self, Artifact},
    date,
};

/// Packages whose programs are bundled, each with a program that must exist.
const PROGRAMS: [(&str, &str); 2] =
    [("transload-cli", "transload"), ("transload-benches", "transload-bench")];

/// Programs that use the software driver only.
const LEFT_OUT: [&str; 2] = ["transload-golden", "transload-instructions"];

/// What the benchmark measures only if it was built so.
const FEATURES: [&str; 2] = ["--features", "transload-benches/wgpu,transload-cli/wgpu"];

/// The package through which tests use a device, real or simulated. The tests of every package that depends on it are
/// bundled, and its own.
const SIMULATOR: &str = "transload-cuda-sim";

/// Packages without a device whose threads should be tested on many processors.
const THREADED: [&str; 2] = ["transload-backend-cpu", "transload-executor"];

/// Test targets that run on hardware: `it` and `conformance` on one device, `peers` on two, `capture` and `migrations` in processes of their
/// own, `soak` for any duration, `examples` those of the documentation. Other targets simulate the driver.
const HARDWARE_TESTS: [&str; 7] = ["it", "conformance", "peers", "capture", "migrations", "soak", "examples"];

/// A C library that other programs load, to test that their own CUDA keeps working.
const PROBE: &str = "transload-probe";

/// Maximum size of the bundle in bytes: it is copied to the machine for each run.
const LARGEST: u64 = 64 << 20;

#[derive(Serialize)]
struct Manifest {
    commit: String,
    /// Whether there were local changes.
    modified: bool,
    date: String,
    rustc: String,
    files: Vec<File>,
}

#[derive(Debug, Serialize)]
struct File {
    name: String,
    package: String,
    target: String,
    kind: String,
    bytes: u64,
    #[serde(skip)]
    from: PathBuf,
}

/// Builds, copies, and writes the manifest.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let json = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    let metadata: Value = serde_json::from_str(&json).context("parsing cargo's metadata")?;
    let tested = tested(&metadata)?;
    let files = select(built(sh, &tested, has_package(&metadata, PROBE))?, &tested)?;
    let folder = artifacts::target_directory(sh)?.join("bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let files = copy(sh, files, &folder)?;
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    for file in &files {
        println!("{:>9.2} MiB  {}", mebibytes(file.bytes), file.name);
    }
    println!("{:>9.2} MiB  in {} files in {}", mebibytes(total), files.len(), folder.display());
    let manifest = Manifest {
        commit: cmd!(sh, "git rev-parse HEAD").quiet().read().context("reading the commit from git")?,
        modified: !cmd!(sh, "git status --porcelain").quiet().read()?.is_empty(),
        date: date::today(),
        rustc: cmd!(sh, "rustc --version").quiet().read()?,
        files,
    };
    sh.write_file(folder.join("manifest.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    ensure!(
        total <= LARGEST,
        "the bundle has {:.1} MiB, the limit is {} MiB: omit a test or make one smaller",
        mebibytes(total),
        LARGEST >> 20
    );
    Ok(())
}

/// Returns the packages whose tests are bundled: those that use a device, and `THREADED`. The tests of programs and of the probe
/// are not, since they start what cargo built.
fn tested(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let has_test = |package: &Value| {
        package["targets"].as_array().into_iter().flatten().any(|target| {
            target["kind"][0] == "test" && HARDWARE_TESTS.iter().any(|name| target["name"] == *name)
        })
    };
    let uses_device = |package: &Value| {
        package["name"] == SIMULATOR
            || package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|other| other["name"] == SIMULATOR)
    };
    let is_bundled = |package: &&Value| {
        let is_program = package["name"] == PROBE || PROGRAMS.iter().any(|(of, _)| package["name"] == *of);
        let is_threaded = THREADED.iter().any(|name| package["name"] == *name);
        (uses_device(package) || is_threaded) && !is_program && has_test(package)
    };
    let names = packages.iter().filter(is_bundled).filter_map(|package| package["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn built(sh: &Shell, tested: &[String], has_probe: bool) -> Result<Vec<Artifact>> {
    fn packages<'a>(names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
        names.flat_map(|name| ["--package", name])
    }
    // One call for all packages, so that cargo unifies their features as for the whole workspace.
    let programs: BTreeSet<&str> = PROGRAMS.iter().map(|(package, _)| *package).collect();
    eprintln!("building tests and programs (profile dist)");
    let mut arguments = vec!["build", "--profile", "dist", "--tests", "--bins"];
    arguments.extend(FEATURES);
    arguments.extend(packages(tested.iter().map(String::as_str).chain(programs)));
    let mut all = artifacts::build(sh, &arguments)?;
    if has_probe {
        eprintln!("building the probe (profile dist)");
        all.extend(artifacts::build(sh, &["build", "--profile", "dist", "--package", PROBE])?);
    }
    Ok(all)
}

fn has_package(metadata: &Value, name: &str) -> bool {
    metadata["packages"].as_array().into_iter().flatten().any(|package| package["name"] == name)
}

/// Selects and names the files to bundle; fails if an expected one is missing.
fn select(built: Vec<Artifact>, tested: &[String]) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut names = BTreeSet::new();
    for artifact in built {
        let Some(name) = bundled_name(&artifact, tested) else { continue };
        if !names.insert(name.clone()) {
            // A program is built for its package's tests and again on its own.
            if artifact.is_test {
                bail!("two tests have the name {name}");
            }
            continue;
        }
        let Artifact { package, target, path, .. } = artifact;
        let kind = if artifact.is_test { "test".to_owned() } else { artifact.kind };
        files.push(File { name, package, target, kind, bytes: 0, from: path });
    }
    for (package, target) in PROGRAMS {
        let found =
            files.iter().any(|file| file.package == package && file.target == target && file.kind == "bin");
        ensure!(found, "package {package} built no program {target}");
    }
    ensure!(tested.iter().any(|package| package == SIMULATOR), "no package {SIMULATOR} has tests");
    for package in tested {
        let found = files.iter().any(|file| file.package == *package && file.kind == "test");
        ensure!(found, "package {package} built no test of {}", HARDWARE_TESTS.join(", "));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn bundled_name(artifact: &Artifact, tested: &[String]) -> Option<String> {
    let Artifact { package, target, kind, is_test, path, .. } = artifact;
    if package == PROBE && kind == "cdylib" && !is_test {
        return path.file_name().map(|name| name.to_string_lossy().into_owned());
    }
    let is_program = PROGRAMS.iter().any(|(of, _)| of == package)
        && kind == "bin"
        && !is_test
        && !LEFT_OUT.contains(&target.as_str());
    if is_program {
        return Some(with_extension(target, path));
    }
    let is_wanted = *is_test && HARDWARE_TESTS.contains(&target.as_str()) && tested.contains(package);
    is_wanted.then(|| with_extension(&format!("{package}--{target}"), path))
}

/// Appends `.exe` if the platform uses it.
fn with_extension(name: &str, path: &Path) -> String {
    match path.extension() {
        Some(extension) if extension == "exe" => format!("{name}.exe"),
        _ => name.to_owned(),
    }
}

/// Copies and packs the files: `name` becomes `name.gz`, a third as large. `on_gpu.sh` unpacks them.
fn copy(sh: &Shell, files: Vec<File>, folder: &Path) -> Result<Vec<File>> {
    files
        .into_iter()
        .map(|file| {
            let to = folder.join(&file.name);
            fs::copy(&file.from, &to)
                .with_context(|| format!("copying {} to {}", file.from.display(), to.display()))?;
            cmd!(sh, "gzip -9 --no-name --force {to}").quiet().run()?;
            let bytes = fs::metadata(folder.join(format!("{}.gz", file.name)))?.len();
            Ok(File { bytes, ..file })
        })
        .collect()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str, kind: &str, is_test: bool) -> Artifact {
        let path = PathBuf::from(format!("/x/{target}-0123"));
        Artifact {
            package: package.to_owned(),
            folder: PathBuf::new(),
            target: target.to_owned(),
            kind: kind.to_owned(),
            is_test,
            path,
        }
    }

    fn complete() -> (Vec<Artifact>, Vec<String>) {
        let tested = [SIMULATOR, "transload-streams", "transload"].map(str::to_owned);
        let mut all: Vec<Artifact> =
            tested.iter().map(|package| artifact(package, "it", "test", true)).collect();
        all.extend(PROGRAMS.iter().map(|(package, target)| artifact(package, target, "bin", false)));
        (all, tested.to_vec())
    }

    #[test]
    fn packages_that_use_a_device_are_bundled() {
        let package = |name: &str, dependency: &str, target: &str| {
            serde_json::json!({"name": name, "dependencies": [{"name": dependency}],
                "targets": [{"name": "lib", "kind": ["lib"]}, {"name": target, "kind": ["test"]}]})
        };
        let metadata = serde_json::json!({"packages": [
            package("transload-new", SIMULATOR, "it"),
            package("transload-old", "transload-core", "it"),
            package("transload-simulated", SIMULATOR, "simulated"),
            package("transload-cli", SIMULATOR, "it"),
            package(PROBE, SIMULATOR, "it"),
            package("transload-executor", "parking_lot", "it"),
            package(SIMULATOR, "libc", "capture"),
        ]});
        assert_eq!(tested(&metadata).unwrap(), ["transload-new", "transload-executor", SIMULATOR]);
    }

    #[test]
    fn names_are_stable_and_programs_appear_once() {
        let (mut built, tested) = complete();
        built.push(artifact("transload-cli", "transload", "bin", false));
        built.push(artifact("transload-cli", "it", "test", true));
        built.extend(LEFT_OUT.map(|name| artifact("transload-benches", name, "bin", false)));
        let names: Vec<String> = select(built, &tested).unwrap().into_iter().map(|file| file.name).collect();
        assert!(names.contains(&"transload".to_owned()));
        assert!(names.contains(&"transload-cuda-sim--it".to_owned()));
        assert_eq!(names.len(), tested.len() + PROGRAMS.len());
    }

    #[test]
    fn missing_file_is_named() {
        for missing in 0..complete().0.len() {
            let (mut built, tested) = complete();
            let removed = built.remove(missing);
            let error = select(built, &tested).unwrap_err().to_string();
            assert!(error.contains(&removed.package), "{error}");
        }
    }
}
