//! Graphs on a driver that fails, reorders unordered work, or checks for races.

use transload_core::{ErrorKind, MemoryKind, Operation, Pattern, RawBuffer, StreamPriority};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaGraph, CudaStream};

use crate::{ILLEGAL_ADDRESS, builder, with_each_call_failing};

const NORMAL: StreamPriority = StreamPriority::Normal;

/// Operations whose result depends on the order of conflicting ones: three buffers are filled, rotated and gathered.
fn tangle<'a>(device: &'a [RawBuffer], parts: &'a [RawBuffer], mapped: &'a RawBuffer) -> Vec<Operation<'a>> {
    let mut operations: Vec<_> = device
        .iter()
        .zip(1_u8..)
        .map(|(dst, value)| Operation::Fill { dst, pattern: Pattern::U8(value) })
        .collect();
    operations.push(Operation::Copy { src: &device[0], dst: &device[1] });
    operations.push(Operation::CopyInPlace { src: mapped, dst: &device[0] });
    operations.push(Operation::Copy { src: &device[2], dst: &parts[0] });
    operations.extend(device.iter().zip(&parts[1..]).map(|(src, dst)| Operation::Copy { src, dst }));
    operations.push(Operation::Fill { dst: &device[2], pattern: Pattern::U8(9) });
    operations
}

/// The expected parts: the third buffer, and the three after the rotation.
const EXPECTED: [u8; 4] = [3, 7, 1, 3];

#[test]
fn conflicting_graph_operations_have_no_race() {
    const BYTES: usize = 300_000;
    for seed in 0..100 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let streams: Vec<_> = (0..2).map(|_| CudaStream::new(&device).unwrap()).collect();
        let there: Vec<_> = (0..3).map(|_| memory.allocate(MemoryKind::Device, BYTES).unwrap()).collect();
        let mapped = memory.allocate(MemoryKind::Mapped, BYTES).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, 4 * BYTES).unwrap();
        let parts: Vec<_> =
            (0..4).map(|part| host.slice(part * BYTES..(part + 1) * BYTES).unwrap()).collect();
        mapped.write().unwrap().fill(7);
        let graph = CudaGraph::record(&device, NORMAL, &tangle(&there, &parts, &mapped)).unwrap();
        for turn in 0..4 {
            drop(streams[0].memset_async(&there[turn % 3], Pattern::U8(0xEE)));
            graph.launch(&streams[turn % 2]).unwrap();
            drop(streams[1].memset_async(&there[1], Pattern::U8(0xDD)));
            let seen = host.read().unwrap();
            for (part, expected) in seen.chunks(BYTES).zip(EXPECTED) {
                assert!(part.iter().all(|byte| *byte == expected), "seed {seed}, turn {turn}");
            }
        }
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn each_failing_call_of_a_graph_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> transload_core::Result<()> {
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let there: Vec<_> = (0..3)
            .map(|_| memory.allocate(MemoryKind::Device, 500))
            .collect::<transload_core::Result<_>>()?;
        let mapped = memory.allocate(MemoryKind::Mapped, 500)?;
        let host = memory.allocate(MemoryKind::Pinned, 2000)?;
        let parts: Vec<_> = (0..4)
            .map(|part| host.slice(part * 500..(part + 1) * 500))
            .collect::<transload_core::Result<_>>()?;
        mapped.write()?.fill(7);
        let operations = tangle(&there, &parts, &mapped);
        let mut graph = CudaGraph::record(device, NORMAL, &operations)?;
        graph.launch(&one)?;
        graph.launch(&two)?;
        graph.update(&operations)?;
        let fence = graph.launch(&one)?;
        drop(graph);
        fence.wait()?;
        for (part, expected) in host.read()?.chunks(500).zip(EXPECTED) {
            assert!(part.iter().all(|byte| *byte == expected));
        }
        Ok(())
    }
    with_each_call_failing(scenario);
}

#[test]
fn graph_on_a_lost_device_fails_and_frees_its_memory() {
    let sim = builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 100).unwrap();
    let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(1) };
    let mut graph = CudaGraph::record(&device, NORMAL, &[fill]).unwrap();
    let in_flight = graph.launch(&stream).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    assert_eq!(in_flight.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(graph.launch(&stream).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(graph.update(&[fill]).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(CudaGraph::record(&device, NORMAL, &[fill]).unwrap_err().kind(), ErrorKind::DeviceLost);
    drop((graph, there));
    assert_eq!(
        memory.resource_counts().pending_free,
        0,
        "nothing runs on a lost device, so nothing is waited for"
    );
}

#[test]
fn a_launch_is_one_call_however_many_operations_there_are() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there: Vec<_> = (0..50).map(|_| memory.allocate(MemoryKind::Device, 100).unwrap()).collect();
    let fills: Vec<_> = there.iter().map(|dst| Operation::Fill { dst, pattern: Pattern::U8(1) }).collect();
    let graph = CudaGraph::record(&device, NORMAL, &fills).unwrap();
    assert_eq!(graph.nodes(), 50);
    let trace = transload_cuda_sys::trace::start();
    let fence = graph.launch(&stream).unwrap();
    let calls = trace.calls_of_this_thread();
    let of = |name: &str| calls.iter().filter(|call| call.name == name).count();
    assert_eq!((of("cuGraphLaunch"), of("cuMemsetD8Async"), of("cuStreamWaitEvent")), (1, 0, 0));
    fence.wait().unwrap();
    assert_eq!(sim.executed().iter().filter(|(_, name)| *name == "cuMemsetD8Async").count(), 50);
}

#[test]
fn independent_operations_use_lanes_and_a_chain_uses_one() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let there: Vec<_> = (0..8).map(|_| memory.allocate(MemoryKind::Device, 100).unwrap()).collect();
    let calls = |operations: &[Operation<'_>]| {
        let trace = transload_cuda_sys::trace::start();
        drop(CudaGraph::record(&device, NORMAL, operations).unwrap());
        let calls = trace.calls_of_this_thread();
        let of = |name: &str| calls.iter().filter(|call| call.name == name).count();
        (of("cuStreamCreateWithPriority"), of("cuStreamWaitEvent"))
    };
    let fills: Vec<_> = there.iter().map(|dst| Operation::Fill { dst, pattern: Pattern::U8(1) }).collect();
    assert_eq!(calls(&fills), (4, 6), "four lanes, which part and join once");
    let mut chain = vec![fills[0]];
    chain.extend(there.windows(2).map(|pair| Operation::Copy { src: &pair[0], dst: &pair[1] }));
    assert_eq!(calls(&chain), (1, 0));
}

#[test]
fn random_conflicting_operations_match_sequential_order() {
    const BYTES: usize = 100;
    for seed in 0..100_u64 {
        let mut state = seed;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, 5 * BYTES).unwrap();
        let mut expected: Vec<u8> = (0..5 * BYTES).map(|index| index as u8).collect();
        host.write().unwrap().copy_from_slice(&expected);
        let there: Vec<_> = (0..5).map(|_| memory.allocate(MemoryKind::Device, BYTES).unwrap()).collect();
        let parts: Vec<_> =
            (0..5).map(|part| host.slice(part * BYTES..(part + 1) * BYTES).unwrap()).collect();
        let copies: Vec<_> = (0..12)
            .map(|_| {
                let (one, two, bytes) = (draw(5), draw(4), 1 + draw(50));
                let (one, two) = ((one, draw(101 - bytes)), ((one + 1 + two) % 5, draw(101 - bytes)));
                let [src, dst] =
                    [one, two].map(|(buffer, from)| there[buffer].slice(from..from + bytes).unwrap());
                let from = one.0 * BYTES + one.1;
                expected.copy_within(from..from + bytes, two.0 * BYTES + two.1);
                (src, dst)
            })
            .collect();
        let pairs = parts.iter().zip(&there).chain(copies.iter().map(|(src, dst)| (src, dst)));
        let pairs = pairs.chain(there.iter().zip(&parts));
        let operations: Vec<_> = pairs.map(|(src, dst)| Operation::Copy { src, dst }).collect();
        let graph = CudaGraph::record(&device, NORMAL, &operations).unwrap();
        graph.launch(&CudaStream::new(&device).unwrap()).unwrap();
        assert_eq!(*host.read().unwrap(), expected[..], "seed {seed}");
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}
