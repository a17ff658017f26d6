//! Storage that adopts fences is returned at once, with the fences of the work in flight, and its next user
//! follows them.

use std::{any::Any, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use transload_core::{ErrorKind, Fence, MemoryKind, Place, RawBuffer, Reclaimer, Storage};

use crate::mock::{DEVICE, MockQueue, key};

/// The returned memory, with its fences.
type Returned = Arc<Mutex<Vec<Vec<Fence>>>>;

/// A block of an allocator: the allocator owns the memory, so a drop only returns it.
struct Block {
    bytes: Box<[u8]>,
    until: Vec<Fence>,
    returned: Returned,
}

// SAFETY: a boxed slice, which does not move and has no other owner before it is dropped. (Bytes need no alignment in
// these tests, and the mock's operations touch nothing.)
unsafe impl Storage for Block {
    fn place(&self) -> Place {
        Place::new(DEVICE, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(NonNull::from(&self.bytes[0]))
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        self.until = until.to_vec();
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.returned.lock().push(std::mem::take(&mut self.until));
    }
}

fn block(returned: &Returned, reclaimer: &Arc<Reclaimer>, behind: &[Fence]) -> RawBuffer {
    let storage = Block { bytes: vec![0; 64].into(), until: Vec::new(), returned: Arc::clone(returned) };
    RawBuffer::new_after(Box::new(storage), reclaimer, behind)
}

#[test]
fn storage_that_adopts_fences_is_returned_with_them() {
    let (returned, reclaimer) = (Returned::default(), Arc::new(Reclaimer::new()));
    let (one, two) = (MockQueue::new(), MockQueue::new());
    let (first, second) = (block(&returned, &reclaimer, &[]), block(&returned, &reclaimer, &[]));
    let over = one.write(&first).unwrap();
    one.complete(over.point());
    let fence = two.copy(&first, &second).unwrap();
    drop(first);
    assert!(reclaimer.is_empty(), "nothing is pending free");
    let until: Vec<_> = returned.lock()[0].iter().map(key).collect();
    assert_eq!(until, [key(&fence)], "what is over is not among them");
    two.complete(fence.point());
    drop(second);
    assert!(returned.lock()[1].is_empty(), "unused memory comes back without fences");
}

#[test]
fn use_of_buffer_created_after_fences_follows_them() {
    let (returned, reclaimer) = (Returned::default(), Arc::new(Reclaimer::new()));
    let (earlier, other, user) = (MockQueue::new(), MockQueue::new(), MockQueue::new());
    let scratch = crate::mock::buffer(64);
    let (one, two) = (earlier.write(&scratch).unwrap(), other.write(&crate::mock::buffer(64)).unwrap());
    let behind = [one.clone(), two.clone()];
    let buffer = block(&returned, &reclaimer, &behind);
    assert_eq!(buffer.try_read().unwrap_err().kind(), ErrorKind::Busy, "a host view would have to wait");
    user.write(&buffer.slice(10..20).unwrap()).unwrap();
    let mut expected = vec![key(&one), key(&two)];
    expected.sort();
    assert_eq!(user.last_after(), expected);
    // The write does not cover this part.
    user.write(&buffer.slice(30..40).unwrap()).unwrap();
    assert_eq!(user.last_after(), expected);
    drop(buffer);
    let until: Vec<_> = returned.lock()[0].iter().map(key).collect();
    assert!(expected.iter().all(|fence| until.contains(fence)), "what was not waited for goes on");
}

#[test]
fn fences_that_are_over_hold_nobody_up() {
    let (returned, reclaimer) = (Returned::default(), Arc::new(Reclaimer::new()));
    let earlier = MockQueue::new();
    let fence = earlier.write(&crate::mock::buffer(64)).unwrap();
    let buffer = block(&returned, &reclaimer, std::slice::from_ref(&fence));
    earlier.complete(fence.point());
    buffer.try_write().unwrap()[0] = 1;
    drop(buffer);
    assert!(returned.lock()[0].is_empty());
}
