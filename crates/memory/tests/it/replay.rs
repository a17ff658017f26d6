//! A log done again, on another resource: what a program asked for becomes a test.
//!
//! Runs on the calling thread, in the order of the lines.

use std::collections::HashMap;

use transload_core::{Error, ErrorKind, RawBuffer, Result};
use transload_memory::{LogAction, LogEntry, MemoryResource};

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
            other => return Err(wrong(&format!("not to be replayed: {other:?}"))),
        }
    }
    report.left = alive.values().filter(|(segment, _)| segment.is_some()).count() as u64;
    Ok(report)
}
