//! A line of a resource's log, as it is written and as it is read again.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use transload_core::{Error, ErrorKind};

/// The first line of a log.
pub(super) const HEADER: &str = "nanoseconds,thread,action,segment,bytes";

/// What was asked of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogAction {
    /// A segment was asked for and given.
    Allocate,
    /// A segment was asked for and refused.
    Refused,
    /// A segment's last handle is gone.
    Free,
    /// The resource was trimmed.
    Trim,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// Since the beginning of the log.
    pub nanoseconds: u64,
    /// The calling thread; numbered by the order in which they came.
    pub thread: u64,
    /// What was asked.
    pub action: LogAction,
    /// The segment's number, from 1; 0 where it is about none.
    pub segment: u64,
    /// The bytes that were asked for.
    pub bytes: u64,
}

/// A number of the calling thread's own.
pub(super) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending has none any more.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

impl LogAction {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Allocate, "allocate"),
        (Self::Refused, "refused"),
        (Self::Free, "free"),
        (Self::Trim, "trim"),
    ];

    fn text(self) -> &'static str {
        Self::ALL.iter().find(|(action, _)| *action == self).map_or("", |(_, text)| text)
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nanoseconds, thread, action, segment, bytes } = self;
        write!(f, "{nanoseconds},{thread},{},{segment},{bytes}", action.text())
    }
}

impl FromStr for LogEntry {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let wrong = || {
            let text = format!("`{line}` is no line of a log; valid are five values as in `{HEADER}`");
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let [nanoseconds, thread, action, segment, bytes] =
            <[&str; 5]>::try_from(line.split(',').collect::<Vec<_>>()).map_err(|_| wrong())?;
        let action = LogAction::ALL.iter().find(|(_, text)| *text == action).ok_or_else(wrong)?.0;
        Ok(Self {
            nanoseconds: number(nanoseconds)?,
            thread: number(thread)?,
            action,
            segment: number(segment)?,
            bytes: number(bytes)?,
        })
    }
}

/// Reads a log that a [`LoggingResource`](super::LoggingResource) wrote.
///
/// # Errors
/// `InvalidArgument` for a line that is none, with its number.
pub fn read_log(text: &str) -> Result<Vec<LogEntry>, Error> {
    let lines = text.lines().enumerate().filter(|(_, line)| *line != HEADER && !line.is_empty());
    lines
        .map(|(index, line)| {
            line.parse::<LogEntry>().map_err(|error| {
                Error::caused_by(ErrorKind::InvalidArgument, format!("line {}", index + 1), error)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_reads_as_it_was_written() {
        for (action, _) in LogAction::ALL {
            let entry = LogEntry { nanoseconds: 5, thread: 2, action, segment: 7, bytes: u64::MAX };
            assert_eq!(entry.to_string().parse::<LogEntry>().unwrap(), entry);
        }
    }

    #[test]
    fn what_is_no_line_is_refused_with_the_valid_form() {
        for line in ["", "1,2,free,3", "1,2,free,3,4,5", "1,2,loose,3,4", "1,2,free,-3,4", "x,2,free,3,4"] {
            let error = line.parse::<LogEntry>().unwrap_err();
            assert!(error.to_string().contains(HEADER), "{error}");
        }
    }
}
