//! The trace that an environment variable asks for.

use std::{
    env,
    fs::File,
    io::{self, BufWriter, ErrorKind as IoErrorKind, Write as _},
    path::{Path, PathBuf},
    process,
    sync::{Arc, Condvar, Mutex, Once, PoisonError, Weak},
    thread,
    time::Duration,
};

use transload_core::{Error, ErrorKind, OperationSampling, Result, events::report};
use transload_profiler::{ProfilerOptions, TraceContents, TraceFormat, TraceOptions};

use super::{RuntimeProfiler, TRACE_ENGINES_VARIABLE, TRACE_VARIABLE};
use crate::Runtime;

/// Longest time for which the end of the process waits for the end of its traces.
const AT_EXIT: Duration = Duration::from_secs(5);

/// Recordings that have not ended.
static OPEN: Mutex<Vec<Weak<Recording>>> = Mutex::new(Vec::new());

/// Returns where the environment asks for traces.
pub(crate) fn trace_variable() -> Option<PathBuf> {
    env::var_os(TRACE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns whether the environment asks for records of engines.
pub(crate) fn are_engines_wanted() -> bool {
    env::var_os(TRACE_ENGINES_VARIABLE).is_some_and(|wanted| !wanted.is_empty())
}

/// A trace that is being written, until it is dropped or the process ends.
pub(crate) struct Recording {
    file: PathBuf,
    /// The process that records: one forked from it has a copy, and the same file.
    process: u32,
    profiler: Mutex<Option<RuntimeProfiler>>,
}

impl Recording {
    /// Starts the recording of a runtime. A failure is reported as an event, and on the standard error stream.
    pub(crate) fn of_runtime(runtime: &Runtime, path: &Path) -> Option<Arc<Self>> {
        let started = Self::start(runtime, path);
        if let Err(error) = &started {
            report::trace_failed(path, error);
            report::emit_deferred();
            // Who set the variable may not see events.
            let _unseen = writeln!(io::stderr(), "transload: {TRACE_VARIABLE}: not recorded: {error}");
        }
        started.ok()
    }

    fn start(runtime: &Runtime, path: &Path) -> Result<Arc<Self>> {
        let profiler =
            runtime.profile(ProfilerOptions::new().sampling(OperationSampling::ALL).capacity(1 << 16))?;
        let (file, out) = create(path)?;
        if are_engines_wanted()
            && let Err(error) = profiler.record_engines()
        {
            let _unseen =
                writeln!(io::stderr(), "transload: {TRACE_ENGINES_VARIABLE}: not recorded: {error}");
        }
        profiler.start_trace(BufWriter::new(out), TraceFormat::Perfetto, TraceOptions::new())?;
        let recording = Arc::new(Self { file, process: process::id(), profiler: Mutex::new(Some(profiler)) });
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|recording| recording.strong_count() > 0);
        open.push(Arc::downgrade(&recording));
        drop(open);
        end_at_exit();
        Ok(recording)
    }

    fn is_of_this_process(&self) -> bool {
        self.process == process::id() || transload_core::mutant!("transload/trace-of-a-fork")
    }

    /// Ends the trace with what is complete by now.
    fn end(&self) {
        let profiler = self.profiler.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(profiler) = profiler else { return };
        if !self.is_of_this_process() {
            // Its thread and its locks are those of another process.
            std::mem::forget(profiler);
            return;
        }
        match profiler.finish_trace() {
            Ok(written) => report::trace_written(&self.file, &written),
            Err(error) => {
                // As where it could not be begun: a program that installs no subscriber would not learn it.
                let _unseen = writeln!(io::stderr(), "transload: {}: {error}", self.file.display());
                report::trace_failed(&self.file, &error);
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.end();
    }
}

/// Creates the file, or the first of the names after it that is free.
fn create(path: &Path) -> Result<(PathBuf, File)> {
    let failed = |path: &Path, error| {
        let text = format!("{TRACE_VARIABLE}: cannot create {}", path.display());
        Error::caused_by(ErrorKind::Io, text, error)
    };
    for number in 1..=TraceContents::FILES {
        let path = TraceContents::path(path, number);
        match create_held(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == IoErrorKind::AlreadyExists && !path.is_dir() => {}
            Err(error) => return Err(failed(&path, error)),
        }
    }
    let text = format!(
        "{TRACE_VARIABLE}: {} and {} more exist; remove some",
        path.display(),
        TraceContents::FILES - 1
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// Creates a file that others can read but know to be in use until it is closed: `transload trace` does not replace it.
fn create_held(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    // A lock would keep others from reading it. Without a share of deletion (read and write only) it cannot be renamed or removed.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 1 | 2);
    let file = options.open(path)?;
    // Not every file system has locks.
    #[cfg(unix)]
    let _best_effort = file.try_lock();
    Ok(file)
}

/// Has the process end the recordings whose runtimes live until its end, such as those in statics. Called after drivers were loaded, so that they
/// end later.
fn end_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `at_exit` is a function of this library, unwinds never, and needs no values of the exiting thread.
        let _ignored = unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    let open = open.iter().filter_map(Weak::upgrade);
    let open: Vec<_> = open.filter(|recording| recording.is_of_this_process()).collect();
    if open.is_empty() {
        return;
    }
    // On another thread: values of this one were dropped already, and what hangs must not keep the process from ending.
    let ended = Arc::new((Mutex::new(false), Condvar::new()));
    let ending = Arc::clone(&ended);
    let started = thread::Builder::new().name("transload-trace".to_owned()).spawn(move || {
        open.iter().for_each(|recording| recording.end());
        transload_core::events::report::emit_deferred();
        // Their runtimes stay: nothing of theirs is dropped while the process ends.
        std::mem::forget(open);
        *ending.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ending.1.notify_all();
    });
    if started.is_ok() {
        let is_ended = ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _either = ended.1.wait_timeout_while(is_ended, AT_EXIT, |is_ended| !*is_ended);
    }
}
