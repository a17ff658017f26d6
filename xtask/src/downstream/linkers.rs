//! The linkers of this machine, and checks which one linked a file.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

/// A linker and its arguments for rustc.
pub(super) struct Linker {
    pub(super) name: &'static str,
    pub(super) arguments: Vec<String>,
}

pub(super) fn linkers(sh: &Shell) -> Result<Vec<Linker>> {
    if !cfg!(target_os = "linux") {
        return Ok(vec![Linker { name: "default", arguments: Vec::new() }]);
    }
    let link = |argument: &str| ["-C".to_owned(), format!("link-arg={argument}")];
    let has =
        |program: &str| cmd!(sh, "{program} --version").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    let mut linkers = Vec::new();
    // Rust ships one; the compiler driver finds it in this folder.
    let libraries = PathBuf::from(cmd!(sh, "rustc --print target-libdir").quiet().read()?);
    let own = libraries.with_file_name("bin").join("gcc-ld");
    if own.join("ld.lld").exists() {
        let arguments = [link(&format!("-B{}", own.display())), link("-fuse-ld=lld")].concat();
        linkers.push(Linker { name: "lld", arguments });
    } else if has("ld.lld") {
        linkers.push(Linker { name: "lld", arguments: link("-fuse-ld=lld").to_vec() });
    } else {
        println!("downstream: skipped: no ld.lld; the default linker instead");
        linkers.push(Linker { name: "default", arguments: Vec::new() });
    }
    if has("ld.bfd") {
        linkers.push(Linker { name: "bfd", arguments: link("-fuse-ld=bfd").to_vec() });
    } else {
        println!("downstream: skipped: no ld.bfd");
    }
    Ok(linkers)
}

/// LLD writes its name into a file, GNU ld does not.
pub(super) fn is_linked_by(sh: &Shell, file: &Path, linker: &str) -> Result<()> {
    let comment = cmd!(sh, "readelf --string-dump=.comment {file}").quiet().ignore_stderr().read()?;
    let by_lld = comment.contains("Linker: LLD");
    ensure!(
        linker == "default" || by_lld == (linker == "lld"),
        "{} was linked by another linker",
        file.display()
    );
    Ok(())
}
