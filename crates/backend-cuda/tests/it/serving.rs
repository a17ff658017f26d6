//! A backend that serves memory, and work of another one's that ends when the test says so.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Access, Backend, Claims, DeviceId, Fence, RawBuffer, Result, Timeline, TimelineId};
use transload_cuda_sim::harness::{EndCheck, TestDevice};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn open(test: &TestDevice) -> (Arc<CudaBackend>, DeviceId) {
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(test.ordinal()))
}

pub(crate) fn finish(_end: EndCheck, backend: Arc<CudaBackend>) {
    backend.drain().unwrap();
    assert!(backend.ledger().is_empty(), "{}", backend.ledger());
}

pub(crate) fn address(buffer: &RawBuffer) -> u64 {
    buffer.device_address().unwrap_or_else(|| buffer.host_address().unwrap().addr().get() as u64)
}

/// Fails instead of hanging.
pub(crate) fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if is_done.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("no end after a minute");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Work of nobody's that is over when the test says so.
pub(crate) struct Elsewhere {
    id: TimelineId,
    over: AtomicBool,
}

impl Elsewhere {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { id: transload_core::next_timeline_id(), over: AtomicBool::new(false) })
    }

    pub(crate) fn uses(self: &Arc<Self>, buffer: &RawBuffer) {
        let claims = Claims::of(&mut [(buffer, Access::Write)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)) };
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for Elsewhere {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        u64::from(self.over.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        Ok(self.reached() > 0)
    }

    fn wait(&self, _point: u64) -> Result<()> {
        while self.reached() == 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        true
    }

    fn take_duration(&self, _point: u64) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
