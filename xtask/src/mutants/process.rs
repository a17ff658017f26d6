//! Runs one test in its own process with a time limit.

use std::{
    io::{Read as _, pipe},
    process::Command,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::artifacts::Artifact;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// The one test ran and passed.
    Passed,
    /// The test failed.
    Failed,
    /// The process ended otherwise: abort, signal or exit.
    Died,
    /// It was killed at the time limit.
    TimedOut,
    /// The test does not exist or is ignored.
    NoTest,
    /// The test fails without the fault, too.
    Broken,
}

/// Runs the test `path` of a test program, with the fault `mutant` if given; returns how it ended and its output.
///
/// # Errors
/// If the process cannot be started.
pub(crate) fn run(
    program: &Artifact,
    path: &str,
    mutant: Option<&str>,
    limit: Duration,
) -> Result<(End, String)> {
    let (mut reader, writer) = pipe()?;
    let mut command = Command::new(&program.path);
    command
        .args([path, "--exact", "--test-threads=1", "--show-output"])
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("RUST_BACKTRACE", "0")
        // Do not store cases that fail because of the fault.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .env_remove("TRANSLOAD_MUTANT")
        .stdout(writer.try_clone()?)
        .stderr(writer);
    if let Some(mutant) = mutant {
        command.env("TRANSLOAD_MUTANT", mutant);
    }
    let mut child = command.spawn().with_context(|| format!("starting {}", program.path.display()))?;
    // Close this process's ends of the pipe.
    drop(command);
    // The output ends with the process. The thread is not joined: a grandchild could hold the pipe open.
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        // The receiver is gone after the time limit.
        let _unsent = sender.send(read.map(|_| bytes));
    });
    match receiver.recv_timeout(limit) {
        Ok(output) => {
            let output = String::from_utf8_lossy(&output?).into_owned();
            Ok((end(child.wait()?.code(), &output), output))
        }
        Err(RecvTimeoutError::Timeout) => {
            child.kill().and_then(|()| child.wait())?;
            Ok((End::TimedOut, format!("killed after {} s\n", limit.as_secs())))
        }
        Err(RecvTimeoutError::Disconnected) => bail!("the output of {path} could not be read"),
    }
}

/// Derives how a test ended from the exit code and the runner's summary.
fn end(code: Option<i32>, output: &str) -> End {
    /// libtest's exit code for a failed test.
    const FAILED: i32 = 101;
    let summary = output.lines().rev().find(|line| line.starts_with("test result: ")).unwrap_or_default();
    match code {
        Some(0) if summary.contains(" 1 passed;") => End::Passed,
        // Success without a summary: the process exited during the test.
        Some(0) if summary.is_empty() => End::Died,
        Some(0) => End::NoTest,
        Some(FAILED) if summary.contains(" 1 failed;") => End::Failed,
        _ => End::Died,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(passed: u32, failed: u32, ignored: u32) -> String {
        format!(
            "running\ntest result: x. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 9 filtered out\n"
        )
    }

    #[test]
    fn exit_code_and_summary_give_the_end() {
        for (code, output, expected) in [
            (Some(0), summary(1, 0, 0), End::Passed),
            (Some(0), summary(0, 0, 0), End::NoTest),
            (Some(0), summary(0, 0, 1), End::NoTest),
            (Some(0), String::new(), End::Died),
            (Some(101), summary(0, 1, 0), End::Failed),
            (Some(101), String::new(), End::Died),
            (None, summary(1, 0, 0), End::Died),
        ] {
            assert_eq!(end(code, &output), expected, "{code:?} {output}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn process_is_killed_at_the_time_limit() {
        let mut program = Artifact {
            package: "a".to_owned(),
            folder: "/".into(),
            target: "it".to_owned(),
            kind: "test".to_owned(),
            is_test: true,
            path: "/bin/cat".into(),
        };
        // `cat` prints no test summary.
        assert_eq!(run(&program, "--help", None, Duration::from_secs(30)).unwrap().0, End::Died);
        program.path = std::env::current_exe().unwrap();
        let endless = "mutants::process::tests::runs_forever_if_told_to";
        let ended = run(&program, endless, Some("xtask/never-ends"), Duration::from_millis(300)).unwrap();
        assert_eq!(ended.0, End::TimedOut);
        assert_eq!(run(&program, endless, None, Duration::from_secs(30)).unwrap().0, End::Passed);
    }

    /// Run as a process by the test above.
    #[cfg(unix)]
    #[test]
    fn runs_forever_if_told_to() {
        while std::env::var("TRANSLOAD_MUTANT").is_ok_and(|name| name == "xtask/never-ends") {
            thread::park();
        }
    }
}
