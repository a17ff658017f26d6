//! The downstream projects and their sources.

use std::path::Path;

use anyhow::{Context as _, Result};
use xshell::Shell;

/// A project: its dependency, library and program, and the text that both must print.
pub(super) struct Project {
    pub(super) name: &'static str,
    dependency: &'static str,
    /// Whether cust is in the dependency tree; it needs a directory that looks like a toolkit.
    pub(super) with_cust: bool,
    /// Whether it is built with link-time optimisation too. The others are parts of those that are.
    pub(super) with_lto: bool,
    library: &'static str,
    program: Program,
    pub(super) library_prints: &'static str,
    pub(super) program_prints: &'static str,
}

enum Program {
    /// Calls the library.
    Entry,
    /// An example of the README, verbatim, by its number from 0.
    Readme(usize),
}

const DRIVER: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn outside_entry() -> i32 {
    match transload_cuda_sys::Driver::get() {
        Ok(driver) => println!("downstream: CUDA {}", driver.version()),
        Err(reason) => println!("downstream: {reason}"),
    }
    let cust = transload_cuda_sys::cust::init(transload_cuda_sys::cust::CudaFlags::empty());
    println!("downstream: cust {cust:?}");
    0
}
"#;

const FACADE: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn outside_entry() -> i32 {
    match transload::Runtime::discover() {
        Ok(runtime) => println!("downstream: {} devices", runtime.devices().len()),
        Err(reason) => println!("downstream: {reason}"),
    }
    0
}
"#;

pub(super) const PROJECTS: &[Project] = &[
    Project {
        name: "driver",
        dependency: r#"transload-cuda-sys = { path = "ROOT/crates/cuda-sys" }"#,
        with_cust: true,
        with_lto: true,
        library: DRIVER,
        program: Program::Entry,
        library_prints: "downstream: cust ",
        program_prints: "downstream: cust ",
    },
    Project {
        name: "facade",
        dependency: r#"transload = { path = "ROOT/crates/transload" }"#,
        with_cust: false,
        with_lto: false,
        library: FACADE,
        program: Program::Entry,
        library_prints: "downstream: 1 devices",
        program_prints: "downstream: 1 devices",
    },
    Project {
        name: "readme",
        dependency: r#"transload = { path = "ROOT/crates/transload", features = ["cuda"] }"#,
        with_cust: true,
        with_lto: false,
        library: FACADE,
        program: Program::Readme(0),
        library_prints: " devices",
        program_prints: "cpu/pageable → ",
    },
    Project {
        name: "simulated",
        dependency: "transload = { path = \"ROOT/crates/transload\", features = [\"cuda\"] }\n\
                     transload-cuda-sim = { path = \"ROOT/crates/cuda-sim\" }",
        with_cust: true,
        with_lto: true,
        library: FACADE,
        program: Program::Readme(1),
        library_prints: " devices",
        // It asserts what it reads back.
        program_prints: "",
    },
];

pub(super) fn write(sh: &Shell, root: &Path, folder: &Path, project: &Project) -> Result<()> {
    sh.create_dir(folder.join("toolkit").join("lib64"))?;
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
        Program::Readme(number) => example(&sh.read_file(root.join("README.md"))?, number)?.to_owned(),
    };
    sh.write_file(folder.join("Cargo.toml"), manifest)?;
    sh.write_file(folder.join("src/lib.rs"), project.library)?;
    sh.write_file(folder.join("src/main.rs"), program)?;
    // The workspace's dependency versions.
    sh.copy_file(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    sh.copy_file(root.join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))?;
    Ok(())
}

/// Returns a block of Rust in a page, by its number from 0.
pub(super) fn example(page: &str, number: usize) -> Result<&str> {
    let block = page.split("\n```rust\n").nth(number + 1).and_then(|rest| rest.split_once("\n```"));
    block.map(|(example, _)| example).with_context(|| format!("the page has no block {number} of Rust"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_is_found_by_its_number() {
        let page = "# A\n\n```console\n$ x\n```\n\n```rust\nfn main() {}\n// end\n```\n\n```rust\nb\n```\n";
        assert_eq!(example(page, 0).unwrap(), "fn main() {}\n// end");
        assert_eq!(example(page, 1).unwrap(), "b");
        assert!(example(page, 2).is_err());
    }
}
