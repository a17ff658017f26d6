//! Keeps this process to few of its processors.

#[cfg(target_os = "linux")]
use std::io::Error;

use anyhow::Result;
#[cfg(target_os = "linux")]
use anyhow::{Context as _, ensure};

/// Keeps this thread, and those that it starts, to the first `count` processors that it may use.
///
/// # Errors
/// If it may use fewer, or the system refuses.
#[cfg(target_os = "linux")]
pub fn confine(count: usize) -> Result<()> {
    let allowed = allowed()?;
    let first = allowed.get(..count).with_context(|| {
        format!("{count} processors are asked for, and this process may use {}", allowed.len())
    })?;
    // SAFETY: all zero bits are the empty set.
    let mut kept: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in first {
        // SAFETY: the set is live, and the processor is within its bounds.
        unsafe { libc::CPU_SET(*processor, &mut kept) };
    }
    // SAFETY: the set is live and has the given size; 0 is the calling thread.
    let code = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &kept) };
    ensure!(code == 0, "keeping this process to {count} processors: {}", Error::last_os_error());
    Ok(())
}

/// Returns the numbers of the processors that this thread may use, whatever share of their time it has.
#[cfg(target_os = "linux")]
fn allowed() -> Result<Vec<usize>> {
    // SAFETY: all zero bits are the empty set.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live and has the given size; 0 is the calling thread.
    let code = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut all) };
    ensure!(code == 0, "the system does not tell this process's processors: {}", Error::last_os_error());
    let is_allowed = |processor: &usize| {
        // SAFETY: the set is live, and the processor is within its bounds.
        unsafe { libc::CPU_ISSET(*processor, &all) }
    };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_allowed).collect())
}

/// Keeps this thread, and those that it starts, to the first `count` processors that it may use.
///
/// # Errors
/// Always: it is not done here.
#[cfg(not(target_os = "linux"))]
pub fn confine(count: usize) -> Result<()> {
    anyhow::bail!("a process is kept to {count} processors on Linux only")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn thread_and_its_children_keep_to_so_many() {
        let processors = || allowed().unwrap().len();
        let all = processors();
        let kept = thread::spawn(move || {
            let error = confine(all + 1).unwrap_err().to_string();
            assert!(error.contains(&format!("this process may use {all}")), "{error}");
            confine(1).unwrap();
            [processors(), thread::spawn(processors).join().unwrap()]
        });
        assert_eq!(kept.join().unwrap(), [1, 1]);
        assert_eq!(processors(), all, "the others are as they were");
    }
}
