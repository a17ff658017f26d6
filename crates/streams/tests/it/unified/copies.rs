//! In explicit mode, bytes are copied only if the other side's are newer.

use std::sync::{Arc, OnceLock, Weak};

use transload_core::{
    Buffer, DeviceId, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline, Timing,
};
use transload_cuda_sys::{AsStream as _, Context, check, ffi, trace};
use transload_memory::{Role, UnifiedBuffer};
use transload_streams::CudaStream;

use super::for_each_fixture;
use crate::{
    launch::{saxpy, saxpy_of},
    support::gate::limited,
};

/// Calls of this thread that copy up and down.
fn copies(action: impl FnOnce()) -> (usize, usize) {
    let trace = trace::start();
    action();
    let calls = trace.calls_of_this_thread();
    let count = |part: &str| calls.iter().filter(|call| call.name.contains(part)).count();
    (count("MemcpyHtoD"), count("MemcpyDtoH"))
}

#[test]
fn only_the_newer_side_is_copied() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let (buffer, other) = (fixture.buffer::<f32>(1000), fixture.buffer::<f32>(1000));
        let stream = &fixture.stream;
        drop(buffer.read().unwrap());
        let each = if fixture.is_managed() { 0 } else { 1 };
        assert_eq!(copies(|| drop(buffer.read().unwrap())), (0, 0), "{fixture}: not written");
        assert_eq!(copies(|| buffer.write().unwrap().fill(1.0)), (each, 0), "{fixture}: up when it closes");
        assert_eq!(copies(|| drop(buffer.read().unwrap())), (0, 0), "{fixture}: the host wrote it itself");
        let use_it = |role, kept: bool| {
            let there = buffer.acquire_for_device(stream, role).unwrap();
            if kept {
                drop(saxpy(&kernel, stream, 1.0, there.raw(), other.raw()).unwrap());
            } else {
                drop(saxpy(&kernel, stream, 1.0, other.raw(), there.raw()).unwrap());
            }
        };
        assert_eq!(copies(|| use_it(Role::Input, true)), (0, 0), "{fixture}");
        assert_eq!(copies(|| drop(buffer.read().unwrap())), (0, 0), "{fixture}: a kernel only read it");
        assert_eq!(copies(|| use_it(Role::Output, false)), (0, 0), "{fixture}");
        assert_eq!(
            copies(|| drop(buffer.read_range(..10).unwrap())),
            (0, each),
            "{fixture}: a kernel wrote it"
        );
        assert_eq!(copies(|| drop(buffer.read().unwrap())), (0, each), "{fixture}: the rest");
        assert_eq!(copies(|| drop(buffer.read().unwrap())), (0, 0), "{fixture}");
        // Around the guard: memory that may have been written counts as written.
        buffer.fill(2.0).unwrap();
        assert_eq!(copies(|| assert_eq!(buffer.read().unwrap()[999], 2.0)), (0, each), "{fixture}");
        drop((buffer, other, kernel));
    });
}

#[test]
fn host_prefetch_makes_the_next_slice_ready() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(100_000);
        buffer.fill(3).unwrap();
        buffer.prefetch_to_host().wait().unwrap();
        assert_eq!(
            copies(|| assert!(buffer.read().unwrap().iter().all(|byte| *byte == 3))),
            (0, 0),
            "{fixture}"
        );
        buffer.prefetch_to_device(None).wait().unwrap();
        buffer.fill(4).unwrap();
        let down = buffer.prefetch_range_to_host(..60_000);
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 4), "{fixture}: next to it, too");
        down.wait().unwrap();
        let down = buffer.prefetch_to_host_on(&fixture.stream, 5..7);
        buffer.fill(5).unwrap();
        down.wait().unwrap();
        assert_eq!(buffer.read().unwrap()[5], 5, "{fixture}: overtaken by a fill");
        drop(buffer);
    });
}

/// A slow stream: when `enqueue` returns, the copy is complete and a guard was taken and dropped, through which the device
/// wrote by address.
struct SlowQueue {
    stream: CudaStream,
    context: Context,
    buffer: OnceLock<Weak<UnifiedBuffer<u8>>>,
}

// SAFETY: the stream keeps the contract.
unsafe impl Queue for SlowQueue {
    fn device(&self) -> DeviceId {
        self.stream.device()
    }

    fn priority(&self) -> StreamPriority {
        self.stream.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.stream.timeline()
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.stream.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.stream.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        let fence = unsafe { self.stream.enqueue(operation, after, timing) }?;
        if let Some(buffer) = self.buffer.get().and_then(Weak::upgrade) {
            fence.wait()?;
            let there = buffer.acquire_for_device(&self.stream, Role::Output)?;
            let address = there.device_address().unwrap();
            let _bound = self.context.enter().unwrap();
            // SAFETY: the guard excludes the host, all earlier work on the memory is complete, and this is synchronised
            // below.
            check("memset", unsafe { ffi::cuMemsetD8Async(address, 9, there.len(), self.stream.as_raw()) })
                .unwrap();
            self.stream.synchronize()?;
        }
        Ok(fence)
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }
}

#[test]
fn outdated_host_copy_is_not_taken_as_newest() {
    limited(|| {
        for_each_fixture(|fixture| {
            if fixture.is_managed() {
                return;
            }
            let buffer = Arc::new(fixture.buffer::<u8>(1000));
            buffer.fill(1).unwrap();
            let queue = SlowQueue {
                stream: CudaStream::new(&fixture.setup.device).unwrap(),
                context: fixture.setup.device.context().unwrap().clone(),
                buffer: OnceLock::new(),
            };
            queue.buffer.set(Arc::downgrade(&buffer)).unwrap();
            buffer.prefetch_to_host_on(&queue, ..).wait().unwrap();
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 9), "{fixture}: it is stale");
            drop((buffer, queue));
        });
    });
}
