//! Builds small projects outside the tree that depend on the workspace's crates, as a user's project would.
//!
//! They have no `CUDA_LIBRARY_PATH` from this workspace, link with each linker at hand, with and without link-time
//! optimisation, as a program and as a cdylib; none may need libcuda to start, and none may export a `cu*` symbol.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use xshell::{Shell, cmd};

/// A project: its name, its dependency, its program's `main` and what a run must print.
struct Project {
    name: &'static str,
    dependency: &'static str,
    /// Whether cust is in the dependency tree, which wants a directory that looks like a toolkit.
    with_cust: bool,
    source: &'static str,
    prints: &'static str,
}

const PROJECTS: &[Project] = &[
    Project {
        name: "driver",
        dependency: r#"transload-cuda-sys = { path = "ROOT/crates/cuda-sys" }"#,
        with_cust: true,
        source: r#"
#[unsafe(no_mangle)]
pub extern "C" fn outside_entry() -> i32 {
    match transload_cuda_sys::Driver::get() {
        Ok(driver) => println!("outside: CUDA {}", driver.version()),
        Err(reason) => println!("outside: {reason}"),
    }
    let cust = transload_cuda_sys::cust::init(transload_cuda_sys::cust::CudaFlags::empty());
    println!("outside: cust {cust:?}");
    0
}
"#,
        prints: "outside: ",
    },
    Project {
        name: "facade",
        dependency: r#"transload = { path = "ROOT/crates/transload" }"#,
        with_cust: false,
        source: r#"
#[unsafe(no_mangle)]
pub extern "C" fn outside_entry() -> i32 {
    match transload::Runtime::discover() {
        Ok(runtime) => println!("outside: {} devices", runtime.devices().len()),
        Err(reason) => println!("outside: {reason}"),
    }
    0
}
"#,
        prints: "outside: 1 devices",
    },
];

/// Builds and runs every project in every way; fails at the first that does not hold.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let root = sh.current_dir();
    let base = root.join("target").join("outside");
    for project in PROJECTS {
        let folder = base.join(project.name);
        write(&root, &folder, project)?;
        let _in_folder = sh.push_dir(&folder);
        // The workspace's own setting must not reach the outside project.
        let _unset = sh.push_env(
            "CUDA_LIBRARY_PATH",
            if project.with_cust { folder.join("toolkit") } else { "".into() },
        );
        let _shared = sh.push_env("CARGO_TARGET_DIR", base.join("target"));
        for profile in ["dev", "lto"] {
            for linker in linkers(sh) {
                check(sh, &base.join("target"), project, profile, linker).with_context(|| {
                    format!("{} with profile {profile} and linker {linker}", project.name)
                })?;
                println!("outside: {} builds and runs with profile {profile}, linker {linker}", project.name);
            }
        }
    }
    Ok(())
}

fn linkers(sh: &Shell) -> Vec<&'static str> {
    let mut linkers = vec!["default"];
    if cfg!(target_os = "linux")
        && cmd!(sh, "ld.bfd --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
    {
        linkers.push("bfd");
    }
    linkers
}

fn write(root: &Path, folder: &Path, project: &Project) -> Result<()> {
    fs::create_dir_all(folder.join("src"))?;
    fs::create_dir_all(folder.join("toolkit").join("lib64"))?;
    let dependency = project.dependency.replace("ROOT", &root.display().to_string().replace('\\', "/"));
    let manifest = format!(
        "[package]\nname = \"outside-{0}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [lib]\nname = \"outside_{0}\"\ncrate-type = [\"cdylib\", \"rlib\"]\n\n\
         [[bin]]\nname = \"outside-{0}\"\npath = \"src/main.rs\"\n\n\
         [dependencies]\n{dependency}\n\n\
         [profile.lto]\ninherits = \"release\"\nlto = \"fat\"\nopt-level = 1\n\n[workspace]\n",
        project.name
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/lib.rs"), project.source)?;
    fs::write(
        folder.join("src/main.rs"),
        format!("fn main() {{ outside_{}::outside_entry(); }}\n", project.name),
    )?;
    // The versions that the workspace is tested with.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::copy(root.join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))?;
    Ok(())
}

fn check(sh: &Shell, target: &Path, project: &Project, profile: &str, linker: &str) -> Result<()> {
    let name = format!("outside-{}", project.name);
    let link: &[&str] = if linker == "default" { &[] } else { &["-C", "link-arg=-fuse-ld=bfd"] };
    cmd!(sh, "cargo rustc --quiet --profile {profile} --bin {name} -- {link...}").quiet().run()?;
    cmd!(sh, "cargo rustc --quiet --profile {profile} --lib -- {link...}").quiet().run()?;
    let folder = target.join(if profile == "dev" { "debug" } else { profile });
    let program = folder.join(&name);
    let printed = cmd!(sh, "{program}").quiet().read()?;
    ensure!(printed.contains(project.prints), "it printed {printed:?}, not {:?}", project.prints);
    if project.with_cust {
        ensure!(printed.contains("cust "), "cust was not reached: {printed:?}");
    } else {
        let tree = cmd!(sh, "cargo tree --quiet --prefix none").quiet().read()?;
        ensure!(
            !tree.lines().any(|line| line.starts_with("cust ")),
            "cust is in the tree without the cuda feature"
        );
    }
    if cfg!(target_os = "linux") {
        let library = folder.join(format!("liboutside_{}.so", project.name));
        for file in [&program, &library] {
            needs_no_driver(sh, file)?;
        }
    }
    Ok(())
}

/// Fails where a file needs libcuda to start, or exports a symbol that could stand in for the driver's.
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
