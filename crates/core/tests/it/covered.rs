//! Fallible writes over damaged bytes: the damage counts until the later write has succeeded.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{Access, Claims, ErrorKind, Fence, Queue, RawBuffer, Result};

use crate::{
    failures::{assert_source_failed, damaged, part},
    mock::{MockQueue, buffer},
};

#[test]
fn mark_survives_writes_that_fail_before_their_first_byte() {
    let (host, dst) = damaged();
    assert_source_failed(dst.read().map(drop), "disk on fire");
    // The second one by another queue, and of a part.
    let other = MockQueue::failing();
    host.write(&dst).unwrap();
    other.write(&part(&dst, 16..48)).unwrap();
    host.fail_untouched(2, "no memory");
    other.fail_untouched(1, "no memory");
    for range in [0..16, 16..48, 48..64] {
        assert_source_failed(part(&dst, range.clone()).read().map(drop), "disk on fire");
        let read = part(&dst, range);
        assert_source_failed(other.copy(&read, &buffer(read.len())), "disk on fire");
    }
    // One that ends well repairs its bytes.
    host.write(&part(&dst, 8..24)).unwrap();
    host.complete(3);
    drop(part(&dst, 8..24).read().unwrap());
    assert_source_failed(part(&dst, 7..8).read().map(drop), "disk on fire");
    assert_source_failed(part(&dst, 24..25).read().map(drop), "disk on fire");
}

#[test]
fn reader_after_write_that_changed_nothing_meets_the_mark() {
    let reads: [fn(&RawBuffer) -> Result<()>; 4] = [
        |dst| dst.read().map(drop),
        |dst| dst.try_write().map(drop),
        |dst| MockQueue::new().copy(dst, &buffer(64)).map(drop),
        |dst| dst.try_lock_range(Access::Read).map(drop),
    ];
    for (index, read) in reads.into_iter().enumerate() {
        let (host, dst) = damaged();
        host.write(&dst).unwrap();
        host.fail_untouched(2, "no memory");
        if index == 3 {
            // A range guard polls no timeline: the failure is seen once a view has polled.
            read(&dst).unwrap();
            dst.read().unwrap_err();
        }
        assert_source_failed(read(&dst), "disk on fire");
    }
}

#[test]
fn failure_in_flight_survives_write_that_changes_nothing() {
    let (host, dst) = (MockQueue::failing(), buffer(64));
    host.write(&dst).unwrap();
    host.write(&dst).unwrap();
    host.fail(1, "disk on fire");
    host.fail_untouched(2, "no memory");
    assert_source_failed(dst.read().map(drop), "disk on fire");
    // Nothing was damaged where the first one ended well.
    let (host, dst) = (MockQueue::failing(), buffer(64));
    host.write(&dst).unwrap();
    host.write(&dst).unwrap();
    host.complete(1);
    host.fail_untouched(2, "no memory");
    drop(dst.read().unwrap());
}

#[test]
fn reader_after_overwrite_of_damage_depends_on_overwrite_only() {
    for ends_well in [true, false] {
        let (host, stream, dst) = (MockQueue::failing(), MockQueue::new(), buffer(64));
        host.write(&dst).unwrap();
        host.write(&dst).unwrap();
        let read = stream.copy(&dst, &buffer(64)).unwrap();
        host.fail(1, "disk on fire");
        if ends_well {
            host.complete(2)
        } else {
            host.fail_untouched(2, "no memory")
        }
        stream.complete(1);
        if ends_well {
            read.wait().unwrap();
            drop(dst.read().unwrap());
        } else {
            assert_source_failed(read.wait(), "no memory");
            assert_source_failed(dst.read().map(drop), "disk on fire");
        }
    }
}

#[test]
fn covered_mark_ends_by_infallible_write_or_assume_written() {
    let forget: [fn(&RawBuffer); 3] = [
        |dst| MockQueue::new().write(dst).map(drop).unwrap(),
        |dst| dst.assume_written(..).unwrap(),
        // A launch that reads nothing that can fail.
        |dst| {
            let claims = Claims::updating(&mut [(dst, Access::Write)]).unwrap();
            // SAFETY: it stands for no work.
            unsafe { claims.commit(&Fence::new(Arc::clone(MockQueue::new().timeline()), 1)) };
        },
    ];
    for (index, forget) in forget.into_iter().enumerate() {
        for is_known in [true, false] {
            let (host, dst) = damaged();
            if is_known {
                dst.read().unwrap_err();
            }
            host.write(&dst).unwrap();
            if index == 1 {
                // While the later one is in flight.
                forget(&dst);
            }
            host.fail_untouched(2, "no memory");
            if index != 1 {
                forget(&dst);
            }
            assert!(
                !matches!(dst.try_read().map(drop), Err(error) if error.kind() == ErrorKind::SourceFailed)
            );
        }
    }
}

#[test]
fn launch_inheriting_a_failure_keeps_marks() {
    let (host, dst) = damaged();
    dst.read().unwrap_err();
    let (stream, src) = (MockQueue::new(), buffer(64));
    host.write(&src).unwrap();
    let claims = Claims::updating(&mut [(&src, Access::Read), (&dst, Access::Write)]).unwrap();
    let launch = claims.inherit(stream.write(&buffer(8)).unwrap());
    // SAFETY: it stands for no work.
    unsafe { claims.commit(&launch) };
    host.fail(2, "power cut");
    stream.complete(1);
    assert_source_failed(launch.wait(), "power cut");
    assert_source_failed(dst.read().map(drop), "power cut");
}

#[test]
fn complete_overwrites_do_not_accumulate() {
    let (host, dst) = (MockQueue::failing(), buffer(64));
    for count in 1..=1000 {
        host.write(&dst).unwrap();
        host.complete(count);
    }
    let asked = host.line().polls.load(Ordering::SeqCst);
    drop(dst.read().unwrap());
    let more = host.line().polls.load(Ordering::SeqCst) - asked;
    assert!(more < 10, "{more} writes were kept");
}
