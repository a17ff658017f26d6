//! An adaptor that writes a line for every call, in a form that can be replayed.
//!
//! Every method may be called from any thread. A line is formed and put into a queue under a short lock; one thread at a time
//! takes what is queued to the writer, with no lock held. So the writer may block, and may even use this resource itself: what
//! its thread asks for meanwhile is counted and not written, since each line would else lead to the next.

use std::{
    fmt, io,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::Instant,
};

use parking_lot::Mutex;
use transload_core::{RawBuffer, Result};

use super::{MemoryResource, wrapped::Wrapper};

/// The first line of a log.
const HEADER: &str = "nanoseconds,thread,action,segment,bytes";

/// Writes what passes through as comma-separated values, and changes nothing. The first line names the columns: nanoseconds since
/// the beginning, the number of the calling thread, `allocate`, `refused`, `free` or `trim`, the segment's number from 1 (0
/// where it is about none), and the bytes that were asked for. So a log can be replayed on another resource. A segment's end is
/// written before it is given back, so a replay never has more alive than there was.
///
/// A writer that has other threads use this resource for every line, and does so for theirs, is never done.
pub struct LoggingResource<R> {
    upstream: R,
    log: Arc<Log>,
    wrapper: Wrapper,
}

struct Log {
    began: Instant,
    last_segment: AtomicU64,
    desk: Mutex<Desk>,
}

struct Desk {
    queue: Vec<u8>,
    /// Absent while a thread writes.
    writer: Option<Box<dyn Write + Send>>,
    /// The thread that writes.
    writing: Option<ThreadId>,
    unwritten: u64,
    error: Option<io::Error>,
}

/// Writes the end of a segment when dropped.
struct Logged {
    log: Arc<Log>,
    segment: u64,
    bytes: u64,
    /// Whether its beginning was written.
    is_written: bool,
}

impl Drop for Logged {
    fn drop(&mut self) {
        if self.is_written {
            self.log.enter("free", self.segment, self.bytes);
        } else {
            self.log.desk.lock().unwritten += 1;
        }
    }
}

impl<R: MemoryResource> LoggingResource<R> {
    /// Logs what is asked of `upstream` from now on.
    #[must_use]
    pub fn new(upstream: R, writer: impl Write + Send + 'static) -> Self {
        let queue = format!("{}\n", HEADER).into_bytes();
        let desk = Desk { queue, writer: Some(Box::new(writer)), writing: None, unwritten: 0, error: None };
        let log = Log { began: Instant::now(), last_segment: AtomicU64::new(0), desk: Mutex::new(desk) };
        Self { upstream, log: Arc::new(log), wrapper: Wrapper::default() }
    }

    /// The first error of the writer, if there was one since this was last asked. Lines that it did not take are lost;
    /// allocation goes on.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        self.log.desk.lock().error.take()
    }

    /// Calls that are not in the log because the writer made them, in the thread in which it wrote. What becomes of segments
    /// that it got so is not in it either.
    #[must_use]
    pub fn unwritten(&self) -> u64 {
        self.log.desk.lock().unwritten
    }
}

/// A number of the calling thread's own.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending has none any more.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

impl Log {
    /// Answers whether it will be written.
    fn enter(&self, action: &str, segment: u64, bytes: u64) -> bool {
        let nanoseconds = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let line = format!("{nanoseconds},{},{action},{segment},{bytes}\n", this_thread());
        {
            let mut desk = self.desk.lock();
            // A segment can be freed only once: that leads to no further line.
            if action != "free" && desk.writing == Some(thread::current().id()) {
                desk.unwritten += 1;
                return false;
            }
            desk.queue.extend_from_slice(line.as_bytes());
        }
        self.write();
        true
    }

    /// Takes what is queued to the writer, unless some thread is at it: that one takes this along.
    fn write(&self) {
        loop {
            let (mut turn, lines) = {
                let mut desk = self.desk.lock();
                if desk.queue.is_empty() {
                    return;
                }
                let Some(writer) = desk.writer.take() else { return };
                desk.writing = Some(thread::current().id());
                (Turn { log: self, writer: Some(writer) }, std::mem::take(&mut desk.queue))
            };
            let Some(writer) = turn.writer.as_mut() else { return };
            if let Err(error) = writer.write_all(&lines).and_then(|()| writer.flush()) {
                self.desk.lock().error.get_or_insert(error);
            }
        }
    }
}

/// A thread's turn at the writer; gives it back also where the writer panics.
struct Turn<'a> {
    log: &'a Log,
    writer: Option<Box<dyn Write + Send>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut desk = self.log.desk.lock();
        desk.writer = self.writer.take();
        desk.writing = None;
    }
}

// SAFETY: a segment of the wrapped resource is kept by the buffer that is given out, and used by nothing else.
unsafe impl<R: MemoryResource> MemoryResource for LoggingResource<R> {
    as_upstream!(upstream: place device info);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.wrapper.sweep();
        let segment = self.upstream.allocate_segment(bytes).inspect_err(|_| {
            self.log.enter("refused", 0, bytes as u64);
        })?;
        let number = self.log.last_segment.fetch_add(1, Ordering::Relaxed) + 1;
        let is_written = self.log.enter("allocate", number, bytes as u64);
        let logged = Logged { log: Arc::clone(&self.log), segment: number, bytes: bytes as u64, is_written };
        Ok(self.wrapper.wrap(segment, logged, ()))
    }

    fn trim(&self) -> Result<()> {
        self.log.enter("trim", 0, 0);
        self.wrapper.drain().and(self.upstream.trim())
    }
}

impl<R> fmt::Debug for LoggingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggingResource").field("segments", &self.log.last_segment).finish_non_exhaustive()
    }
}
