//! The ring: pinned buffers of a device, made when they are needed, kept, and bounded in number.

use std::{
    collections::VecDeque,
    future::poll_fn,
    ptr::NonNull,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use transload_core::{Backend, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result};
use transload_executor::{BlockingKey, Executor};

/// Bytes of a staging buffer. Chunks of 4 MiB reach 0.97 of a link's rate where each is a copy of its own.
pub(super) const STAGING_BUFFER: usize = 4 << 20;

/// Turns after a shortage of pinned memory in which no further buffer is tried for.
const PAUSE: u32 = 256;

/// Pinned memory for one chunk.
struct StagingBuffer {
    buffer: RawBuffer,
    /// Where the host sees it.
    address: NonNull<u8>,
    /// The last copy that uses it.
    busy: Option<Fence>,
}

// SAFETY: the address is that of the buffer, which is Send; the holder of a staging buffer is its only user.
unsafe impl Send for StagingBuffer {}
// SAFETY: the address is only read through a shared reference.
unsafe impl Sync for StagingBuffer {}

/// The staging buffers of one device. A task that holds one never waits for another, so the ring cannot run dry for good.
pub(crate) struct StagingRing {
    backend: Arc<dyn Backend>,
    device: DeviceId,
    most: usize,
    /// Bounds how many threads pin memory, or make the pages of a destination, at once.
    pub(super) blocking: BlockingKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: VecDeque<StagingBuffer>,
    /// Buffers that exist or are being made.
    made: usize,
    /// Tasks that wait, in order: only the first may take or make a buffer.
    waiting: VecDeque<Waiting>,
    last_turn: u64,
    /// Turns until another buffer may be made beside those in use.
    pause: u32,
}

/// The transfer that a buffer is for.
#[derive(Clone, Copy)]
pub(super) struct User {
    /// The same for all of its tasks.
    pub(super) id: usize,
    /// Whether its chunks are so large that more buffers make it faster.
    pub(super) is_large: bool,
}

struct Waiting {
    turn: u64,
    user: usize,
    waker: Waker,
}

/// A staging buffer that its holder alone uses. Dropped, it goes back to the ring.
pub(super) struct Staging {
    ring: Arc<StagingRing>,
    /// There until it is dropped.
    held: Option<StagingBuffer>,
}

/// What comes of a task's turn.
enum Turn {
    /// With `grow` the task waits for a buffer in use while another one, which is counted, could be made.
    Take { taken: StagingBuffer, grow: bool },
    /// The task makes one, which is counted.
    Make,
    /// There is none and this task could not make any; or it needs none any more.
    Leave,
}

impl StagingRing {
    pub(crate) fn new(backend: &Arc<dyn Backend>, device: DeviceId, most: usize) -> Self {
        let most = most.max(1);
        let blocking = BlockingKey::new(most.div_ceil(2));
        Self { backend: Arc::clone(backend), device, most, blocking, state: Mutex::default() }
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// Waits for a staging buffer that nothing uses. Only for a task that holds none. Returns `None` if `is_needed` is false by then.
    ///
    /// # Errors
    /// That of allocating pinned memory, if there is no buffer at all; where there is one it is waited for instead.
    pub(super) async fn take(
        self: &Arc<Self>,
        executor: &Executor,
        user: User,
        is_needed: impl Fn() -> bool,
    ) -> Result<Option<Staging>> {
        let mut shortage = None;
        let mut place = Place { ring: self, turn: None };
        let taken = loop {
            let may_make = shortage.is_none();
            match poll_fn(|context| place.poll(context, user, may_make, &is_needed)).await {
                Turn::Take { taken, grow } => {
                    if grow {
                        self.make_beside(executor);
                    }
                    break taken;
                }
                Turn::Leave => return shortage.map_or(Ok(None), Err),
                Turn::Make => {
                    let making = Making::of(self);
                    let ring = Arc::clone(self);
                    match executor.spawn_blocking(&self.blocking, move || ring.make()).await {
                        Ok(Ok(made)) => {
                            making.disarm();
                            break made;
                        }
                        // Fewer must do, if there are any.
                        Ok(Err(error)) | Err(error) => shortage = Some(error),
                    }
                }
            }
        };
        let mut staging = Staging { ring: Arc::clone(self), held: Some(taken) };
        if let Some(fence) = staging.busy() {
            // What it failed with is reported by its own transfer.
            let _over = executor.fence(&fence).await;
            staging.set_busy(None);
        }
        Ok(Some(staging))
    }

    /// Returns a staging buffer that nothing uses, if there is one and no task waits for it.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Staging> {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        let taken = state.pop_free()?;
        drop(state);
        let mut staging = Staging { ring: Arc::clone(self), held: Some(taken) };
        if staging.busy().is_some_and(|fence| !fence.is_over()) {
            return None;
        }
        staging.set_busy(None);
        Some(staging)
    }

    /// Wakes the tasks of a transfer that needs no more buffers.
    pub(super) fn dismiss(&self, user: usize) {
        let state = self.state.lock();
        let of_user = state.waiting.iter().filter(|waiting| waiting.user == user);
        let wakers: Vec<_> = of_user.map(|waiting| waiting.waker.clone()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Gives the free buffers back to the backend. Blocks on copies that use them.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        let free = std::mem::take(&mut state.free);
        state.made -= free.len();
        let next = state.next();
        drop(state);
        next.into_iter().for_each(Waker::wake);
        for buffer in free {
            if let Some(fence) = &buffer.busy {
                let _reported_by_its_transfer = fence.wait();
            }
        }
    }

    /// Makes a buffer, which is counted, on a spare thread.
    fn make_beside(self: &Arc<Self>, executor: &Executor) {
        let (ring, making) = (Arc::clone(self), Making::of(self));
        drop(executor.spawn_blocking(&self.blocking, move || match ring.make() {
            Ok(made) => {
                making.disarm();
                ring.change(|state| state.free.push_back(made));
            }
            // There are fewer, and for a while no more are tried for.
            Err(_shortage) => ring.state.lock().pause = PAUSE,
        }));
    }

    fn make(&self) -> Result<StagingBuffer> {
        let _attached = self.backend.attach_thread();
        let buffer = self.backend.allocate(self.device, MemoryKind::Pinned, STAGING_BUFFER)?;
        let Some(address) = buffer.host_address() else {
            return Err(Error::new(ErrorKind::Unsupported, "pinned memory that the host cannot address"));
        };
        Ok(StagingBuffer { buffer, address, busy: None })
    }

    /// Changes the state, then wakes the first task that waits.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let next = state.next();
        drop(state);
        if !transload_core::mutant!("transfer/ring-wakes") {
            next.into_iter().for_each(Waker::wake);
        }
    }
}

impl State {
    /// Returns the waker of the first task that waits.
    fn next(&self) -> Option<Waker> {
        self.waiting.front().map(|waiting| waiting.waker.clone())
    }

    /// Removes a free buffer: one that nothing uses, if that is known of any.
    fn pop_free(&mut self) -> Option<StagingBuffer> {
        let is_idle = |buffer: &StagingBuffer| buffer.busy.as_ref().is_none_or(Fence::is_known_done);
        let index = self.free.iter().position(is_idle).unwrap_or(0);
        self.free.remove(index)
    }

    fn turn(&mut self, most: usize, may_make: bool, is_large: bool) -> Option<Turn> {
        let has_room = may_make && self.made < most;
        if let Some(taken) = self.pop_free() {
            // Large chunks take long enough on the device for the host to fill another buffer meanwhile.
            let grow =
                has_room && is_large && taken.busy.as_ref().is_some_and(|fence| !fence.is_known_done());
            self.made += usize::from(grow);
            return Some(Turn::Take { taken, grow });
        }
        if has_room {
            self.made += 1;
            return Some(Turn::Make);
        }
        (self.made == 0).then_some(Turn::Leave)
    }
}

/// A task's place among those that wait, if it has one.
struct Place<'a> {
    ring: &'a StagingRing,
    turn: Option<u64>,
}

impl Place<'_> {
    fn poll(
        &mut self,
        context: &Context<'_>,
        user: User,
        may_make: bool,
        is_needed: impl Fn() -> bool,
    ) -> Poll<Turn> {
        if !is_needed() {
            self.leave();
            return Poll::Ready(Turn::Leave);
        }
        let waker = context.waker().clone();
        let mut state = self.ring.state.lock();
        if state.waiting.front().is_none_or(|first| Some(first.turn) == self.turn)
            && let Some(turn) = state.turn(self.ring.most, may_make, user.is_large)
        {
            drop(state);
            self.leave();
            return Poll::Ready(turn);
        }
        let turn = *self.turn.get_or_insert_with(|| {
            state.last_turn += 1;
            state.last_turn
        });
        match state.waiting.iter_mut().find(|waiting| waiting.turn == turn) {
            Some(waiting) => waiting.waker = waker,
            None => state.waiting.push_back(Waiting { turn, user: user.id, waker }),
        }
        Poll::Pending
    }

    /// Gives the place up. The next one has its turn.
    fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.ring.change(|state| state.waiting.retain(|waiting| waiting.turn != turn));
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A buffer that is being made. Dropped, it was not: those that wait try for themselves.
struct Making(Option<Arc<StagingRing>>);

impl Making {
    fn of(ring: &Arc<StagingRing>) -> Self {
        Self(Some(Arc::clone(ring)))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(ring) = self.0.take() {
            ring.change(|state| state.made -= 1);
        }
    }
}

impl Staging {
    /// Returns the first `bytes` bytes, and where the host sees them.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for more than a staging buffer has.
    pub(super) fn slice(&self, bytes: usize) -> Result<(RawBuffer, NonNull<u8>)> {
        match &self.held {
            Some(held) => Ok((held.buffer.slice(..bytes)?, held.address)),
            None => Err(Error::new(ErrorKind::Interrupted, "the staging buffer was given back")),
        }
    }

    /// Returns the copy that uses it, if any.
    pub(super) fn busy(&self) -> Option<Fence> {
        self.held.as_ref().and_then(|held| held.busy.clone())
    }

    /// Sets the copy that uses it: the buffer serves no other before that is over.
    pub(super) fn set_busy(&mut self, fence: Option<Fence>) {
        if let Some(held) = &mut self.held {
            held.busy = fence;
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.ring.change(|state| state.free.push_back(held));
        }
    }
}
