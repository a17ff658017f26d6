//! The machine, date and command of a run.

use std::{
    env, fs,
    num::NonZero,
    process::Command,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

/// The machine, the day and the command of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The devices.
    pub hardware: String,
    /// Version of the kernel driver.
    pub driver: Option<String>,
    /// Newest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// The processor.
    pub cpu: String,
    /// `YYYY-MM-DD`.
    pub date: String,
    /// Commit of the source, followed by `-modified` if there were local changes.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
}

impl Machine {
    /// Describes this machine with the given devices.
    #[must_use]
    pub fn here(hardware: String, driver: Option<String>, cuda: Option<String>) -> Self {
        Self { hardware, driver, cuda, cpu: cpu(), date: today(), commit: commit(), command: command() }
    }
}

/// Returns the version in `/proc/driver/nvidia/version`, if that file exists.
#[must_use]
pub fn kernel_driver() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    driver_version(&text)
}

fn driver_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn cpu() -> String {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
        })
        .unwrap_or_else(|| env::consts::ARCH.to_owned());
    format!("{name}, {threads} threads")
}

/// Returns the variable `TRANSLOAD_COMMIT`, else git's commit of the working directory, marked if there are local changes.
fn commit() -> Option<String> {
    let given = env::var("TRANSLOAD_COMMIT").ok().filter(|commit| !commit.trim().is_empty());
    given.map(|commit| commit.trim().to_owned()).or_else(|| {
        let commit = git(&["rev-parse", "HEAD"]).filter(|commit| !commit.is_empty())?;
        let is_clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
        Some(if is_clean { commit } else { format!("{commit}-modified") })
    })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn command() -> String {
    let mut words = env::args();
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    [name].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns today in UTC.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86_400)
}

/// Converts days since 1970-01-01 to a date in the proleptic Gregorian calendar.
fn date(days: u64) -> String {
    // Years begin in March, so that the leap day ends its year; an era is 400 years of 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_version_is_found_among_words() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Sat Nov 1\nGCC version: 12.3.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build";
        assert_eq!(driver_version(closed).as_deref(), Some("580.159.04"));
        assert_eq!(driver_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(driver_version("nothing"), None);
    }

    #[test]
    fn dates_are_correct() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_777), "2026-11-20");
    }
}
