//! A fill with an element: how many operations it takes, what keeps the element, and what it refuses.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{ErrorKind, MemoryKind, RawBuffer, Reclaimer, fill};

use crate::mock::{MockQueue, buffer, memory};

fn operations(element: &[u8], dst: &RawBuffer) -> u64 {
    let queue = MockQueue::new();
    let fence = fill(&queue, dst, element).unwrap();
    assert_eq!(fence.point(), queue.count(), "the fence is the last operation's");
    queue.complete(fence.point());
    queue.count()
}

#[test]
fn repeating_element_is_one_fill_others_double() {
    let dst = buffer(96);
    for element in [vec![1; 3], vec![1, 2], [[1, 2, 3, 4]; 3].concat(), (0..16).collect(), vec![7; 96]] {
        assert_eq!(operations(&element, &dst), 1, "{element:?}");
    }
    // Written once, then 3, 6, 12, 24 and 48 bytes copied.
    assert_eq!(operations(&[1, 2, 3], &dst), 6);
    assert_eq!(operations(&(0..96).collect::<Vec<u8>>(), &dst), 1);
    // 24, 48, and what is left.
    assert_eq!(operations(&(0..32).collect::<Vec<u8>>(), &dst), 3);
    assert_eq!(operations(&[1, 2, 3], &dst.slice(9..9).unwrap()), 1, "an empty fill has a fence, too");
    // From where no fill of 8 bytes may begin.
    assert_eq!(operations(&[1, 2, 3, 4, 5, 6, 7, 8], &dst.slice(4..36).unwrap()), 3);
}

#[test]
fn fill_element_is_pending_free_until_it_is_copied() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (dst, freed) = memory(&reclaimer, MemoryKind::Device, 12, true);
    let queue = MockQueue::new();
    fill(&queue, &dst, &[1, 2, 3]).unwrap();
    assert_eq!((queue.count(), reclaimer.len()), (3, 1), "nothing was waited for");
    drop(dst);
    assert_eq!(reclaimer.len(), 2);
    queue.complete(1);
    assert_eq!(reclaimer.sweep(), 1, "the element's copy is over, the filling is not");
    assert!(!freed.load(Ordering::SeqCst));
    queue.complete(3);
    assert_eq!(reclaimer.sweep(), 1);
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn misfit_is_refused_and_refusal_leaves_no_claim() {
    let queue = MockQueue::new();
    let dst = buffer(100);
    for element in [&[][..], &[1, 2, 3], &[0; 16], &[0; 200]] {
        let error = fill(&queue, &dst, element).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let sealed = memory(&Arc::default(), MemoryKind::Pageable, 12, false).0;
    for element in [&[1; 4], &[1, 2, 3, 4]] {
        assert_eq!(fill(&queue, &sealed, element).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(fill(&queue, &sealed, &[1, 2, 3]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    queue.refuse.store(true, Ordering::SeqCst);
    for element in [&[1, 2, 3, 4, 5][..], &[1]] {
        assert_eq!(fill(&queue, &dst, element).unwrap_err().kind(), ErrorKind::Device);
        assert!(dst.try_write().is_ok());
    }
    assert_eq!(queue.count(), 0);
}
