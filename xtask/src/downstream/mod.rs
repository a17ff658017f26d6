//! Builds small projects outside the tree that depend on the workspace's crates, as a user's project would.
//!
//! They lie in the system's folder for temporary files, where no setting of this workspace reaches them. They are linked
//! with each linker at hand, with and without link-time optimisation, as a program and as a C library that another
//! program loads; none may need libcuda to start, and none may export a `cu*` symbol.

mod single_crates;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use xshell::{Cmd, Shell, cmd};

/// A project: its dependency, its library, its program, and what the two print.
struct Project {
    name: &'static str,
    dependency: &'static str,
    /// Whether cust is in the dependency tree, which wants a directory that looks like a toolkit.
    with_cust: bool,
    library: &'static str,
    program: Program,
    library_prints: &'static str,
    program_prints: &'static str,
}

enum Program {
    /// Calls the library.
    Entry,
    /// The example in the README, as it stands there.
    Readme,
}

const DRIVER: &str = r#"
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
"#;

const FACADE: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn outside_entry() -> i32 {
    match transload::Runtime::discover() {
        Ok(runtime) => println!("outside: {} devices", runtime.devices().len()),
        Err(reason) => println!("outside: {reason}"),
    }
    0
}
"#;

/// Loads a C library and calls its entry, as Python does.
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
        // RTLD_NOW: a function that nobody defines is found here.
        let library = dlopen(file.as_ptr(), 2);
        assert!(!library.is_null(), "{:?}", CStr::from_ptr(dlerror()));
        let entry = dlsym(library, c"outside_entry".as_ptr());
        assert!(!entry.is_null(), "no entry");
        process::exit(mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(entry)());
    }
}
"#;

const PROJECTS: &[Project] = &[
    Project {
        name: "driver",
        dependency: r#"transload-cuda-sys = { path = "ROOT/crates/cuda-sys" }"#,
        with_cust: true,
        library: DRIVER,
        program: Program::Entry,
        library_prints: "outside: cust ",
        program_prints: "outside: cust ",
    },
    Project {
        name: "facade",
        dependency: r#"transload = { path = "ROOT/crates/transload" }"#,
        with_cust: false,
        library: FACADE,
        program: Program::Entry,
        library_prints: "outside: 1 devices",
        program_prints: "outside: 1 devices",
    },
    Project {
        name: "readme",
        dependency: r#"transload = { path = "ROOT/crates/transload", features = ["cuda"] }"#,
        with_cust: true,
        library: FACADE,
        program: Program::Readme,
        library_prints: " devices",
        program_prints: "cpu/pageable → ",
    },
];

/// A way to link: its name and what rustc is told.
struct Linker {
    name: &'static str,
    arguments: Vec<String>,
}

/// Builds and runs every project in every way; fails at the first that does not hold.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let root = sh.current_dir();
    let base = outside_of(&root)?;
    // Kept from run to run, so that only the projects themselves are built again.
    let target = root.join("target").join("outside").join("target");
    let linkers = linkers(sh)?;
    let loader = loader(sh, &base)?;
    for project in PROJECTS {
        let folder = base.join(project.name);
        write(&root, &folder, project)?;
        let _in_folder = sh.push_dir(&folder);
        let _shared = sh.push_env("CARGO_TARGET_DIR", &target);
        for profile in ["dev", "lto"] {
            for linker in &linkers {
                let name = linker.name;
                check(sh, &target, project, profile, linker, loader.as_deref())
                    .with_context(|| format!("{} with profile {profile} and linker {name}", project.name))?;
                println!("outside: {} builds and runs with profile {profile}, linker {name}", project.name);
            }
        }
    }
    single_crates::run(sh, &root, &base, &target)?;
    fs::remove_dir_all(&base).with_context(|| format!("removing {}", base.display()))
}

/// An empty folder for the projects. The same at every run from one tree, since cargo would take projects elsewhere for
/// others and keep what it built for each.
fn outside_of(root: &Path) -> Result<PathBuf> {
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

fn linkers(sh: &Shell) -> Result<Vec<Linker>> {
    if !cfg!(target_os = "linux") {
        return Ok(vec![Linker { name: "default", arguments: Vec::new() }]);
    }
    let link = |argument: &str| ["-C".to_owned(), format!("link-arg={argument}")];
    let has =
        |program: &str| cmd!(sh, "{program} --version").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    let mut linkers = Vec::new();
    // Rust brings one along; the compiler driver finds it in this folder.
    let libraries = PathBuf::from(cmd!(sh, "rustc --print target-libdir").quiet().read()?);
    let own = libraries.with_file_name("bin").join("gcc-ld");
    if own.join("ld.lld").exists() {
        let arguments = [link(&format!("-B{}", own.display())), link("-fuse-ld=lld")].concat();
        linkers.push(Linker { name: "lld", arguments });
    } else if has("ld.lld") {
        linkers.push(Linker { name: "lld", arguments: link("-fuse-ld=lld").to_vec() });
    } else {
        println!("outside: skipped: no ld.lld; the default linker instead");
        linkers.push(Linker { name: "default", arguments: Vec::new() });
    }
    if has("ld.bfd") {
        linkers.push(Linker { name: "bfd", arguments: link("-fuse-ld=bfd").to_vec() });
    } else {
        println!("outside: skipped: no ld.bfd");
    }
    Ok(linkers)
}

/// The program that loads C libraries.
fn loader(sh: &Shell, base: &Path) -> Result<Option<PathBuf>> {
    if !cfg!(target_os = "linux") {
        println!("outside: skipped: C libraries are loaded on Linux only");
        return Ok(None);
    }
    let (source, program) = (base.join("loader.rs"), base.join("loader"));
    fs::write(&source, LOADER)?;
    cmd!(sh, "rustc --edition 2024 -o {program} {source}").quiet().run()?;
    Ok(Some(program))
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
    let program = match project.program {
        Program::Entry => format!("fn main() {{ outside_{}::outside_entry(); }}\n", project.name),
        Program::Readme => example(&fs::read_to_string(root.join("README.md"))?)?.to_owned(),
    };
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/lib.rs"), project.library)?;
    fs::write(folder.join("src/main.rs"), program)?;
    // The versions that the workspace is tested with.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::copy(root.join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))?;
    Ok(())
}

/// The first block of Rust in a page.
fn example(page: &str) -> Result<&str> {
    let block = page.split_once("\n```rust\n").and_then(|(_, rest)| rest.split_once("\n```"));
    block.map(|(example, _)| example).context("the page has no block of Rust")
}

/// A command in a project, without the workspace's own setting: that has reached this process by way of cargo.
fn alone<'a>(command: Cmd<'a>, folder: &Path, project: &Project) -> Cmd<'a> {
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
        alone(build, &here, project).run()?;
    }
    let folder = target.join(if profile == "dev" { "debug" } else { profile });
    let program = folder.join(&name);
    says(cmd!(sh, "{program}"), project.program_prints)?;
    let tree = alone(cmd!(sh, "cargo tree --quiet --prefix none"), &here, project).read()?;
    let has_cust = tree.lines().any(|line| line.starts_with("cust "));
    ensure!(has_cust == project.with_cust, "cust in the dependency tree: {has_cust}");
    if cfg!(target_os = "linux") {
        let library = folder.join(format!("liboutside_{}.so", project.name));
        for file in [&program, &library] {
            needs_no_driver(sh, file)?;
            is_linked_by(sh, file, linker.name)?;
        }
        if let Some(loader) = loader {
            says(cmd!(sh, "{loader} {library}"), project.library_prints).context("loaded as a C library")?;
        }
    }
    Ok(())
}

fn says(command: Cmd<'_>, expected: &str) -> Result<()> {
    let printed = command.quiet().read()?;
    ensure!(printed.contains(expected), "it printed {printed:?}, not {expected:?}");
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

/// LLD leaves its name in a file, GNU ld does not.
fn is_linked_by(sh: &Shell, file: &Path, linker: &str) -> Result<()> {
    let comment = cmd!(sh, "readelf --string-dump=.comment {file}").quiet().ignore_stderr().read()?;
    let by_lld = comment.contains("Linker: LLD");
    ensure!(linker == "default" || by_lld == (linker == "lld"), "{} was linked by another", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_first_block_of_rust() {
        let page = "# A\n\n```console\n$ x\n```\n\n```rust\nfn main() {}\n// end\n```\n\n```rust\nno\n```\n";
        assert_eq!(example(page).unwrap(), "fn main() {}\n// end");
        assert!(example("# A\n").is_err());
    }
}
