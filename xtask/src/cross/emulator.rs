//! Finds the linker and emulator of another platform, or names their Debian packages.

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

/// An emulator for the programs of a target.
pub(super) struct Emulator {
    pub(super) target: &'static str,
    pub(super) runner: PathBuf,
    /// Version line that it prints.
    pub(super) version: String,
    /// Prefix of test programs that are not run, and the reason.
    pub(super) left_out: Option<(&'static str, &'static str)>,
    /// Environment variables of cargo and the tests.
    pub(super) environment: Vec<(String, OsString)>,
}

pub(super) enum Found {
    Ready(Emulator),
    /// Reason that names the missing packages.
    Missing(String),
    /// No emulator exists for the target.
    Nothing,
}

/// A program's possible names and its Debian package.
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
    // Debian installs the program outside the PATH; the name on the PATH belongs to another package.
    Tool { names: &["/usr/lib/wine/wine64", "wine64", "wine"], package: "wine64" },
];

/// Finds the tools of a target.
pub(super) fn find(sh: &Shell, target: &'static str) -> Result<Found> {
    let tools = match target {
        "aarch64-unknown-linux-gnu" => &AARCH64,
        "x86_64-pc-windows-gnu" => &WINDOWS,
        _ => return Ok(Found::Nothing),
    };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Found::Missing("tests of other platforms run only on Linux x86-64".to_owned()));
    }
    let (Some(linker), Some(runner)) = (tools[0].find(), tools[1].find()) else {
        let absent = tools.iter().filter(|tool| tool.find().is_none());
        let packages: Vec<_> = absent.map(|tool| tool.package).collect();
        return Ok(Found::Missing(format!("no tests; missing Debian packages: {}", packages.join(" "))));
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
        // A separate folder, so that the user's Wine is not changed.
        tell("WINEPREFIX", folder.into());
        tell("WINEDEBUG", "-all".into());
    } else {
        tell("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu".into());
        // For tests that start programs.
        tell("TRANSLOAD_TEST_RUNNER", runner.clone().into());
        tell("TRANSLOAD_SIM_UNRESERVED", "1".into());
        // Emulation is slow, so optimise a little; overflow checks and assertions stay.
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
    let left_out = wine_folder.map(|_| ("loom", "under Wine loom aborts when it unwinds on its own stacks"));
    Ok(Found::Ready(Emulator { target, runner, version, left_out, environment }))
}

/// Stops the emulator's background processes when dropped.
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
            // Otherwise it ends by itself a little later.
            end.args(["wineboot", "--kill"]).envs(environment);
            let _ended = end.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Tool {
    fn find(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path).collect();
        // `join` keeps an absolute name unchanged.
        let places = self.names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        places.into_iter().find(|place| Path::is_file(place))
    }
}
