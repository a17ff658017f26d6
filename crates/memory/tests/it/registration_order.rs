//! Registrations are ordered after work in flight on the buffer.

use std::{
    any::Any,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use transload_core::{
    Access, Claims, DeviceId, ErrorKind, Fence, RawBuffer, Result, Timeline, TimelineId, TrySubmitError,
    Turns, next_timeline_id,
};
use transload_memory::{CudaMemoryManager, RegistrationCache};

use super::{gate::Gate, heap::heap, manager};

#[test]
fn registering_waits_for_work_in_flight() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let cache = Arc::new(RegistrationCache::new(&memory, u64::MAX).unwrap());
    let (buffer, _) = heap(100_000, true);
    let held = Gate::before(&buffer);
    let (sender, receiver) = channel();
    let (in_thread, of_thread) = (Arc::clone(&cache), buffer.clone());
    let registering = thread::spawn(move || {
        let _test_is_over = sender.send(in_thread.register(&of_thread).map(drop));
    });
    let early = receiver.recv_timeout(Duration::from_millis(200));
    assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "registered under work in flight");
    held.open();
    receiver.recv_timeout(Duration::from_secs(20)).expect("not registered after the work").unwrap();
    registering.join().unwrap();
    drop((buffer, cache));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn registration_with_work_in_flight_does_not_end() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(100_000, true);
    let pinned = cache.register(&buffer).unwrap();
    let held = Gate::new();
    let claims = Claims::acquire(&mut [(&pinned, Access::Read)]).unwrap();
    // SAFETY: nothing uses the bytes, so the fence may stand for any work on them; nothing was in flight before.
    unsafe { claims.commit(&held.fence()) };
    drop(pinned);
    assert_eq!(cache.forget(&buffer).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(cache.trim().unwrap(), 0);
    assert_eq!(cache.statistics().registrations, 1);
    held.open();
    cache.forget(&buffer).unwrap();
    assert_eq!(cache.statistics().registrations, 0);
    drop((buffer, cache));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
}

/// A copy may read the bytes through the view.
#[test]
fn registration_does_not_end_while_a_view_or_a_loan_is_open() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let (buffer, _) = heap(100_000, true);
    let part = buffer.slice(..10).unwrap();
    for is_lent in [false, true] {
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        drop(cache.register(&buffer).unwrap());
        let (view, loan) = match is_lent {
            false => (Some(part.read().unwrap()), None),
            true => (None, Some(part.lend(Access::Read).unwrap())),
        };
        assert_eq!(cache.forget(&buffer).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(cache.trim().unwrap(), 0);
        assert_eq!(cache.statistics().registrations, 1);
        drop(cache);
        assert_eq!(memory.drain().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(memory.resource_counts().pending_free, 1);
        drop((view, loan));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
    drop((part, buffer, memory));
    device.assert_no_live_objects();
}

type Action = Box<dyn FnOnce() + Send>;

/// Work that runs an action when it is first asked whether it is over.
struct Asked {
    id: TimelineId,
    act: Mutex<Option<Action>>,
    is_over: AtomicBool,
}

// SAFETY: no work has its point, so no memory is used.
unsafe impl Timeline for Asked {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        0
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        let act = self.act.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        Ok(self.is_over.load(Ordering::SeqCst))
    }

    fn wait(&self, _point: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Runs an action when woken, on the thread that wakes.
struct Inline(Mutex<Option<Action>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
    }
}

#[test]
fn task_that_the_end_of_a_registration_wakes_may_register_others() {
    // Whichever of the two ends first.
    for (is_over, reversed) in [(false, false), (false, true), (true, false), (true, true)] {
        let (device, memory) = manager();
        let memory: Arc<CudaMemoryManager> = Arc::new(memory);
        let cache = Arc::new(RegistrationCache::new(&memory, u64::MAX).unwrap());
        let [mut one, mut other] = [(); 2].map(|()| heap(100_000, true).0);
        if reversed {
            std::mem::swap(&mut one, &mut other);
        }
        for buffer in [&one, &other] {
            drop(cache.register(buffer).unwrap());
        }
        let (registered, registering) = channel();
        let task: Action = {
            let (cache, other) = (Arc::clone(&cache), other.clone());
            Box::new(move || registered.send(cache.register(&other).map(drop)).unwrap())
        };
        let waker = Waker::from(Arc::new(Inline(Mutex::new(Some(task)))));
        // While the end of its registration has claimed the buffer, a task waits for it.
        let claimed = one.clone();
        let act: Action = Box::new(move || {
            let TrySubmitError::WouldBlock(obstacle) =
                Claims::try_acquire(&mut [(&claimed, Access::Read)], &Turns::default()).unwrap_err()
            else {
                panic!("it is claimed");
            };
            assert_eq!(pin!(obstacle).poll(&mut Context::from_waker(&waker)), Poll::Pending);
        });
        let asked = Arc::new(Asked {
            id: next_timeline_id(),
            act: Mutex::new(Some(act)),
            is_over: AtomicBool::new(is_over),
        });
        let claims = Claims::acquire(&mut [(&one, Access::Read)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(&asked) as Arc<dyn Timeline>, 1)) };
        let trimming = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.trim().map(drop))
        };
        registering
            .recv_timeout(Duration::from_secs(20))
            .expect("the task waits for its own thread")
            .unwrap();
        trimming.join().unwrap().unwrap();
        asked.is_over.store(true, Ordering::SeqCst);
        cache.trim().unwrap();
        assert_eq!(cache.statistics().registrations, 0);
        drop((one, other, asked, cache));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop(memory);
        device.assert_no_live_objects();
    }
}

#[test]
fn registration_that_stays_does_not_wait_for_the_others_to_end() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let cache = Arc::new(RegistrationCache::new(&memory, u64::MAX).unwrap());
    let buffers = [(); 2].map(|()| heap(100_000, true).0);
    let stayed = Arc::new(Mutex::new(None::<(RawBuffer, Arc<Asked>)>));
    let (sender, receiver) = channel();
    let all_asked = buffers.each_ref().map(|buffer| {
        drop(cache.register(buffer).unwrap());
        let asked = Arc::new(Asked {
            id: next_timeline_id(),
            act: Mutex::new(None),
            is_over: AtomicBool::new(false),
        });
        let (of_first, cache, stayed) = (Arc::clone(&asked), Arc::clone(&cache), Arc::clone(&stayed));
        let (buffer, sender) = (buffer.clone(), sender.clone());
        // The second one that is asked: the first one was found in use, and its work is over since.
        *asked.act.lock().unwrap() = Some(Box::new(move || {
            let first = stayed.lock().unwrap().take();
            match first {
                None => *stayed.lock().unwrap() = Some((buffer, of_first)),
                Some((first, its_work)) => {
                    its_work.is_over.store(true, Ordering::SeqCst);
                    sender.send(cache.forget(&first)).unwrap();
                }
            }
        }));
        asked
    });
    for (buffer, asked) in buffers.iter().zip(&all_asked) {
        let claims = Claims::acquire(&mut [(buffer, Access::Read)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(asked) as Arc<dyn Timeline>, 1)) };
    }
    assert_eq!(cache.trim().unwrap(), 0);
    receiver.try_recv().expect("both were asked").unwrap();
    assert_eq!(cache.statistics().registrations, 1);
    for asked in &all_asked {
        asked.is_over.store(true, Ordering::SeqCst);
    }
    assert_eq!(cache.trim().unwrap(), 100_000);
    drop((buffers, all_asked, stayed, cache));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
}
