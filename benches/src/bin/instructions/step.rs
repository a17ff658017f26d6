//! Counts the instructions of a part of a program by single steps, and of x86-64 those that are atomic.
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

/// What a counted part took.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Count {
    pub(crate) instructions: i64,
    /// Those of x86-64 that lock memory.
    pub(crate) atomic: i64,
}

/// Runs this program with the argument `case`, and returns the instructions of each counted part. They include those that
/// [`begin`] and [`end`] take.
pub(crate) fn count(case: &str) -> Result<Vec<Count>> {
    let mut command = Command::new(env::current_exe().context("this program's own file")?);
    command.arg(case);
    on_one_processor().context("choosing a processor")?;
    // SAFETY: `ptrace` is async-signal-safe, and so is reading `errno`.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0)) };
    let child = command.spawn().context("starting this program again, traced")?;
    let id = i32::try_from(child.id()).context("the child's id")?;
    let mut counts = Vec::new();
    let mut counting: Option<Count> = None;
    let mut signal = 0;
    loop {
        let status = wait(id)?;
        if libc::WIFEXITED(status) {
            ensure!(libc::WEXITSTATUS(status) == 0, "the child failed with {}", libc::WEXITSTATUS(status));
            return Ok(counts);
        }
        ensure!(libc::WIFSTOPPED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
        match libc::WSTOPSIG(status) {
            BEGIN => counting = Some(Count::default()),
            END => counts.extend(counting.take()),
            // A step, or the start of the program.
            libc::SIGTRAP => counting.iter_mut().for_each(|count| count.instructions += 1),
            other => signal = other,
        }
        if let Some(count) = &mut counting {
            count.atomic +=
                i64::from(is_atomic(&next_instruction(id).context("reading the next instruction")?));
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

/// Returns the first bytes of the instruction that the child runs next; zeros of other processors than x86-64.
fn next_instruction(id: i32) -> io::Result<[u8; 8]> {
    #[cfg(target_arch = "x86_64")]
    {
        let rip = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
        let address = peek(libc::PTRACE_PEEKUSER, id, rip as u64)?;
        peek(libc::PTRACE_PEEKTEXT, id, address).map(u64::to_le_bytes)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _not_read = id;
        Ok([0; 8])
    }
}

#[cfg(target_arch = "x86_64")]
fn peek(what: libc::c_uint, id: i32, address: u64) -> io::Result<u64> {
    // SAFETY: the location is this thread's; these requests read the child's memory, and -1 may be what they read.
    let word = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(what, id, address, 0)
    };
    match io::Error::last_os_error() {
        error if word == -1 && error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(word.cast_unsigned()),
    }
}

/// Returns whether an instruction of x86-64 locks memory: it has the prefix `LOCK`, or exchanges with memory, which needs none.
fn is_atomic(bytes: &[u8; 8]) -> bool {
    const LOCK: u8 = 0xF0;
    let is_legacy = |byte: &u8| matches!(*byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x64..=0x67 | 0xF2 | 0xF3 | LOCK);
    let prefixes = bytes.iter().take_while(|byte| is_legacy(byte)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    // A prefix REX comes last.
    let rest = match rest {
        [0x40..=0x4F, rest @ ..] => rest,
        rest => rest,
    };
    let exchanges = matches!(rest, [0x86 | 0x87, operands, ..] if *operands < 0xC0);
    prefixes.contains(&LOCK) || exchanges
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_and_exchanges_with_memory_are_atomic() {
        let bytes = |code: &[u8]| std::array::from_fn(|index| code.get(index).copied().unwrap_or(0x90));
        let atomic: [&[u8]; 5] = [
            // lock xadd [rdi], rax; lock inc dword [rax]; xchg [rdi], rax; data16 xchg [rdi], ax; lock of an address of 32 bits.
            &[0xF0, 0x48, 0x0F, 0xC1, 0x07],
            &[0xF0, 0xFF, 0x00],
            &[0x48, 0x87, 0x07],
            &[0x66, 0x87, 0x07],
            &[0x67, 0xF0, 0xFF, 0x00],
        ];
        let others: [&[u8]; 4] = [
            // xchg rdi, rax; mov [rdi], rax; mov eax, 0xF0; nop.
            &[0x48, 0x87, 0xC7],
            &[0x48, 0x89, 0x07],
            &[0xB8, 0xF0, 0x00, 0x00, 0x00],
            &[0x90],
        ];
        assert!(atomic.iter().all(|code| is_atomic(&bytes(code))));
        assert!(!others.iter().any(|code| is_atomic(&bytes(code))));
    }
}
