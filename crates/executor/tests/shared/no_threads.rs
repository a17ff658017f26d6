//! A limit that makes the system refuse threads to this process, for tests alone in their process.

use std::{fs, sync::mpsc, thread};

/// While this lives, the process has no room for another thread's stack.
pub(crate) struct NoThreads {
    before: libc::rlimit,
    /// Ends the threads that took the stacks which the C library kept of earlier ones.
    _held: Vec<mpsc::Sender<()>>,
}

impl NoThreads {
    pub(crate) fn new() -> Self {
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain calls with a valid out pointer.
        let page = unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut before), 0);
            libc::sysconf(libc::_SC_PAGESIZE)
        };
        // A stack has 2 MiB.
        set(libc::rlimit { rlim_cur: pages * page as u64 + (1 << 20), ..before });
        let mut held = Vec::new();
        loop {
            let (keep, end) = mpsc::channel::<()>();
            match thread::Builder::new().spawn(move || {
                let _ended = end.recv();
            }) {
                Ok(_) => held.push(keep),
                Err(_) => return Self { before, _held: held },
            }
            assert!(held.len() < 64, "threads start beyond the limit");
        }
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        set(self.before);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: a plain call; an address space limit only makes calls fail.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}
