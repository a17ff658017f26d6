//! Which bytes are damaged, and who is told, against a model that knows each byte's last writer.

use std::ops::Range;

use proptest::prelude::*;
use transload_core::{
    DeviceId, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Timing, TrySubmitError, Turns, submit,
    try_submit,
};

use crate::mock::{MockQueue, host_buffer};

const BYTES: usize = 96;
/// The first two can fail by themselves.
const QUEUES: usize = 4;
const FAILING: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Write {
        queue: usize,
        range: Range<usize>,
    },
    /// Every second byte of a range, as a list.
    Scatter {
        queue: usize,
        range: Range<usize>,
    },
    Prefetch {
        queue: usize,
        range: Range<usize>,
    },
    Copy {
        queue: usize,
        from: Range<usize>,
        to: usize,
    },
    /// Ends the oldest operations; two bits for each say whether it fails, where it can, and whether before its first byte.
    End {
        count: usize,
        fails: u8,
    },
    View {
        range: Range<usize>,
        writes: bool,
    },
    Assume {
        range: Range<usize>,
    },
}

fn range() -> impl Strategy<Value = Range<usize>> {
    let short = (0..BYTES, 1..8_usize).prop_map(|(from, len)| from..(from + len).min(BYTES));
    let any = (0..BYTES, 1..=BYTES).prop_map(|(a, b)| a.min(b - 1)..a.max(b));
    prop_oneof![4 => short, 1 => any]
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 0..QUEUES;
    prop_oneof![
        3 => (queue.clone(), range()).prop_map(|(queue, range)| Step::Write { queue, range }),
        1 => (queue.clone(), range()).prop_map(|(queue, range)| Step::Scatter { queue, range }),
        1 => (queue.clone(), range()).prop_map(|(queue, range)| Step::Prefetch { queue, range }),
        6 => (queue, range(), 0..BYTES).prop_map(|(queue, from, to)| Step::Copy { queue, from, to }),
        3 => (1..4_usize, any::<u8>()).prop_map(|(count, fails)| Step::End { count, fails }),
        4 => (range(), any::<bool>()).prop_map(|(range, writes)| Step::View { range, writes }),
        1 => range().prop_map(|range| Step::Assume { range }),
    ]
}

struct Done {
    queue: usize,
    fence: Fence,
    reads: Range<usize>,
    /// The operations whose outcome decides about its own, besides itself.
    sources: Vec<usize>,
    /// Whether it leaves the bytes as they are.
    keeps: bool,
    ended: Option<End>,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Well,
    /// What it wrote is damaged.
    Failed,
    Untouched,
}

const END: [End; 4] = [End::Well, End::Failed, End::Untouched, End::Well];

/// Who may have damaged a byte: the last one that does not keep it decides and those behind it, and those before it if it fails
/// without having touched the byte.
type Writers = Vec<usize>;

struct World {
    queues: Vec<MockQueue>,
    whole: RawBuffer,
    bytes: Vec<Writers>,
    done: Vec<Done>,
    ended: usize,
}

impl World {
    fn part(&self, range: Range<usize>) -> RawBuffer {
        self.whole.slice(range).unwrap()
    }

    fn writers(&self, range: &Range<usize>) -> Vec<usize> {
        let keeps = |writer: &usize| self.done[*writer].keeps;
        let decide = |writers: &Writers| {
            let first = writers.iter().rposition(|writer| !keeps(writer)).unwrap_or(0);
            writers[first..].to_vec()
        };
        let mut writers: Vec<_> = self.bytes[range.clone()].iter().flat_map(decide).collect();
        writers.sort_unstable();
        writers.dedup();
        writers
    }

    fn is_bad(&self, range: &Range<usize>) -> bool {
        self.writers(range).iter().any(|index| self.done[*index].ended == Some(End::Failed))
    }

    fn prefetch(&mut self, queue: usize, range: Range<usize>) {
        let (buffer, sources) = (self.part(range.clone()), self.open_writers(&range));
        let prefetch = Operation::Prefetch { buffer: &buffer, to: DeviceId::Cpu };
        let fence = submit(&self.queues[queue], &prefetch, Timing::Off).unwrap();
        self.bytes[range].iter_mut().for_each(|writers| writers.push(self.done.len()));
        self.done.push(Done { queue, fence, reads: 0..0, sources, keeps: true, ended: None });
    }

    fn open_writers(&self, range: &Range<usize>) -> Vec<usize> {
        self.writers(range).into_iter().filter(|index| self.done[*index].ended.is_none()).collect()
    }

    fn submit(&mut self, queue: usize, from: Range<usize>, to: Range<usize>) {
        let (src, dst) = (self.part(from.clone()), self.part(to.clone()));
        let fill = Operation::Fill { dst: &dst, pattern: transload_core::Pattern::U8(0) };
        let copy = Operation::Copy { src: &src, dst: &dst };
        let operation = if from.is_empty() { fill } else { copy };
        match try_submit(&self.queues[queue], &operation, Timing::Off, &Turns::default()) {
            Ok(fence) => {
                assert!(!self.is_bad(&from), "damaged bytes {from:?} were read");
                let sources = self.open_writers(&from);
                self.bytes[to].iter_mut().for_each(|writers| writers.push(self.done.len()));
                self.done.push(Done { queue, fence, reads: from, sources, keeps: false, ended: None });
            }
            Err(TrySubmitError::Failed(error)) => {
                assert_eq!(error.kind(), ErrorKind::SourceFailed);
                assert!(self.is_bad(&from), "{from:?} are as they should be: {error}");
            }
            Err(blocked) => panic!("{blocked:?}"),
        }
    }

    fn scatter(&mut self, queue: usize, range: Range<usize>) {
        let to: Vec<usize> = range.step_by(2).collect();
        let src = host_buffer(MemoryKind::Pinned, 1);
        let pairs: Vec<_> = to.iter().map(|at| (src.clone(), self.part(*at..at + 1))).collect();
        let fence =
            submit(&self.queues[queue], &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
        to.iter().for_each(|at| self.bytes[*at].push(self.done.len()));
        self.done.push(Done { queue, fence, reads: 0..0, sources: Vec::new(), keeps: false, ended: None });
    }

    fn end(&mut self, how: End) {
        let Some(done) = self.done.get(self.ended) else { return };
        let how = if done.queue < FAILING { how } else { End::Well };
        let (queue, point) = (&self.queues[done.queue], done.fence.point());
        match how {
            End::Well => queue.complete(point),
            End::Failed => queue.fail(point, "by the test"),
            End::Untouched => queue.fail_untouched(point, "by the test"),
        }
        let inherits = done.sources.iter().any(|index| self.done[*index].ended != Some(End::Well));
        let (expected, how) = match (how, inherits) {
            (End::Well, false) => (None, how),
            (End::Well, true) => (Some(ErrorKind::SourceFailed), End::Failed),
            _ => (Some(ErrorKind::Device), how),
        };
        let outcome = done.fence.wait().err().map(|error| error.kind());
        assert_eq!(outcome, expected, "operation {} that read {:?}", self.ended, done.reads);
        for writers in &mut self.bytes {
            if let Some(place) = writers.iter().position(|index| *index == self.ended) {
                match how {
                    End::Untouched => drop(writers.remove(place)),
                    End::Well if self.done[self.ended].keeps => drop(writers.remove(place)),
                    End::Well | End::Failed => drop(writers.drain(..place)),
                }
            }
        }
        self.done[self.ended].ended = Some(how);
        self.ended += 1;
    }

    fn is_in_use(&self, range: &Range<usize>, writes: bool) -> bool {
        let overlaps = |reads: &Range<usize>| reads.start.max(range.start) < reads.end.min(range.end);
        let read = || self.done[self.ended..].iter().any(|done| overlaps(&done.reads));
        self.writers(range).iter().any(|index| *index >= self.ended) || (writes && read())
    }

    fn view(&self, range: &Range<usize>, writes: bool) {
        let part = self.part(range.clone());
        let view = if writes { part.try_write().map(drop) } else { part.try_read().map(drop) };
        let (bad, busy) = (self.is_bad(range), self.is_in_use(range, writes));
        match view {
            Ok(()) => assert!(!bad && !busy, "a view of {range:?}: damaged {bad}, in use {busy}"),
            Err(error) if error.kind() == ErrorKind::SourceFailed => assert!(bad, "{range:?}: {error}"),
            Err(error) => assert!(error.kind() == ErrorKind::Busy && busy, "{range:?}: {error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_told_exactly_where_it_is(steps in proptest::collection::vec(step(), 1..120)) {
        let queue = |index| if index < FAILING { MockQueue::failing() } else { MockQueue::new() };
        let mut world = World {
            queues: (0..QUEUES).map(queue).collect(),
            whole: host_buffer(MemoryKind::Pinned, BYTES),
            bytes: vec![Writers::new(); BYTES],
            done: Vec::new(),
            ended: 0,
        };
        for step in steps {
            match step {
                Step::Write { queue, range } => world.submit(queue, 0..0, range),
                Step::Scatter { queue, range } => world.scatter(queue, range),
                Step::Prefetch { queue, range } => world.prefetch(queue, range),
                Step::Copy { queue, from, to } => {
                    let end = (to + from.len()).min(BYTES);
                    let from = from.start..from.start + (end - to);
                    if from.end <= to || end <= from.start {
                        world.submit(queue, from, to..end);
                    }
                }
                Step::End { count, fails } => {
                    (0..count).for_each(|index| world.end(END[usize::from(fails >> (2 * index) & 3)]));
                }
                Step::View { range, writes } => world.view(&range, writes),
                Step::Assume { range } => {
                    world.part(range.clone()).assume_written(..).unwrap();
                    for index in range {
                        world.bytes[index].retain(|writer| world.done[*writer].ended.is_none());
                    }
                }
            }
        }
        (0..world.done.len()).for_each(|index| world.end(END[index % 3]));
        (0..BYTES).for_each(|index| world.view(&(index..index + 1), false));
    }
}
