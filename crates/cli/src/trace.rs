//! `transload trace`: runs a program that records traces, and says what is in them.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{self, BufReader, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{self, ExitCode, ExitStatus},
};

use serde_json::{Value, json};
use transload::profiler::{TRACE_ENGINES_VARIABLE, TRACE_VARIABLE, TraceContents};

use crate::{
    args::{self, Arguments},
    exit::{Exit, Failure},
    print,
};

pub(crate) fn run(arguments: &Arguments, wanted: &args::Trace) -> Result<ExitCode, Failure> {
    let has_files = arguments.calibration.is_some() || arguments.costs.is_some();
    if arguments.are_devices_chosen() || has_files {
        let text =
            "`transload trace` has no devices of its own; pass such options to the program, after its name";
        return Err(Failure::new(Exit::Input, text));
    }
    // The program may work in another folder.
    let output = std::path::absolute(&wanted.output)
        .map_err(|error| Failure::caused_by(Exit::Io, "the current folder is not known", error))?;
    let _held = Held::of(&output)?;
    let earlier = make_room(&output)?;
    let ended = wait_for(wanted, &output, earlier)?;
    let traces = traces(&output);
    if traces.is_empty() && ended.success() {
        let program = wanted.command.first().map(|name| name.display().to_string()).unwrap_or_default();
        let text = format!(
            "{program} recorded nothing: it discovered no runtime, or was built without the feature `profiler` of transload, or its events (target transload::transfer) say why"
        );
        return Err(Failure::new(Exit::Input, text));
    }
    if arguments.json && !traces.is_empty() {
        print(&format!(
            "{:#}\n",
            json!({ "command": "trace", "traces": traces.iter().map(json_of).collect::<Vec<_>>() })
        ))?;
    }
    for (file, contents) in traces.iter().filter(|_| !arguments.json) {
        // Nothing else can be done if printing fails.
        let _ = writeln!(io::stderr(), "transload: {}: {}", file.display(), described(contents));
        for advice in contents.iter().flat_map(|contents| &contents.advice) {
            let _ = writeln!(io::stderr(), "  advice: {advice}");
        }
    }
    Ok(code(ended))
}

/// The sole use of an output by this command: two that begin together would not see each other's files. It is the lock of an empty file next to the
/// output, which is removed in the end; one that an interrupt left is used again.
struct Held {
    lock: PathBuf,
    /// `None` once it was closed.
    file: Option<File>,
}

impl Held {
    fn of(output: &Path) -> Result<Self, Failure> {
        for _ in 0..3 {
            if let Some(held) = Self::attempt(output)? {
                return Ok(held);
            }
        }
        Err(being_recorded(output))
    }

    /// Returns `None` if another run has the file, or has just removed it.
    fn attempt(output: &Path) -> Result<Option<Self>, Failure> {
        let mut lock = output.to_owned().into_os_string();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        // Neither a folder nor bytes are of this command.
        if fs::symlink_metadata(&lock).is_ok_and(|found| !found.is_file() || found.len() > 0) {
            return Err(exists_already(&lock));
        }
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        // Nobody else can open it then, or remove it.
        #[cfg(windows)]
        std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 0);
        let failed =
            |error| Failure::caused_by(Exit::Input, format!("cannot write {}", lock.display()), error);
        let file = match options.open(&lock) {
            Err(error) if is_shared(&error) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            // Not every file system has locks.
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Ok(None);
            }
            // Another run that has just ended may have removed the file before it was locked here, and a third one may have made it again.
            let own = file.metadata().map_err(failed)?;
            let is_same = |there: fs::Metadata| (there.dev(), there.ino()) == (own.dev(), own.ino());
            if !fs::metadata(&lock).is_ok_and(is_same) {
                return Ok(None);
            }
        }
        Ok(Some(Self { lock, file: Some(file) }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Windows removes no open file, nor one that another run has opened by then.
        if cfg!(windows) {
            self.file = None;
        }
        // Nothing else can be done if that fails.
        let _ = fs::remove_file(&self.lock);
    }
}

/// Returns whether a file cannot be opened because another process has it.
fn is_shared(error: &io::Error) -> bool {
    const SHARING_VIOLATION: i32 = 32;
    cfg!(windows) && error.raw_os_error() == Some(SHARING_VIOLATION)
}

fn being_recorded(file: &Path) -> Failure {
    let text = format!("{} is being recorded now; name another file", file.display());
    Failure::new(Exit::Input, text)
}

fn exists_already(file: &Path) -> Failure {
    Failure::new(Exit::Input, format!("{} exists already; rename or remove it", file.display()))
}

/// Returns the files to which a program may have recorded.
fn files(output: &Path) -> Vec<PathBuf> {
    let files = (1..=TraceContents::FILES).map(|number| TraceContents::path(output, number));
    files.filter(|file| fs::symlink_metadata(file).is_ok()).collect()
}

/// The traces of an earlier run: their names, and what they are called until the program has begun. Dropped, they have their names again.
struct Earlier(Vec<(PathBuf, PathBuf)>);

impl Earlier {
    fn remove(mut self) {
        // What is left is no file of this run.
        self.0.drain(..).for_each(|(_, aside)| _ = fs::remove_file(aside));
    }
}

impl Drop for Earlier {
    fn drop(&mut self) {
        // Nothing else can be done if that fails.
        self.0.drain(..).for_each(|(file, aside)| _ = fs::rename(aside, file));
    }
}

/// Returns whether a program that still runs records to the file: it has locked it then. On Windows it is not locked, but cannot be renamed.
fn is_recorded_now(file: &Path) -> bool {
    // Where nothing can be locked, nothing is known.
    File::open(file).is_ok_and(|open| matches!(open.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Renames the traces of an earlier run.
fn make_room(output: &Path) -> Result<Earlier, Failure> {
    let earlier = files(output);
    for file in &earlier {
        let found = fs::symlink_metadata(file).ok().filter(|found| found.is_file());
        if found.is_some() && is_recorded_now(file) {
            return Err(being_recorded(file));
        }
        if !found.is_some_and(|found| found.len() == 0 || read(file).is_ok()) {
            let text = format!("{} is no trace, and is not replaced; name another file", file.display());
            return Err(Failure::new(Exit::Input, text));
        }
    }
    let mut renamed = Earlier(Vec::new());
    for file in earlier {
        let mut aside = file.clone().into_os_string();
        aside.push(".earlier");
        let aside = PathBuf::from(aside);
        if fs::symlink_metadata(&aside).is_ok() {
            return Err(exists_already(&aside));
        }
        fs::rename(&file, &aside).map_err(|error| {
            Failure::caused_by(Exit::Io, format!("cannot replace {}", file.display()), error)
        })?;
        renamed.0.push((file, aside));
    }
    // Whether the program could write there.
    let tried = File::create_new(output).and_then(|_| fs::remove_file(output));
    tried.map_err(|error| {
        Failure::caused_by(Exit::Input, format!("cannot write {}", output.display()), error)
    })?;
    Ok(renamed)
}

/// Runs the program to its end. The earlier traces are gone once it has begun: an interrupt may end both.
fn wait_for(wanted: &args::Trace, output: &Path, earlier: Earlier) -> Result<ExitStatus, Failure> {
    let [program, arguments @ ..] = &wanted.command[..] else {
        return Err(Failure::new(Exit::Input, "no command was given"));
    };
    let mut command = process::Command::new(program);
    command.args(arguments).env(TRACE_VARIABLE, output);
    if wanted.engines {
        command.env(TRACE_ENGINES_VARIABLE, "1");
    }
    let mut child = command.spawn().map_err(|error| {
        let here = match error.kind() {
            ErrorKind::NotFound if env::current_dir().is_ok_and(|here| here.join(program).is_file()) => {
                "; write ./ before a program of this folder"
            }
            _ => "",
        };
        Failure::caused_by(Exit::Input, format!("cannot run {}{here}", program.display()), error)
    })?;
    earlier.remove();
    child.wait().map_err(|error| {
        Failure::caused_by(Exit::Io, format!("cannot wait for {}", program.display()), error)
    })
}

/// What the program recorded to a file, or why that cannot be read.
type Recorded = (PathBuf, Result<TraceContents, Failure>);

fn traces(output: &Path) -> Vec<Recorded> {
    files(output).into_iter().map(|file| (file.clone(), read(&file))).collect()
}

fn read(file: &Path) -> Result<TraceContents, Failure> {
    let open = File::open(file).map_err(|error| Failure::caused_by(Exit::Io, "cannot read it", error))?;
    TraceContents::read(BufReader::new(open)).map_err(Failure::from)
}

fn described(contents: &Result<TraceContents, Failure>) -> String {
    match contents {
        Ok(TraceContents { summary: Some(summary), .. }) => summary.to_string(),
        Ok(contents) => {
            format!("{} slices; the program did not end it, so the last ones may be missing", contents.slices)
        }
        Err(failure) => format!("not readable: {failure}"),
    }
}

fn json_of((file, contents): &Recorded) -> Value {
    let file = file.to_string_lossy();
    match contents {
        Ok(TraceContents { slices, summary, advice, .. }) => {
            let ended = summary.is_some();
            json!({ "file": file, "slices": slices, "ended": ended, "summary": summary, "advice": advice })
        }
        Err(failure) => json!({ "file": file, "error": failure.to_string() }),
    }
}

/// Returns the program's exit code; 128 and the signal's number if one ended it, as shells do.
fn code(ended: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
    #[cfg(not(unix))]
    let signal = None::<i32>;
    let code = ended.code().or(signal.map(|signal| 128 + signal));
    // Windows has codes that do not fit.
    let code = code.map_or(u8::MAX, |code| u8::try_from(code).unwrap_or(u8::MAX));
    ExitCode::from(code)
}
