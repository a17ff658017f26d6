//! One test in a process of its own, with a time limit.

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
    /// The process ended in another way: an abort, a signal, an exit.
    Died,
    /// It was ended at the time limit.
    TimedOut,
    /// There is no such test, or it is ignored.
    NoTest,
    /// It does not pass without a fault either.
    Broken,
}

/// Runs the test `path` of a test program, with the fault `mutant` if one is given; returns the end and all output.
///
/// # Errors
/// A process that cannot be started.
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
        // A case that fails because of a fault is none to keep among the sources.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .env_remove("TRANSLOAD_MUTANT")
        .stdout(writer.try_clone()?)
        .stderr(writer);
    if let Some(mutant) = mutant {
        command.env("TRANSLOAD_MUTANT", mutant);
    }
    let mut child = command.spawn().with_context(|| format!("starting {}", program.path.display()))?;
    // Its ends of the pipe; the child has its own.
    drop(command);
    // The output ends with the process. The thread is not joined: a grandchild could hold the pipe open.
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        // No receiver is left after the time limit.
        let _unsent = sender.send(read.map(|_| bytes));
    });
    match receiver.recv_timeout(limit) {
        Ok(output) => {
            let output = String::from_utf8_lossy(&output?).into_owned();
            Ok((end(child.wait()?.code(), &output), output))
        }
        Err(RecvTimeoutError::Timeout) => {
            child.kill().and_then(|()| child.wait())?;
            Ok((End::TimedOut, format!("ended after {} s\n", limit.as_secs())))
        }
        Err(RecvTimeoutError::Disconnected) => bail!("the output of {path} could not be read"),
    }
}

/// What an exit code and the test runner's last words mean.
fn end(code: Option<i32>, output: &str) -> End {
    /// The code of libtest for a failed test.
    const FAILED: i32 = 101;
    let summary = output.lines().rev().find(|line| line.starts_with("test result: ")).unwrap_or_default();
    match code {
        Some(0) if summary.contains(" 1 passed;") => End::Passed,
        // A program that exits with success before the runner's summary ran no test to its end.
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
    fn exit_code_and_summary_tell_how_it_ended() {
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
    fn a_process_is_ended_at_the_time_limit() {
        let mut program = Artifact {
            package: "a".to_owned(),
            folder: "/".into(),
            target: "it".to_owned(),
            kind: "test".to_owned(),
            is_test: true,
            path: "/bin/cat".into(),
        };
        // It is no test runner, so it says nothing of a test.
        assert_eq!(run(&program, "--help", None, Duration::from_secs(30)).unwrap().0, End::Died);
        program.path = std::env::current_exe().unwrap();
        let endless = "mutants::process::tests::never_ends_when_it_is_asked_to";
        let ended = run(&program, endless, Some("xtask/never-ends"), Duration::from_millis(300)).unwrap();
        assert_eq!(ended.0, End::TimedOut);
        assert_eq!(run(&program, endless, None, Duration::from_secs(30)).unwrap().0, End::Passed);
    }

    /// The process that the test above ends.
    #[cfg(unix)]
    #[test]
    fn never_ends_when_it_is_asked_to() {
        while std::env::var("TRANSLOAD_MUTANT").is_ok_and(|name| name == "xtask/never-ends") {
            thread::park();
        }
    }
}
