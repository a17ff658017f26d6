//! Builds and runs a project that depends on the workspace by git and has no CUDA toolkit, set up as the README says.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

use super::project::example;

/// Commits the tree to a new repository, so that uncommitted changes and shallow clones work, and builds the README's example
/// against it.
pub(super) fn run(sh: &Shell, root: &Path, base: &Path, target: &Path) -> Result<()> {
    if cmd!(sh, "git --version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
        println!("downstream: skipped: no git");
        return Ok(());
    }
    let origin = base.join("origin");
    snapshot(sh, root, &origin)?;
    let readme = fs::read_to_string(root.join("README.md"))?.replace("\r\n", "\n");
    let folder = base.join("by-git");
    for inner in ["src", ".cargo", "cuda-placeholder/lib64"] {
        fs::create_dir_all(folder.join(inner))?;
    }
    let url = origin.display().to_string().replace('\\', "/");
    let manifest = format!(
        "[package]\nname = \"by-git\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         transload = {{ git = \"file:///{}\", features = [\"cuda\"] }}\n\n[workspace]\n",
        url.trim_start_matches('/')
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/main.rs"), example(&readme, 0)?)?;
    fs::write(folder.join(".cargo/config.toml"), settings(&readme)?)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::copy(root.join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))?;
    let _in_folder = sh.push_dir(&folder);
    let _shared = sh.push_env("CARGO_TARGET_DIR", target);
    let command = cmd!(sh, "cargo run --quiet").quiet().env_remove("CUDA_LIBRARY_PATH");
    super::expect_output(command, "cpu/pageable → ").context("a dependency by git")?;
    println!("downstream: a dependency by git builds and runs");
    Ok(())
}

/// Its commit is the same for the same files.
fn snapshot(sh: &Shell, root: &Path, origin: &Path) -> Result<()> {
    cmd!(sh, "git init --quiet {origin}").quiet().run()?;
    let folder = origin.join(".git");
    let (name, mail) = ("user.name=xtask", "user.email=xtask@localhost");
    let date = "2000-01-01T00:00:00Z";
    for arguments in [&["add", "--all"][..], &["commit", "--quiet", "--message", "snapshot"]] {
        let git = cmd!(sh, "git --git-dir {folder} --work-tree {root} -c {name} -c {mail} {arguments...}");
        git.quiet().env("GIT_AUTHOR_DATE", date).env("GIT_COMMITTER_DATE", date).run()?;
    }
    Ok(())
}

/// Returns the settings that the README gives for machines without a toolkit.
fn settings(readme: &str) -> Result<String> {
    let line = readme.lines().map(str::trim).find(|line| line.starts_with("CUDA_LIBRARY_PATH = "));
    Ok(format!("[env]\n{}\n", line.context("the README does not set CUDA_LIBRARY_PATH")?))
}
