//! A thousand random workloads of host and device on one buffer, each compared with a plain vector at every read.

use std::{ops::Range, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};
use transload_core::{Access, Buffer, Operation, Pattern, RawBuffer, Timing, submit};
use transload_cuda_sim::harness;
use transload_memory::{Role, UnifiedBuffer};
use transload_streams::{CudaKernel, CudaStream};

use super::{Fixture, fixtures};
use crate::{
    launch::{saxpy, saxpy_of},
    support::gate::within,
};

const WORKLOADS: u32 = 1000;
const MOST_STEPS: usize = 24;
/// More than a page of any device.
const LONGEST: usize = 20_000;

/// The start and end of a range, as fractions of the length in units of 1/65,536.
type Part = (u16, u16);

#[derive(Clone, Debug)]
enum Step {
    HostWrites(Part, u8),
    HostAdds(Part, u8),
    HostLooks(Part),
    HostCopiesIn(u8),
    HostCopiesOut,
    Fills(u8),
    DeviceFills(Part, u8, usize),
    /// The same, through a handle kept from the start.
    KeptFills(Part, u8, usize),
    DeviceAdds(Part, u8, usize, Role),
    DeviceReads(Part, usize),
    Prefetches(Part, usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let part = || any::<(u16, u16)>();
    let (small, stream) = (|| 0_u8..8, || 0_usize..3);
    prop_oneof![
        2 => (part(), small()).prop_map(|(part, value)| Step::HostWrites(part, value)),
        2 => (part(), small()).prop_map(|(part, value)| Step::HostAdds(part, value)),
        2 => part().prop_map(Step::HostLooks),
        1 => small().prop_map(Step::HostCopiesIn),
        1 => Just(Step::HostCopiesOut),
        1 => small().prop_map(Step::Fills),
        2 => (part(), small(), stream()).prop_map(|(part, value, on)| Step::DeviceFills(part, value, on)),
        1 => (part(), small(), stream()).prop_map(|(part, value, on)| Step::KeptFills(part, value, on)),
        3 => (part(), small(), stream(), writing())
            .prop_map(|(part, value, on, role)| Step::DeviceAdds(part, value, on, role)),
        2 => (part(), stream()).prop_map(|(part, on)| Step::DeviceReads(part, on)),
        2 => (part(), stream(), any::<bool>()).prop_map(|(part, on, up)| Step::Prefetches(part, on, up)),
    ]
}

fn writing() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Resident), Just(Role::Output), Just(Role::InOut)]
}

/// State shared by all workloads of a fixture.
struct FixtureState<'a> {
    fixture: &'a Fixture,
    kernel: CudaKernel,
    streams: Vec<CudaStream>,
    ones: RawBuffer,
    back: RawBuffer,
}

struct Workload<'a> {
    state: &'a FixtureState<'a>,
    buffer: UnifiedBuffer<f32>,
    kept: RawBuffer,
    model: Vec<f32>,
}

impl Workload<'_> {
    fn range(&self, (from, to): Part) -> Range<usize> {
        let at = |part: u16| self.model.len() * usize::from(part) / usize::from(u16::MAX);
        at(from.min(to))..at(from.max(to))
    }

    fn take(&mut self, step: Step) -> TestCaseResult {
        let streams = &self.state.streams;
        match step {
            Step::HostWrites(part, value) => {
                let range = self.range(part);
                self.buffer.write_range(range.clone()).unwrap().fill(value.into());
                self.model[range].fill(value.into());
            }
            Step::HostAdds(part, value) => {
                let range = self.range(part);
                let mut slice = self.buffer.write_range(range.clone()).unwrap();
                prop_assert!(slice[..] == self.model[range.clone()]);
                slice.iter_mut().for_each(|number| *number += f32::from(value));
                self.model[range].iter_mut().for_each(|number| *number += f32::from(value));
            }
            Step::HostLooks(part) => {
                let range = self.range(part);
                prop_assert!(self.buffer.read_range(range.clone()).unwrap()[..] == self.model[range]);
            }
            Step::HostCopiesIn(value) => {
                self.model.iter_mut().enumerate().for_each(|(at, number)| {
                    *number = f32::from(value) + (at % 5) as f32;
                });
                self.buffer.copy_from_host(&self.model).unwrap();
            }
            Step::HostCopiesOut => {
                let mut back = vec![-1.0; self.model.len()];
                self.buffer.copy_to_host(&mut back).unwrap();
                prop_assert!(back == self.model);
            }
            Step::Fills(value) => {
                self.buffer.fill(value.into()).unwrap();
                self.model.fill(value.into());
            }
            Step::DeviceFills(part, value, on) => {
                let range = self.range(part);
                let there = self
                    .buffer
                    .acquire_range_for_device(&streams[on], range.clone(), Role::Output, Access::Write)
                    .unwrap();
                fill(&streams[on], there.raw(), value);
                self.model[range].fill(value.into());
            }
            Step::KeptFills(part, value, on) => {
                let range = self.range(part);
                fill(&streams[on], &self.kept.slice(range.start * 4..range.end * 4).unwrap(), value);
                self.model[range].fill(value.into());
            }
            Step::DeviceAdds(part, value, on, role) => {
                let range = self.range(part);
                if range.is_empty() {
                    return Ok(());
                }
                let there = self
                    .buffer
                    .acquire_range_for_device(&streams[on], range.clone(), role, Access::Write)
                    .unwrap();
                let ones = self.state.ones.slice(..range.len() * 4).unwrap();
                drop(saxpy(&self.state.kernel, &streams[on], value.into(), &ones, there.raw()).unwrap());
                self.model[range].iter_mut().for_each(|number| *number += f32::from(value));
            }
            Step::DeviceReads(part, on) => {
                let range = self.range(part);
                let there = self
                    .buffer
                    .acquire_range_for_device(&streams[on], range.clone(), Role::Input, Access::Read)
                    .unwrap();
                let back = self.state.back.slice(..range.len() * 4).unwrap();
                drop(streams[on].copy_to_host_async(there.raw(), &back));
                drop(there);
                let expected: Vec<u8> =
                    self.model[range].iter().flat_map(|number| number.to_le_bytes()).collect();
                prop_assert!(back.read().unwrap()[..] == expected[..]);
            }
            Step::Prefetches(part, on, up) => {
                let range = self.range(part);
                if !range.is_empty() {
                    let moved = match up {
                        true => self.buffer.prefetch_to_device_on(&streams[on], range, None),
                        false => self.buffer.prefetch_to_host_on(&streams[on], range),
                    };
                    prop_assert!(moved.refusal().is_none(), "{moved:?}");
                }
            }
        }
        Ok(())
    }
}

fn fill(stream: &CudaStream, dst: &RawBuffer, value: u8) {
    let pattern = Pattern::U32(f32::from(value).to_bits());
    drop(submit(stream, &Operation::Fill { dst, pattern }, Timing::Off).unwrap());
}

fn workloads(fixture: &Fixture, cases: u32, seed: u64) {
    println!(
        "{cases} workloads of {fixture}; TRANSLOAD_SIM_SEED={} begins with seed {seed}",
        transload_cuda_sim::seed()
    );
    let state = FixtureState {
        fixture,
        kernel: saxpy_of(&fixture.setup),
        streams: (0..3).map(|_| CudaStream::new(&fixture.setup.device).unwrap()).collect(),
        ones: fixture.setup.device(LONGEST * 4),
        back: fixture.setup.pinned(&vec![0; LONGEST * 4]),
    };
    fill(&state.streams[0], &state.ones, 1);
    let config = Config { failure_persistence: None, ..Config::with_cases(cases) };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let length = prop_oneof![1 => 1_usize..10, 8 => 10_usize..600, 1 => 600..=LONGEST];
    let steps = proptest::collection::vec(step(), 1..MOST_STEPS);
    let outcome = runner.run(&(length, steps), |(length, steps)| {
        let buffer = state.fixture.buffer::<f32>(length);
        let kept = buffer.raw().clone();
        let mut workload = Workload { state: &state, buffer, kept, model: vec![0.0; length] };
        steps.into_iter().try_for_each(|step| workload.take(step))?;
        workload.take(Step::HostLooks((0, u16::MAX)))?;
        workload.take(Step::HostCopiesOut)
    });
    if let Err(failure) = outcome {
        panic!("{fixture}, seed {seed}: {failure}");
    }
    state.streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

#[test]
fn random_workloads_match_a_plain_vector() {
    within(Duration::from_secs(300), || {
        let fixtures = fixtures();
        let each = WORKLOADS.saturating_mul(harness::rounds()).div_ceil(fixtures.len() as u32);
        for (seed, fixture) in (transload_cuda_sim::seed()..).zip(fixtures) {
            workloads(&fixture, each, seed);
            fixture.finish();
        }
    });
}
