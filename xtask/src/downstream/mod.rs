//! Builds small downstream projects that depend on the workspace's crates, as a user's project would.
//!
//! They are created in the system's temporary folder, where no setting of this workspace applies. They are linked with each
//! available linker, the largest with link-time optimisation too, as a program and as a C library that another program loads.
//! None may need libcuda to start, and none may export a `cu*` symbol.

mod by_git;
mod linkers;
mod programs;
mod project;
mod single_crates;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use xshell::{Cmd, Shell, cmd};

use self::{
    linkers::{Linker, is_linked_by, linkers},
    project::{PROJECTS, Project},
};

/// Which ways each project is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ways {
    /// Each profile and linker.
    All,
    /// The development profile and the first linker, for every change: the others take minutes.
    One,
}

/// Builds and runs every project; stops at the first failure.
pub(crate) fn run(sh: &Shell, ways: Ways) -> Result<()> {
    let root = sh.current_dir();
    let base = project_folder(&root)?;
    // Kept between runs, so that only the projects themselves are rebuilt.
    let target = root.join("target").join("outside").join("target");
    let _fast = sh.push_env("CARGO_PROFILE_DEV_DEBUG", "false");
    let mut linkers = linkers(sh)?;
    if ways == Ways::One {
        linkers.truncate(1);
    }
    let loader = loader(sh, &base)?;
    for project in PROJECTS {
        let folder = base.join(project.name);
        project::write(sh, &root, &folder, project)?;
        let _in_folder = sh.push_dir(&folder);
        let _shared = sh.push_env("CARGO_TARGET_DIR", &target);
        let profiles = if project.with_lto && ways == Ways::All { &["dev", "lto"][..] } else { &["dev"] };
        for profile in profiles {
            for linker in &linkers {
                let name = linker.name;
                check(sh, &target, project, profile, linker, loader.as_deref())
                    .with_context(|| format!("{} with profile {profile} and linker {name}", project.name))?;
                println!(
                    "downstream: {} builds and runs with profile {profile}, linker {name}",
                    project.name
                );
            }
        }
    }
    programs::run(sh, &root, &base, &target)?;
    single_crates::run(sh, &root, &base, &target)?;
    by_git::run(sh, &root, &base, &target)?;
    fs::remove_dir_all(&base).with_context(|| format!("removing {}", base.display()))
}

/// Creates an empty folder for the projects. Its path is the same for every run from one tree: cargo keeps build products by
/// project path.
fn project_folder(root: &Path) -> Result<PathBuf> {
    let name: String =
        root.display().to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    let base = env::temp_dir().join(format!("transload-outside{name}"));
    ensure!(!base.starts_with(root), "{} is inside the tree; set TMPDIR", base.display());
    if base.exists() {
        fs::remove_dir_all(&base).with_context(|| format!("removing {}", base.display()))?;
    }
    fs::create_dir_all(&base).with_context(|| format!("creating {}", base.display()))?;
    Ok(base)
}

/// A program that loads a C library and calls its entry, as Python does.
const LOADER: &str = r#"
use std::{env, ffi::{CStr, CString, c_char, c_int, c_void}, mem, process};
#[link(name = "dl")]
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
fn main() {
    let file = CString::new(env::args().nth(1).unwrap()).unwrap();
    unsafe {
        // RTLD_NOW: undefined symbols are reported here.
        let library = dlopen(file.as_ptr(), 2);
        assert!(!library.is_null(), "{:?}", CStr::from_ptr(dlerror()));
        let entry = dlsym(library, c"outside_entry".as_ptr());
        assert!(!entry.is_null(), "no entry");
        process::exit(mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(entry)());
    }
}
"#;

/// Builds `LOADER`.
fn loader(sh: &Shell, base: &Path) -> Result<Option<PathBuf>> {
    if !cfg!(target_os = "linux") {
        println!("downstream: skipped: C libraries are loaded on Linux only");
        return Ok(None);
    }
    let (source, program) = (base.join("loader.rs"), base.join("loader"));
    fs::write(&source, LOADER)?;
    cmd!(sh, "rustc --edition 2024 -o {program} {source}").quiet().run()?;
    Ok(Some(program))
}

/// Removes the workspace's setting of `CUDA_LIBRARY_PATH`, which cargo passed to this process.
fn in_project<'a>(command: Cmd<'a>, folder: &Path, project: &Project) -> Cmd<'a> {
    let command = command.quiet().env_remove("CUDA_LIBRARY_PATH");
    if project.with_cust { command.env("CUDA_LIBRARY_PATH", folder.join("toolkit")) } else { command }
}

fn check(
    sh: &Shell,
    target: &Path,
    project: &Project,
    profile: &str,
    linker: &Linker,
    loader: Option<&Path>,
) -> Result<()> {
    let name = format!("outside-{}", project.name);
    let (here, link) = (sh.current_dir(), &linker.arguments);
    for what in [&["--bin", name.as_str()][..], &["--lib"]] {
        let build = cmd!(sh, "cargo rustc --quiet --profile {profile} {what...} -- {link...}");
        in_project(build, &here, project).run()?;
    }
    let folder = target.join(if profile == "dev" { "debug" } else { profile });
    let program = folder.join(&name);
    expect_output(cmd!(sh, "{program}"), project.program_prints)?;
    let tree = in_project(cmd!(sh, "cargo tree --quiet --prefix none"), &here, project).read()?;
    let has_cust = tree.lines().any(|line| line.starts_with("cust "));
    ensure!(has_cust == project.with_cust, "cust in the dependency tree: {has_cust}");
    if cfg!(target_os = "linux") {
        let library = folder.join(format!("liboutside_{}.so", project.name));
        for file in [&program, &library] {
            needs_no_driver(sh, file)?;
            is_linked_by(sh, file, linker.name)?;
        }
        if let Some(loader) = loader {
            expect_output(cmd!(sh, "{loader} {library}"), project.library_prints)
                .context("loaded as a C library")?;
        }
    }
    Ok(())
}

fn expect_output(command: Cmd<'_>, expected: &str) -> Result<()> {
    let printed = command.quiet().read()?;
    ensure!(printed.contains(expected), "it printed {printed:?}, not {expected:?}");
    Ok(())
}

/// Fails if a file needs libcuda to start or exports a symbol that could shadow the driver's.
fn needs_no_driver(sh: &Shell, file: &Path) -> Result<()> {
    let needed = cmd!(sh, "ldd {file}").quiet().read()?;
    ensure!(!needed.contains("libcuda"), "{} needs libcuda to start", file.display());
    let symbols = cmd!(sh, "nm --dynamic --defined-only {file}").quiet().ignore_stderr().read()?;
    let driver =
        |symbol: &&str| symbol.starts_with("cu") && symbol[2..].starts_with(|c: char| c.is_ascii_uppercase());
    let exported = symbols.lines().filter_map(|line| line.split_whitespace().last()).find(driver);
    ensure!(exported.is_none(), "{} exports {exported:?}", file.display());
    Ok(())
}
