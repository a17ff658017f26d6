//! A fence of no backend that completes on the test's command. Tests of several crates include this file.

#![allow(dead_code, reason = "not every test that includes this file uses all of it")]

use std::{
    any::Any,
    sync::{Arc, Condvar, Mutex},
    task::Waker,
};

use transload_core::{
    Access, Claims, DeviceId, Fence, RawBuffer, Result, Timeline, TimelineId, next_timeline_id,
};

pub(crate) struct Gate(Arc<State>);

struct State {
    id: TimelineId,
    open: Mutex<(bool, Vec<Waker>)>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State { id: next_timeline_id(), open: Mutex::default(), opened: Condvar::new() }))
    }

    /// A gate that the next use of the buffer waits for.
    pub(crate) fn before(buffer: &RawBuffer) -> Self {
        let gate = Self::new();
        gate.uses(buffer);
        gate
    }

    /// Makes it a use of the buffer.
    pub(crate) fn uses(&self, buffer: &RawBuffer) {
        let claims = Claims::acquire(&mut [(buffer, Access::Write)]).unwrap();
        assert!(claims.after().is_empty());
        // SAFETY: no work touches the range, and none came before it.
        unsafe { claims.commit(&self.fence()) };
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence::new(Arc::clone(&self.0) as Arc<dyn Timeline>, 1)
    }

    /// How many keep it.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn open(&self) {
        let mut open = self.0.open.lock().unwrap();
        open.0 = true;
        let wakers = std::mem::take(&mut open.1);
        drop(open);
        self.0.opened.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Gate {
    /// So that a failed test does not keep its threads.
    fn drop(&mut self) {
        self.open();
    }
}

// SAFETY: there is no work behind the point that could touch memory.
unsafe impl Timeline for State {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        u64::from(self.open.lock().unwrap().0)
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Ok(self.open.lock().unwrap().0)
    }

    fn wait(&self, _: u64) -> Result<()> {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !open.0).unwrap());
        Ok(())
    }

    fn wake_at(&self, _: u64, waker: &Waker) -> bool {
        let mut open = self.open.lock().unwrap();
        if !open.0 {
            open.1.push(waker.clone());
        }
        open.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
