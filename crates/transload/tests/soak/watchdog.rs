//! Reports what every thread is doing when one of them hangs.

use std::{
    fmt::Write as _,
    panic,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Time limit of one operation.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between checks.
const PERIOD: Duration = Duration::from_secs(2);

/// The current operation of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Out of all its operations.
    pub(crate) number: u64,
    pub(crate) what: &'static str,
    /// Kinds of memory, bytes.
    pub(crate) details: String,
    since: Instant,
}

/// A thread's handle: dropping it marks the thread as ended.
pub(crate) struct Watch {
    standing: Arc<Mutex<Standing>>,
    ended: Sender<bool>,
}

impl Watch {
    pub(crate) fn stand(&self, number: u64, what: &'static str, details: String) {
        *self.standing.lock().unwrap() = Standing { number, what, details, since: Instant::now() };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _test_is_over = self.ended.send(thread::panicking());
    }
}

pub(crate) struct Watchdog {
    standings: Vec<Arc<Mutex<Standing>>>,
    sender: Sender<bool>,
    ended: Receiver<bool>,
}

impl Watchdog {
    pub(crate) fn new(threads: u64) -> Self {
        let beginning =
            || Standing { number: 0, what: "beginning", details: String::new(), since: Instant::now() };
        let (sender, ended) = channel();
        Self { standings: (0..threads).map(|_| Arc::new(Mutex::new(beginning()))).collect(), sender, ended }
    }

    pub(crate) fn watch(&self, thread: u64) -> Watch {
        let standing = Arc::clone(&self.standings[thread as usize]);
        Watch { standing, ended: self.sender.clone() }
    }

    /// Returns when all threads have ended.
    ///
    /// Panics if one of them panics or hangs.
    pub(crate) fn wait(&self) {
        let mut left = self.standings.len();
        while left > 0 {
            match self.ended.recv_timeout(PERIOD) {
                Ok(true) => panic!("a thread panicked; all stand here:\n{}", self.report()),
                Ok(false) => left -= 1,
                Err(_) => self.look(),
            }
        }
    }

    fn look(&self) {
        // An ended thread stays at its last step, which says so.
        let is_stuck = |standing: &Arc<Mutex<Standing>>| {
            let standing = standing.lock().unwrap();
            standing.what != "ended" && standing.since.elapsed() > PATIENCE
        };
        if self.standings.iter().any(is_stuck) {
            panic!("a thread stands still for {} s:\n{}", PATIENCE.as_secs(), self.report());
        }
    }

    fn report(&self) -> String {
        let mut text = String::new();
        for (thread, standing) in self.standings.iter().enumerate() {
            let Standing { number, what, details, since } = standing.lock().unwrap().clone();
            let seconds = since.elapsed().as_secs_f64();
            let _ =
                writeln!(text, "thread {thread}: operation {number}, {what} {details}, for {seconds:.1} s");
        }
        text
    }
}

/// Fails if it is not complete after a minute.
pub(crate) fn within_a_minute(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        let _test_is_over = done.send(());
    });
    if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        panic!("{what} is not over after {} s", PATIENCE.as_secs());
    }
    if let Err(payload) = thread.join() {
        panic::resume_unwind(payload);
    }
}
