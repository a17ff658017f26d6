//! Submissions on any queue follow all earlier conflicting work that is not complete.

use std::{collections::HashMap, ops::Range, sync::atomic::Ordering};

use transload_core::{
    Access, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, TimelineId, Timing, TryLockResult, Turns,
    try_submit,
};

use crate::mock::{MockQueue, host_buffer, key};

const BYTES: usize = 12;
const QUEUES: usize = 3;
const BUFFERS: usize = 3;

/// A small generator; a seed that failed fails again.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    fn range(&mut self) -> Range<usize> {
        // Often the whole: that is what most uses are of.
        if self.below(3) == 0 {
            return 0..BYTES;
        }
        let from = self.below(BYTES);
        from..from + 1 + self.below(BYTES - from)
    }
}

/// Something submitted: what it uses, and which of those before it it comes after.
struct Done {
    uses: Vec<(usize, Range<usize>, Access)>,
    queue: usize,
    point: u64,
    after: Vec<bool>,
}

struct World {
    queues: Vec<MockQueue>,
    buffers: Vec<RawBuffer>,
    over: [u64; QUEUES],
    done: Vec<Done>,
    of_point: HashMap<(TimelineId, u64), usize>,
}

impl World {
    fn new() -> Self {
        Self {
            queues: (0..QUEUES).map(|_| MockQueue::new()).collect(),
            buffers: (0..BUFFERS).map(|_| host_buffer(MemoryKind::Pinned, BYTES)).collect(),
            over: [0; QUEUES],
            done: Vec::new(),
            of_point: HashMap::new(),
        }
    }

    /// Notes what was submitted behind `before`, and checks that it comes after all that it must.
    fn note(
        &mut self,
        queue: usize,
        fence: &Fence,
        uses: Vec<(usize, Range<usize>, Access)>,
        before: &[(TimelineId, u64)],
    ) {
        let mut after = vec![false; self.done.len()];
        // A point of a timeline is over only when those before it are.
        let mut behind = |world: &Self, queue: usize, point: u64| {
            for (index, earlier) in world.done.iter().enumerate() {
                if earlier.queue == queue && earlier.point <= point {
                    after[index] = true;
                    earlier.after.iter().enumerate().for_each(|(at, is)| after[at] |= is);
                }
            }
        };
        behind(self, queue, fence.point() - 1);
        for (timeline, point) in before {
            let of = self.done[self.of_point[&(*timeline, *point)]].queue;
            behind(self, of, *point);
        }
        for (index, earlier) in self.done.iter().enumerate() {
            let conflict = uses.iter().any(|(buffer, range, access)| {
                earlier.uses.iter().any(|(theirs, other, their_access)| {
                    let writes = *access == Access::Write || *their_access == Access::Write;
                    buffer == theirs && writes && range.start.max(other.start) < range.end.min(other.end)
                })
            });
            let open = earlier.point > self.over[earlier.queue];
            assert!(!conflict || !open || after[index], "{uses:?} does not come after {:?}", earlier.uses);
        }
        self.of_point.insert(key(fence), self.done.len());
        self.done.push(Done { uses, queue, point: fence.point(), after });
    }

    fn step(&mut self, noise: &mut Noise) {
        let queue = noise.below(QUEUES);
        let (a, b) = (noise.below(BUFFERS), noise.below(BUFFERS));
        let (from, to) = (noise.range(), noise.range());
        let (src, dst) =
            (self.buffers[a].slice(from.clone()).unwrap(), self.buffers[b].slice(to.clone()).unwrap());
        let bytes = src.len().min(dst.len());
        let (src, dst) = (src.slice(..bytes).unwrap(), dst.slice(..bytes).unwrap());
        let (from, to) = (from.start..from.start + bytes, to.start..to.start + bytes);
        let copied = vec![(a, from.clone(), Access::Read), (b, to.clone(), Access::Write)];
        match noise.below(12) {
            0..6 if !src.overlaps(&dst) => {
                let fence = self.queues[queue].copy(&src, &dst).unwrap();
                let before = self.queues[queue].last_after();
                self.note(queue, &fence, copied, &before);
            }
            6 if !src.overlaps(&dst) => {
                let copy = Operation::Copy { src: &src, dst: &dst };
                let fence = try_submit(&self.queues[queue], &copy, Timing::Off, &Turns::default()).unwrap();
                let before = self.queues[queue].last_after();
                self.note(queue, &fence, copied, &before);
            }
            7 => {
                let fence = self.queues[queue].write(&dst).unwrap();
                let before = self.queues[queue].last_after();
                self.note(queue, &fence, vec![(b, to, Access::Write)], &before);
            }
            8 => {
                let loan =
                    src.lend(if bytes.is_multiple_of(2) { Access::Read } else { Access::Write }).unwrap();
                drop(loan);
            }
            9 => {
                // Under a hold nothing in conflict is in flight.
                let access = if bytes.is_multiple_of(2) { Access::Read } else { Access::Write };
                let TryLockResult::Locked(hold) = src.try_lock_range(access).unwrap() else { return };
                let elsewhere = host_buffer(MemoryKind::Pinned, 1);
                let fence = self.queues[queue].write(&elsewhere).unwrap();
                // SAFETY: the fence stands for work that the test takes note of.
                unsafe { hold.commit(&fence) };
                self.note(queue, &fence, vec![(a, from, access)], &[]);
            }
            10 => {
                self.queues[queue].refuse.store(true, Ordering::SeqCst);
                let refused = self.queues[queue].copy(&src, &dst).unwrap_err().kind();
                assert!(matches!(refused, ErrorKind::Device | ErrorKind::Overlap));
                self.queues[queue].refuse.store(false, Ordering::SeqCst);
            }
            11 => {
                let most = self.queues[queue].count();
                let point = self.over[queue] + noise.below((most - self.over[queue]) as usize + 1) as u64;
                // A queue's work waits for that of others, as the fences say.
                let reached = self.done.iter().filter(|done| done.queue == queue && done.point <= point);
                let mut ends = [0; QUEUES];
                ends[queue] = point;
                for done in reached {
                    for (index, _) in done.after.iter().enumerate().filter(|(_, is)| **is) {
                        let earlier = &self.done[index];
                        ends[earlier.queue] = ends[earlier.queue].max(earlier.point);
                    }
                }
                for (index, end) in ends.into_iter().enumerate() {
                    self.queues[index].complete(end);
                    self.over[index] = self.over[index].max(end);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn submission_follows_all_conflicting_incomplete_work() {
    for seed in 1..=200 {
        let mut noise = Noise(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15));
        let mut world = World::new();
        // Shown where it fails.
        println!("seed {seed}");
        for _ in 0..120 {
            world.step(&mut noise);
        }
    }
}
