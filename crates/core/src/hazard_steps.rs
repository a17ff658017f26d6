//! How the cost of a submission grows with what is in flight, counted in segments looked at.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use crate::{
    Access, Claims, DeviceId, Fence, HostBytes, MemoryKind, RawBuffer, Reclaimer, Result, Timeline,
    TimelineId, hazard::counted, next_timeline_id,
};

const PIECE: usize = 4096;

struct Line {
    id: TimelineId,
    reached: AtomicU64,
}

impl Line {
    fn new() -> Arc<Self> {
        Arc::new(Self { id: next_timeline_id(), reached: AtomicU64::new(0) })
    }
}

// SAFETY: nothing of it touches memory.
unsafe impl Timeline for Line {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn take_duration(&self, _: u64) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn buffer(bytes: usize) -> RawBuffer {
    let mut owner = vec![0_u128; bytes.div_ceil(16)].into_boxed_slice();
    let address = NonNull::from(&mut *owner).cast();
    // SAFETY: the box owns the bytes, and does not move them when it is moved.
    let storage = unsafe { HostBytes::new(owner, address, bytes, MemoryKind::Pinned, true) };
    RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()))
}

fn pieces(whole: &RawBuffer, n: usize) -> Vec<RawBuffer> {
    (0..n).map(|index| whole.slice(index * PIECE..(index + 1) * PIECE).unwrap()).collect()
}

fn write(piece: &RawBuffer, line: &Arc<Line>, point: u64) -> usize {
    let claims = Claims::of(&mut [(piece, Access::Write)]).unwrap();
    let waits_for = claims.after().len();
    // SAFETY: the line's work touches no memory.
    unsafe { claims.commit(&Fence::new(Arc::clone(line) as Arc<dyn Timeline>, point)) };
    waits_for
}

#[test]
fn disjoint_pieces_in_flight_cost_the_same_whatever_their_number() {
    for n in [250, 1_000, 8_000] {
        let (whole, lines) = (buffer(n * PIECE), [Line::new(), Line::new(), Line::new()]);
        let pieces = pieces(&whole, n);
        let mut most = 0;
        let mut begun = counted();
        // Pieces far from each other follow each other: no order of addresses helps.
        for index in 0..n {
            let before = counted();
            assert_eq!(write(&pieces[index * 77 % n], &lines[index % 3], index as u64 + 1), 0);
            most = most.max(counted() - before);
        }
        let each = (counted() - begun) as f64 / n as f64;
        assert!(most <= 64 && each <= 12.0, "{n} pieces: {each} segments each, {most} at most");
        // A second pass meets one piece each, and the entries of the first go.
        begun = counted();
        lines.iter().for_each(|line| line.reached.store(u64::MAX, Ordering::SeqCst));
        let fresh = Line::new();
        (0..n).for_each(|index| assert_eq!(write(&pieces[index], &fresh, index as u64 + 1), 0));
        let each = (counted() - begun) as f64 / n as f64;
        assert!(each <= 16.0, "{n} pieces, second pass: {each} segments each");
    }
}

#[test]
fn a_use_of_all_waits_once_for_each_timeline_and_leaves_one_segment() {
    let (whole, lines) = (buffer(4_000 * PIECE), [Line::new(), Line::new(), Line::new()]);
    for (index, piece) in pieces(&whole, 4_000).iter().enumerate() {
        write(piece, &lines[index % 3], index as u64 + 1);
    }
    let all = Line::new();
    assert_eq!(write(&whole, &all, 1), 3);
    let before = counted();
    assert_eq!(write(&whole, &all, 2), 1);
    assert!(counted() - before <= 16, "{} segments", counted() - before);
}

#[test]
fn timelines_of_one_point_each_are_collected_in_about_as_many_steps() {
    let whole = buffer(3_000 * PIECE);
    let lines: Vec<_> = (0..3_000).map(|_| Line::new()).collect();
    for (piece, line) in pieces(&whole, 3_000).iter().zip(&lines) {
        write(piece, line, 1);
    }
    let before = counted();
    assert_eq!(write(&whole, &Line::new(), 1), 3_000);
    assert!(counted() - before <= 4 * 3_000, "{} segments", counted() - before);
}

#[test]
fn loans_and_views_open_by_the_thousand_cost_a_claim_nothing() {
    let whole = buffer(6_001 * PIECE);
    let pieces = pieces(&whole, 6_001);
    let loans: Vec<_> = pieces[..3_000].iter().map(|piece| piece.lend(Access::Write).unwrap()).collect();
    let views: Vec<_> = pieces[3_000..6_000].iter().map(|piece| piece.write().unwrap()).collect();
    let before = counted();
    write(&pieces[6_000], &Line::new(), 1);
    assert!(counted() - before <= 16, "{} steps", counted() - before);
    assert!(pieces[1_500].try_read().is_err() && pieces[4_500].try_read().is_err());
    drop(views);
    drop(loans);
    assert!(whole.slice(..6_000 * PIECE).unwrap().try_write().is_ok());
}

#[test]
fn a_batch_of_adjacent_pieces_is_claimed_as_one() {
    let (src, dst) = (buffer(2_000 * PIECE), buffer(2_000 * PIECE));
    let (from, to) = (pieces(&src, 2_000), pieces(&dst, 2_000));
    let reads = from.iter().map(|piece| (piece, Access::Read));
    let mut uses: Vec<_> = reads.chain(to.iter().map(|piece| (piece, Access::Write))).collect();
    let before = counted();
    let claims = Claims::of(&mut uses).unwrap();
    // SAFETY: the line's work touches no memory.
    unsafe { claims.commit(&Fence::new(Line::new(), 1)) };
    assert!(counted() - before <= 32, "{} segments", counted() - before);
}
