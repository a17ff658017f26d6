//! Operations of which a part was done before the queue returned an error.

use std::sync::atomic::Ordering;

use transload_core::{
    ErrorKind, Operation, Pattern, Timing, TrySubmitError, Turns, try_submit, try_submit_after,
};

use crate::mock::{MockQueue, buffer};

#[test]
fn partial_failure_of_try_submit_marks_the_destination() {
    let (queue, other) = (MockQueue::new(), MockQueue::new());
    queue.refuse.store(true, Ordering::SeqCst);
    let before = other.write(&buffer(8)).unwrap();
    for is_partial in [false, true] {
        queue.does_parts.store(is_partial, Ordering::SeqCst);
        for after in [&[][..], std::slice::from_ref(&before)] {
            let dst = buffer(8);
            let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(1) };
            let refused = match after {
                [] => try_submit(&queue, &fill, Timing::Off, &Turns::default()),
                _ => try_submit_after(&queue, &fill, after, Timing::Off, &Turns::default()),
            };
            let Err(TrySubmitError::Failed(error)) = refused else { panic!("it was enqueued") };
            assert_eq!((error.kind(), error.is_partial()), (ErrorKind::Device, is_partial));
            let read = dst.read().map(drop).map_err(|error| error.kind());
            assert_eq!(read.err(), is_partial.then_some(ErrorKind::SourceFailed));
        }
    }
}
