//! Prepares a separate folder for Wine, with a library that Rust programs need and Wine before 8.17 lacks.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

/// Source of random numbers for programs since Rust 1.78.
const RANDOM: &str = "bcryptprimitives.dll";

/// Implements it with the older function of the system.
const SOURCE: &str = "
unsigned char __stdcall SystemFunction036(void *bytes, unsigned long count);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *bytes, unsigned long long count) {
    const unsigned long most = 1 << 28;
    for (; count > most; bytes += most, count -= most)
        if (!SystemFunction036(bytes, most)) return 0;
    return SystemFunction036(bytes, (unsigned long)count);
}
";

/// Creates or updates the folder, to which WINEPREFIX points.
pub(super) fn prepare(sh: &Shell, folder: &Path, linker: &Path, wine: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let start = cmd!(sh, "{wine} wineboot --init").quiet().ignore_stdout().ignore_stderr();
    start.run().context("setting up Wine")?;
    let library = folder.join("drive_c/windows/system32").join(RANDOM);
    if library.exists() {
        return Ok(());
    }
    let source = folder.join("random.c");
    fs::write(&source, SOURCE).with_context(|| format!("writing {}", source.display()))?;
    let output: OsString = library.into();
    cmd!(sh, "{linker} -shared -O1 -o {output} {source} -ladvapi32")
        .quiet()
        .run()
        .context("building a library")
}
