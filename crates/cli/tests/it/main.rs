//! Behaviour of the built program.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod bad_input;
mod binary;
mod calibrate;
mod commands;
#[path = "../../../profiler/tests/trace/fields.rs"]
mod fields;
mod load;
#[path = "../../../profiler/tests/trace/packets.rs"]
#[allow(dead_code, reason = "shared with the tests of traces")]
mod packets;
#[path = "../../../streams/tests/it/support/programs.rs"]
mod programs;
#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
mod simulated;
mod trace;
#[cfg(all(feature = "wgpu", any(target_os = "linux", windows)))]
mod wgpu;

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

/// Runs the program where no CUDA driver can be found.
fn transload(arguments: &[&str]) -> Ran {
    Ran::new(command(arguments).output().unwrap())
}

/// A folder that is not there. A relative path would be ignored.
const NOWHERE: &str = if cfg!(windows) { r"C:\nonexistent" } else { "/nonexistent" };

/// The program where neither a CUDA driver nor a stored calibration can be found.
fn command(arguments: &[&str]) -> Command {
    let mut command = programs::program(env!("CARGO_BIN_EXE_transload"));
    let nowhere = "/nonexistent/libcuda.so.1";
    command.args(arguments).env("TRANSLOAD_CUDA_DRIVER", nowhere).env("XDG_CACHE_HOME", NOWHERE);
    command
}

/// The result of a run.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Asserts success and an empty stderr, which is for progress and errors only.
    #[track_caller]
    fn succeeded(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert_eq!(self.stderr, "");
        self.stdout
    }

    #[track_caller]
    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.succeeded()).unwrap()
    }

    /// Asserts failure with this code, an empty stdout, and these texts on stderr.
    #[track_caller]
    fn failed(self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        for said in said {
            assert!(self.stderr.contains(said), "`{said}` is not said in: {}", self.stderr);
        }
    }
}

/// Creates a file of non-repeating bytes, deleted with the folder.
fn file(folder: &tempfile::TempDir, len: usize) -> String {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let path: PathBuf = folder.path().join("bytes.bin");
    fs::write(&path, (0..len).map(byte).collect::<Vec<u8>>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns whether a tool is installed; prints a message if not.
#[cfg(unix)]
fn has(tool: &str) -> bool {
    let there = std::process::Command::new(tool).arg("--version").output().is_ok();
    if !there {
        println!("skipped: {tool} is not installed");
    }
    there
}
