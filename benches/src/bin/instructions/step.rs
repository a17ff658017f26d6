//! Counts the instructions of a part of a program by single steps.
//!
//! The program runs again as a traced child, which raises a signal before each counted part and another one after it.

use std::{env, io, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, ensure};

const BEGIN: i32 = libc::SIGUSR1;
const END: i32 = libc::SIGUSR2;

/// Begins a counted part, in the child.
#[inline(never)]
pub(crate) fn begin() {
    // SAFETY: raising a signal touches no memory; the tracer keeps it from being delivered.
    unsafe { libc::raise(BEGIN) };
}

/// Ends a counted part, in the child.
#[inline(never)]
pub(crate) fn end() {
    // SAFETY: as in `begin`.
    unsafe { libc::raise(END) };
}

/// Runs this program with the argument `case`, and returns the instructions of each counted part. They include those that
/// [`begin`] and [`end`] take.
pub(crate) fn count(case: &str) -> Result<Vec<u64>> {
    let mut command = Command::new(env::current_exe().context("this program's own file")?);
    command.arg(case);
    on_one_processor().context("choosing a processor")?;
    // SAFETY: `ptrace` is async-signal-safe, and so is reading `errno`.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0)) };
    let child = command.spawn().context("starting this program again, traced")?;
    let id = i32::try_from(child.id()).context("the child's id")?;
    let mut counts = Vec::new();
    let mut counting = None;
    let mut signal = 0;
    loop {
        let status = wait(id)?;
        if libc::WIFEXITED(status) {
            ensure!(libc::WEXITSTATUS(status) == 0, "the child failed with {}", libc::WEXITSTATUS(status));
            return Ok(counts);
        }
        ensure!(libc::WIFSTOPPED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
        match libc::WSTOPSIG(status) {
            BEGIN => counting = Some(0),
            END => counts.extend(counting.take()),
            // A step, or the start of the program.
            libc::SIGTRAP => counting = counting.map(|count| count + 1),
            other => signal = other,
        }
        let resume = if counting.is_some() { libc::PTRACE_SINGLESTEP } else { libc::PTRACE_CONT };
        request(resume, id, std::mem::take(&mut signal)).context("resuming the child")?;
    }
}

/// Keeps this thread and the children it starts on its processor: each step of a child on another one would wake that one.
fn on_one_processor() -> io::Result<()> {
    // SAFETY: all zero bits are the empty set.
    let mut processors: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `sched_getcpu` has no preconditions.
    let current = usize::try_from(unsafe { libc::sched_getcpu() }).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the set is live, and `CPU_SET` checks its bounds.
    unsafe { libc::CPU_SET(current, &mut processors) };
    // SAFETY: the set is live and has the given size; 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &processors) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn request(what: libc::c_uint, id: i32, signal: i32) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of this process.
    let outcome = unsafe { libc::ptrace(what, id, 0, signal) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn wait(id: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: the status is written to a live variable.
    let waited = unsafe { libc::waitpid(id, &mut status, libc::__WALL) };
    ensure!(waited == id, "waiting for the child: {}", io::Error::last_os_error());
    Ok(status)
}
