//! Random plans over four streams: contents follow the accepted dependencies, and a dependency is refused exactly if a naive
//! search finds a cycle.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use transload_core::RawBuffer;
use transload_streams::{CudaStream, MultiStreamCoordinator};

use super::{raw, streams};
use crate::support::gate::Gate;
use crate::support::setup::{Setup, noise};

const STREAMS: usize = 4;
const BYTES: usize = 3000;
const STEPS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Copies new bytes from the host into a new slot.
    Bring(usize),
    /// Copies a slot that the stream is ordered after into a new slot.
    Copy(usize, usize),
    /// The first waits for the second.
    Depend(usize, usize),
    /// The first waits for a fence of the second that was recorded earlier.
    DependOn(usize, usize),
    /// All wait for all.
    Barrier,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    prop_oneof![
        3 => stream.clone().prop_map(Step::Bring),
        4 => (stream.clone(), any::<prop::sample::Index>()).prop_map(|(s, n)| Step::Copy(s, n.index(1 << 20))),
        5 => (stream.clone(), stream.clone()).prop_map(|(w, o)| Step::Depend(w, o)),
        2 => (stream.clone(), stream).prop_map(|(w, o)| Step::DependOn(w, o)),
        1 => Just(Step::Barrier),
    ]
}

/// Reference model of the plan.
#[derive(Default)]
struct Model {
    /// (waiter, dependency) pairs; none expires while the gate is closed.
    edges: Vec<(usize, usize)>,
    /// The seed of each slot's content.
    slots: Vec<u64>,
    /// Slots that each stream's later work is ordered after.
    knows: [Vec<usize>; STREAMS],
    /// The newest fence of each stream, and the slots it is ordered after.
    fences: [Option<(transload_core::Fence, Vec<usize>)>; STREAMS],
}

impl Model {
    fn leads(&self, from: usize, to: usize) -> bool {
        // At most three further hops among four streams.
        let mut reached = vec![from];
        for _ in 0..STREAMS {
            for (waiter, on) in &self.edges {
                if reached.contains(waiter) && !reached.contains(on) {
                    reached.push(*on);
                }
            }
        }
        reached.contains(&to)
    }

    fn learn(&mut self, waiter: usize, known: &[usize]) {
        self.knows[waiter].extend_from_slice(known);
        self.knows[waiter].sort_unstable();
        self.knows[waiter].dedup();
    }
}

fn piece(buffer: &RawBuffer, number: usize) -> RawBuffer {
    buffer.slice(number * BYTES..(number + 1) * BYTES).unwrap()
}

struct Run<'a> {
    /// A slot and source bytes per step. Allocated before the gate closes, since allocating may wait for the device.
    there: &'a RawBuffer,
    host: &'a RawBuffer,
    streams: [CudaStream; STREAMS],
    coordinator: MultiStreamCoordinator,
    slots: Vec<RawBuffer>,
    model: Model,
}

impl Run<'_> {
    fn new_slot(&mut self, stream: usize, content: u64) {
        self.slots.push(piece(self.there, self.slots.len()));
        self.model.slots.push(content);
        self.model.knows[stream].push(self.slots.len() - 1);
    }

    fn take(&mut self, number: usize, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Bring(stream) => {
                self.new_slot(stream, number as u64);
                let source = piece(self.host, number);
                raw::copy(&self.streams[stream], &source, self.slots.last().unwrap());
            }
            Step::Copy(stream, choice) => {
                let known = &self.model.knows[stream];
                if known.is_empty() {
                    return Ok(());
                }
                let from = known[choice % known.len()];
                self.new_slot(stream, self.model.slots[from]);
                raw::copy(&self.streams[stream], &self.slots[from], self.slots.last().unwrap());
            }
            Step::Depend(waiter, on) => {
                let refused = waiter == on || self.model.leads(on, waiter);
                let answer = self.coordinator.add_dependency(&self.streams[waiter], &self.streams[on]);
                if self.agree(refused, waiter, on, answer.map(|_| ()))? {
                    self.model.edges.push((waiter, on));
                    let known = self.model.knows[on].clone();
                    self.model.learn(waiter, &known);
                    let fence = self.streams[on].fence().unwrap();
                    self.model.fences[on] = Some((fence, known));
                }
            }
            Step::DependOn(waiter, on) => {
                let Some((fence, known)) = self.model.fences[on].clone() else { return Ok(()) };
                let refused = waiter == on || self.model.leads(on, waiter);
                let answer = self.coordinator.add_dependency_on(&self.streams[waiter], &fence);
                if self.agree(refused, waiter, on, answer.map(|_| ()))? {
                    self.model.edges.push((waiter, on));
                    self.model.learn(waiter, &known);
                }
            }
            Step::Barrier => {
                let _passed = self.coordinator.create_barrier().unwrap();
                let all: Vec<usize> = (0..self.slots.len()).collect();
                (0..STREAMS).for_each(|stream| self.model.learn(stream, &all));
            }
        }
        prop_assert!(!self.coordinator.has_cycles());
        Ok(())
    }

    /// Returns whether the dependency was accepted, after comparing with the model.
    fn agree(
        &self,
        refused: bool,
        waiter: usize,
        on: usize,
        answer: transload_core::Result<()>,
    ) -> Result<bool, TestCaseError> {
        let Err(error) = answer else {
            prop_assert!(!refused, "{waiter} after {on} closes a cycle of {:?}", self.model.edges);
            return Ok(true);
        };
        prop_assert!(refused, "{waiter} after {on} closes none of {:?}: {error}", self.model.edges);
        let cycle: Vec<usize> = super::cycle(&error)
            .unwrap()
            .iter()
            .map(|id| self.streams.iter().position(|stream| stream.id() == *id).unwrap())
            .collect();
        prop_assert_eq!(cycle[0], waiter);
        for (index, stream) in cycle.iter().enumerate() {
            let edge = (*stream, cycle[(index + 1) % cycle.len()]);
            prop_assert!(edge == (waiter, on) || self.model.edges.contains(&edge), "{cycle:?}");
        }
        Ok(false)
    }
}

#[test]
fn random_plans_are_executed_and_only_cycles_refused() {
    let setup = Setup::new();
    // Shared by all cases: the software driver keeps every stream ever created.
    let [one, two, three, four, gates] = streams(&setup);
    let own = [one, two, three, four];
    let content: Vec<u8> = (0..STEPS as u64).flat_map(|number| noise(BYTES, number)).collect();
    let (host, there, back) =
        (setup.pinned(&content), setup.device(content.len()), setup.pinned(&[0; BYTES]));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(60) });
    let outcome = runner.run(&proptest::collection::vec(step(), 1..STEPS), |steps| {
        let gate = Gate::on(&gates, &setup.device);
        gate.hold(&own);
        let coordinator = raw::over(&own);
        let (slots, model) = (Vec::new(), Model::default());
        let mut run = Run { there: &there, host: &host, streams: own.clone(), coordinator, slots, model };
        let outcome = steps.into_iter().enumerate().try_for_each(|(number, step)| run.take(number, step));
        gate.open();
        run.coordinator.create_barrier().unwrap().wait().unwrap();
        outcome?;
        prop_assert_eq!(run.coordinator.dependencies(), []);
        for (slot, content) in run.slots.iter().zip(&run.model.slots) {
            own[0].copy_to_host_async(slot, &back).wait().unwrap();
            prop_assert!(*back.read().unwrap() == noise(BYTES, *content)[..]);
        }
        own.iter().for_each(|stream| stream.synchronize().unwrap());
        setup.test.assert_no_races();
        Ok(())
    });
    if let Err(failed) = outcome {
        panic!("{failed}");
    }
    drop((own, gates, host, there, back));
    setup.finish();
}
