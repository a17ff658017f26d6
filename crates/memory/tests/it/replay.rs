//! A log done again, on another resource: what a program asked for becomes a test.
//!
//! Runs on the calling thread, in the order of the lines.

use std::{collections::HashMap, str::FromStr};

use transload_core::{Error, ErrorKind, RawBuffer, Result};
use transload_memory::MemoryResource;

/// The first line of a log.
const HEADER: &str = "nanoseconds,thread,action,segment,bytes";

/// What was asked of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAction {
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
pub(crate) struct LogEntry {
    /// Since the beginning of the log.
    pub(crate) nanoseconds: u64,
    /// The calling thread; numbered by the order in which they came.
    pub(crate) thread: u64,
    /// What was asked.
    pub(crate) action: LogAction,
    /// The segment's number, from 1; 0 where it is about none.
    pub(crate) segment: u64,
    /// The bytes that were asked for.
    pub(crate) bytes: u64,
}

impl LogAction {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Allocate, "allocate"),
        (Self::Refused, "refused"),
        (Self::Free, "free"),
        (Self::Trim, "trim"),
    ];
}

impl FromStr for LogEntry {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
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

/// Reads a log that a `LoggingResource` wrote.
///
/// # Errors
/// `InvalidArgument` for a line that is none, with its number.
pub(crate) fn read_log(text: &str) -> Result<Vec<LogEntry>> {
    let lines = text.lines().enumerate().filter(|(_, line)| *line != HEADER && !line.is_empty());
    lines
        .map(|(index, line)| {
            line.parse::<LogEntry>().map_err(|error| {
                Error::caused_by(ErrorKind::InvalidArgument, format!("line {}", index + 1), error)
            })
        })
        .collect()
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayReport {
    /// Segments that were given.
    pub(crate) allocations: u64,
    /// Segments that were refused for want of memory, whatever they were in the log.
    pub(crate) refusals: u64,
    /// The most bytes alive at a time, as they were asked for.
    pub(crate) peak_bytes: u64,
    /// Segments that the log leaves alive; they are given back at the end.
    pub(crate) left: u64,
}

/// Asks a resource for what a log says, and gives back what it says.
///
/// # Errors
/// `InvalidArgument` where a segment is freed that the log does not allocate, or allocated twice; the resource's but for
/// `OutOfMemory`, which is counted.
pub(crate) fn replay(log: &[LogEntry], resource: &impl MemoryResource) -> Result<ReplayReport> {
    let mut report = ReplayReport::default();
    let mut alive: HashMap<u64, (Option<RawBuffer>, u64)> = HashMap::new();
    let mut bytes = 0_u64;
    for (index, entry) in log.iter().enumerate() {
        let wrong = |what: &str| {
            let text = format!("entry {}: segment {} is {what}", index + 1, entry.segment);
            Error::new(ErrorKind::InvalidArgument, text)
        };
        match entry.action {
            LogAction::Allocate | LogAction::Refused => {
                let asked = usize::try_from(entry.bytes).unwrap_or(usize::MAX);
                let given = match resource.allocate_segment(asked) {
                    Ok(segment) => Some(segment),
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => None,
                    // It was refused then, too.
                    Err(_) if entry.action == LogAction::Refused => None,
                    Err(error) => return Err(error),
                };
                report.allocations += u64::from(given.is_some());
                report.refusals += u64::from(given.is_none());
                if entry.action == LogAction::Refused {
                    continue;
                }
                let counted = if given.is_some() { entry.bytes } else { 0 };
                if alive.insert(entry.segment, (given, counted)).is_some() {
                    return Err(wrong("allocated twice"));
                }
                bytes = bytes.saturating_add(counted);
                report.peak_bytes = report.peak_bytes.max(bytes);
            }
            LogAction::Free => {
                let (_, counted) = alive.remove(&entry.segment).ok_or_else(|| wrong("not alive"))?;
                bytes = bytes.saturating_sub(counted);
            }
            LogAction::Trim => resource.trim()?,
        }
    }
    report.left = alive.values().filter(|(segment, _)| segment.is_some()).count() as u64;
    Ok(report)
}

#[test]
fn what_is_no_line_is_refused_with_the_valid_form() {
    for line in ["", "1,2,free,3", "1,2,free,3,4,5", "1,2,loose,3,4", "1,2,free,-3,4", "x,2,free,3,4"] {
        let error = line.parse::<LogEntry>().unwrap_err();
        assert!(error.to_string().contains(HEADER), "{error}");
    }
}
