//! Which bytes are damaged, and who is told, against a model that knows each byte's last writer.

use std::ops::Range;

use proptest::prelude::*;
use transload_core::{
    ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Timing, Turns, Unsubmitted, try_submit,
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
    Copy {
        queue: usize,
        from: Range<usize>,
        to: usize,
    },
    /// Ends the oldest operations; the bits say which of them fail, where they can.
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
    /// Whether what it wrote is damaged, once it has ended.
    bad: Option<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Byte {
    Good,
    By(usize),
}

struct World {
    queues: Vec<MockQueue>,
    whole: RawBuffer,
    bytes: Vec<Byte>,
    done: Vec<Done>,
    ended: usize,
}

impl World {
    fn part(&self, range: Range<usize>) -> RawBuffer {
        self.whole.slice(range).unwrap()
    }

    fn writers(&self, range: &Range<usize>) -> Vec<usize> {
        let by = |byte: &Byte| if let Byte::By(index) = byte { Some(*index) } else { None };
        let mut writers: Vec<_> = self.bytes[range.clone()].iter().filter_map(by).collect();
        writers.sort_unstable();
        writers.dedup();
        writers
    }

    fn is_bad(&self, range: &Range<usize>) -> bool {
        self.writers(range).iter().any(|index| self.done[*index].bad == Some(true))
    }

    fn submit(&mut self, queue: usize, from: Range<usize>, to: Range<usize>) {
        let (src, dst) = (self.part(from.clone()), self.part(to.clone()));
        let fill = Operation::Fill { dst: &dst, pattern: transload_core::Pattern::U8(0) };
        let copy = Operation::Copy { src: &src, dst: &dst };
        let operation = if from.is_empty() { fill } else { copy };
        match try_submit(&self.queues[queue], &operation, Timing::Off, &Turns::default()) {
            Ok(fence) => {
                assert!(!self.is_bad(&from), "damaged bytes {from:?} were read");
                let open = |index: &usize| self.done[*index].bad.is_none();
                let sources = self.writers(&from).into_iter().filter(open).collect();
                self.bytes[to].fill(Byte::By(self.done.len()));
                self.done.push(Done { queue, fence, reads: from, sources, bad: None });
            }
            Err(Unsubmitted::Refused(error)) => {
                assert_eq!(error.kind(), ErrorKind::SourceFailed);
                assert!(self.is_bad(&from), "{from:?} are as they should be: {error}");
            }
            Err(blocked) => panic!("{blocked:?}"),
        }
    }

    fn end(&mut self, fails: bool) {
        let Some(done) = self.done.get(self.ended) else { return };
        let fails = fails && done.queue < FAILING;
        let (queue, point) = (&self.queues[done.queue], done.fence.point());
        if fails {
            queue.fail(point, "by the test")
        } else {
            queue.complete(point)
        }
        let inherits = done.sources.iter().any(|index| self.done[*index].bad == Some(true));
        let expected = match (fails, inherits) {
            (true, _) => Some(ErrorKind::Device),
            (false, true) => Some(ErrorKind::SourceFailed),
            (false, false) => None,
        };
        let outcome = done.fence.wait().err().map(|error| error.kind());
        assert_eq!(outcome, expected, "operation {} that read {:?}", self.ended, done.reads);
        self.done[self.ended].bad = Some(fails || inherits);
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
            bytes: vec![Byte::Good; BYTES],
            done: Vec::new(),
            ended: 0,
        };
        for step in steps {
            match step {
                Step::Write { queue, range } => world.submit(queue, 0..0, range),
                Step::Copy { queue, from, to } => {
                    let end = (to + from.len()).min(BYTES);
                    let from = from.start..from.start + (end - to);
                    if from.end <= to || end <= from.start {
                        world.submit(queue, from, to..end);
                    }
                }
                Step::End { count, fails } => {
                    (0..count).for_each(|index| world.end(fails >> index & 1 == 1));
                }
                Step::View { range, writes } => world.view(&range, writes),
                Step::Assume { range } => {
                    world.part(range.clone()).assume_written(..).unwrap();
                    for index in range {
                        if let Byte::By(writer) = world.bytes[index] && world.done[writer].bad.is_some() {
                            world.bytes[index] = Byte::Good;
                        }
                    }
                }
            }
        }
        (0..world.done.len()).for_each(|index| world.end(index % 3 == 0));
        (0..BYTES).for_each(|index| world.view(&(index..index + 1), false));
    }
}
