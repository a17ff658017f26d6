//! Checks that a C library built for Windows neither exports nor imports driver functions: it must not shadow the driver in
//! the process that loads it, and must load without one. On Linux the probe's own tests check this.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xshell::{Shell, cmd};

use crate::artifacts;

const PROBE: &str = "transload-probe";

/// Builds the probe and checks its symbol tables.
pub(super) fn check(sh: &Shell, target: &str) -> Result<()> {
    let built = artifacts::build(sh, &["build", "--quiet", "--target", target, "--package", PROBE])?;
    let library =
        built.iter().find(|artifact| artifact.kind == "cdylib").context("no C library was built")?;
    let tables = read(sh, &library.path)?;
    check_tables(&tables).with_context(|| library.path.display().to_string())
}

fn read(sh: &Shell, library: &Path) -> Result<String> {
    Ok(cmd!(sh, "x86_64-w64-mingw32-objdump --private-headers {library}").quiet().read()?)
}

fn check_tables(tables: &str) -> Result<()> {
    let exported: Vec<&str> = tables.lines().filter_map(export).collect();
    ensure!(
        exported.iter().any(|name| name.starts_with("transload_probe_")),
        "it exports none of its own functions"
    );
    let driver = exported.iter().find(|name| is_driver_function(name));
    ensure!(driver.is_none(), "it exports {driver:?}");
    let needed: Vec<&str> =
        tables.lines().filter_map(|line| line.trim().strip_prefix("DLL Name: ")).collect();
    ensure!(!needed.is_empty(), "it imports no library");
    let driver = needed.iter().find(|name| name.to_lowercase().contains("cuda"));
    ensure!(driver.is_none(), "it imports {driver:?}");
    Ok(())
}

/// Returns the name in a line such as `[   3] transload_probe_last_error`.
fn export(line: &str) -> Option<&str> {
    let (number, name) = line.trim().strip_prefix('[')?.split_once("] ")?;
    number.trim().parse::<u32>().ok().map(|_| name.rsplit(' ').next().unwrap_or(name))
}

fn is_driver_function(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_or_imported_driver_is_reported() {
        let tables = "\tDLL Name: kernel32.dll\n\t[   0] transload_probe_roundtrip\n\t[   1] custom\n";
        check_tables(tables).unwrap();
        let exports = check_tables(&format!("{tables}\t[   2] cuInit\n")).unwrap_err().to_string();
        assert!(exports.contains("cuInit"), "{exports}");
        let needs = check_tables(&format!("{tables}\tDLL Name: nvcuda.dll\n")).unwrap_err().to_string();
        assert!(needs.contains("nvcuda.dll"), "{needs}");
        assert!(check_tables("").is_err());
    }
}
