//! What links and runs the programs of another platform: found, or named with the Debian package that has it.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Result;
use xshell::{Shell, cmd};

use super::wine;
use crate::artifacts;

/// A way to run programs.
pub(super) struct Emulator {
    pub(super) target: &'static str,
    pub(super) runner: PathBuf,
    /// As it calls itself.
    pub(super) version: String,
    /// Programs of tests whose names begin so are left out, for this reason.
    pub(super) left_out: Option<(&'static str, &'static str)>,
    /// What cargo and the tests are told.
    pub(super) environment: Vec<(String, OsString)>,
}

pub(super) enum Found {
    Ready(Emulator),
    /// What is missing.
    Missing(String),
    /// Nothing that could be installed runs these programs.
    Nothing,
}

/// A program under the names it may have, and the package that brings it.
struct Tool {
    names: &'static [&'static str],
    package: &'static str,
}

const AARCH64: [Tool; 2] = [
    Tool { names: &["aarch64-linux-gnu-gcc"], package: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" },
    Tool { names: &["qemu-aarch64", "qemu-aarch64-static"], package: "qemu-user" },
];

const WINDOWS: [Tool; 2] = [
    Tool { names: &["x86_64-w64-mingw32-gcc"], package: "gcc-mingw-w64-x86-64-win32" },
    // Debian puts the program itself outside the PATH; another package has the name that is on it.
    Tool { names: &["/usr/lib/wine/wine64", "wine64", "wine"], package: "wine64" },
];

/// What there is for a target.
pub(super) fn find(sh: &Shell, target: &'static str) -> Result<Found> {
    let tools = match target {
        "aarch64-unknown-linux-gnu" => &AARCH64,
        "x86_64-pc-windows-gnu" => &WINDOWS,
        _ => return Ok(Found::Nothing),
    };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Found::Missing("its programs are run from Linux on x86-64 only".to_owned()));
    }
    let (Some(linker), Some(runner)) = (tools[0].find(), tools[1].find()) else {
        let absent = tools.iter().filter(|tool| tool.find().is_none());
        let packages: Vec<_> = absent.map(|tool| tool.package).collect();
        return Ok(Found::Missing(format!(
            "no tests; missing are the Debian packages {}",
            packages.join(" ")
        )));
    };
    let upper = target.to_uppercase().replace('-', "_");
    let mut environment: Vec<(String, OsString)> = vec![
        (format!("CARGO_TARGET_{upper}_LINKER"), linker.clone().into()),
        ("CARGO_PROFILE_DEV_DEBUG".to_owned(), "0".into()),
        ("CARGO_PROFILE_TEST_DEBUG".to_owned(), "0".into()),
    ];
    let wine_folder =
        if target.contains("windows") { Some(artifacts::target_directory(sh)?.join("wine")) } else { None };
    let mut tell = |name: &str, value: OsString| environment.push((name.to_owned(), value));
    if let Some(folder) = &wine_folder {
        // A folder of its own, so that the user's Wine stays as it is.
        tell("WINEPREFIX", folder.into());
        tell("WINEDEBUG", "-all".into());
    } else {
        tell("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu".into());
        // Linux starts no program of another processor by itself; tests that start programs are told who does.
        tell("TRANSLOAD_TEST_RUNNER", runner.clone().into());
        tell("TRANSLOAD_SIM_UNRESERVED", "1".into());
        // A little optimisation pays where each instruction is translated; overflow checks and assertions stay.
        tell("CARGO_PROFILE_DEV_OPT_LEVEL", "1".into());
        tell("CARGO_PROFILE_TEST_OPT_LEVEL", "1".into());
    }
    let version = {
        let _environment: Vec<_> = environment.iter().map(|(name, value)| sh.push_env(name, value)).collect();
        if let Some(folder) = &wine_folder {
            wine::prepare(sh, folder, &linker, &runner)?;
        }
        cmd!(sh, "{runner} --version").quiet().read()?
    };
    let version = version.lines().next().unwrap_or_default().to_owned();
    let left_out =
        wine_folder.map(|_| ("loom", "under Wine it aborts where it unwinds on stacks of its own"));
    Ok(Found::Ready(Emulator { target, runner, version, left_out, environment }))
}

/// Ends, when dropped, what an emulator keeps running beside the programs.
pub(super) struct Session<'a>(&'a Emulator);

impl Emulator {
    pub(super) fn session(&self) -> Session<'_> {
        Session(self)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.0.target.contains("windows") {
            let environment = self.0.environment.iter().map(|(name, value)| (name, value));
            let mut end = Command::new(&self.0.runner);
            // Left alone it ends by itself, a little later.
            let _ended = end.args(["wineboot", "--kill"]).envs(environment).stdin(Stdio::null()).output();
        }
    }
}

impl Tool {
    fn find(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path).collect();
        // A name with a folder in it stays as it is.
        let places = self.names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        places.into_iter().find(|place| Path::is_file(place))
    }
}
