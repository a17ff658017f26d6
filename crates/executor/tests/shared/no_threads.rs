//! A limit that makes the system refuse threads to this process, for tests alone in their process.

use std::{fs, thread};

/// While this lives, the process has no room for another thread's stack.
pub(crate) struct NoThreads(libc::rlimit);

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
        assert!(thread::Builder::new().spawn(|| ()).is_err(), "a thread started beyond the limit");
        Self(before)
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        set(self.0);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: a plain call; an address space limit only makes calls fail.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}
