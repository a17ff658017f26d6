//! Host work that ends when the test says so: a timeline that a stream may wait for on the device.

use std::{
    any::Any,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, PointSignal, RawBuffer, Result, Timeline, TimelineId,
    host_access::{self, HostAccess},
    next_timeline_id,
};

type Work = Box<dyn FnOnce() + Send>;

/// One operation of the host. A thread that waits for it performs it, so a wait on the host cannot hang the test.
pub(crate) struct HostLine {
    id: TimelineId,
    reached: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    work: Option<Work>,
    signals: Vec<PointSignal>,
    wakers: Vec<Waker>,
    failed: bool,
    was_waited_for: bool,
}

impl HostLine {
    /// Claims the buffer for the host to write it with `content` later.
    pub(crate) fn writing(buffer: &RawBuffer, content: Vec<u8>) -> Arc<Self> {
        let to = buffer.host_address().unwrap().as_ptr().expose_provenance();
        assert_eq!(buffer.len(), content.len());
        let claims = Claims::acquire(&mut [(buffer, Access::Write)]).unwrap();
        assert!(claims.after().iter().all(Fence::is_complete));
        let work: Work = Box::new(move || {
            host_access::note(to, content.len(), HostAccess::Write);
            // SAFETY: the claims keep the buffer alive and undisturbed until the point is reached.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    content.as_ptr(),
                    std::ptr::with_exposed_provenance_mut(to),
                    content.len(),
                );
            }
        });
        let line = Self::new(Some(work));
        // SAFETY: the fence completes after the work.
        unsafe { claims.commit(&line.fence()) };
        line
    }

    pub(crate) fn new(work: Option<Work>) -> Arc<Self> {
        let state = Mutex::new(State { work, ..State::default() });
        Arc::new(Self { id: next_timeline_id(), reached: AtomicU64::new(0), state, changed: Condvar::new() })
    }

    pub(crate) fn fence(self: &Arc<Self>) -> Fence {
        Fence::new(self.clone(), 1)
    }

    /// Performs the work.
    pub(crate) fn open(&self) {
        self.end(false);
    }

    /// Ends with an error instead.
    pub(crate) fn fail(&self) {
        self.end(true);
    }

    pub(crate) fn was_waited_for(&self) -> bool {
        self.state.lock().unwrap().was_waited_for
    }

    fn end(&self, failed: bool) {
        let mut state = self.state.lock().unwrap();
        if self.reached() == 1 {
            return;
        }
        match state.work.take() {
            Some(work) if !failed => work(),
            _ => {}
        }
        state.failed = failed;
        self.reached.store(1, Ordering::Release);
        let (signals, wakers) = (std::mem::take(&mut state.signals), std::mem::take(&mut state.wakers));
        drop(state);
        signals.iter().for_each(|signal| signal());
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

// SAFETY: its point is reached after the only work.
unsafe impl Timeline for HostLine {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        if self.reached() < point {
            return Ok(false);
        }
        match self.state.lock().unwrap().failed {
            true => Err(Error::new(ErrorKind::Interrupted, "the host work failed")),
            false => Ok(true),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        if self.reached() < point {
            self.state.lock().unwrap().was_waited_for = true;
            self.end(false);
        }
        self.poll(point).map(|_| ())
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock().unwrap();
        if self.reached() >= point {
            return true;
        }
        state.wakers.push(waker.clone());
        false
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn ends_by_host_alone(&self, point: u64) -> bool {
        self.reached() < point
    }

    fn signal_at(&self, point: u64, signal: PointSignal) {
        let mut state = self.state.lock().unwrap();
        if self.reached() < point {
            return state.signals.push(signal);
        }
        drop(state);
        signal();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
