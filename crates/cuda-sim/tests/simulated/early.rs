//! Where CUDA permits a call to block or to return early, the seed decides, and an undocumented wait never orders the
//! host.

use std::{thread, time::Duration};

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sim::{SimDeviceBuilder, harness};
use transload_cuda_sys::{AsStream, Stream, check, ffi};

use crate::{
    gate::{Aside, Gate},
    raw::{Bench, code, contents, fill},
};

const LAUNCH_TIMEOUT: u32 = 702;

fn bench(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Bench {
    Bench::unchecked(harness::device_with(properties).expect("these tests run on the software driver only"))
}

fn managed(bench: &Bench, bytes: usize) -> u64 {
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid. Its device is the test's own, so it need not be freed.
    check("managed", unsafe { ffi::cuMemAllocManaged(&mut address, bytes, 1) }).expect("managed");
    address
}

fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> u32 {
    let _bound = stream.context().enter().expect("enter");
    // SAFETY: tests keep both sides until the stream is done, or give memory of theirs that is read during the call.
    unsafe { ffi::cuMemcpyAsync(to, from, bytes, stream.as_raw()) }
}

/// Returns for how many of 32 seeds the copy made by `enqueue` was complete when it returned. For each seed, a host
/// access to the range that `enqueue` returns is a race right after it, and none after a synchronisation.
fn done_at_return(enqueue: impl Fn(&Bench, &Stream) -> (u64, usize)) -> usize {
    let done = |seed: &u64| {
        let bench = bench(|builder| builder.seed(*seed).record_accesses(true));
        let stream = bench.stream();
        let sim = bench.device.sim().expect("simulated");
        let (address, bytes) = enqueue(&bench, &stream);
        let done = sim.queued() == 0;
        host_access::note(address as usize, bytes, HostAccess::Write);
        assert_eq!(sim.races().len(), 1, "seed {seed}: the host did not wait: {:?}", sim.races());
        stream.synchronize().expect("healthy");
        host_access::note(address as usize, bytes, HostAccess::Write);
        assert_eq!(sim.races().len(), 1, "seed {seed}: behind a synchronisation");
        done
    };
    (0..32).filter(done).count()
}

#[test]
fn managed_copies_that_block_order_nothing() {
    let pinned_to_managed = done_at_return(|bench, stream| {
        let (to, from) = (managed(bench, 4096), Box::leak(Box::new(bench.pinned(4096))).address() as u64);
        assert_eq!(copy(stream, to, from, 4096), 0);
        (to, 4096)
    });
    let within_managed = done_at_return(|bench, stream| {
        let (to, from) = (managed(bench, 4096), managed(bench, 4096));
        assert_eq!(copy(stream, to, from, 4096), 0);
        (from, 4096)
    });
    for done in [pinned_to_managed, within_managed] {
        assert!((4..=28).contains(&done), "{done} of 32 seeds block");
    }
}

#[test]
fn copy_within_pinned_memory_is_synchronous() {
    for seed in 0..8 {
        let bench = bench(|builder| builder.seed(seed).record_accesses(true));
        let (stream, to, from) = (bench.stream(), bench.pinned(4096), bench.pinned(4096));
        assert_eq!(copy(&stream, to.address() as u64, from.address() as u64, 4096), 0);
        host_access::note(to.address(), 4096, HostAccess::Write);
        bench.device.assert_no_races();
    }
}

#[test]
fn pageable_upload_of_any_size_may_land_late() {
    let late = |bytes: usize, seeds: u64| {
        let is_late = |seed: &u64| {
            let bench = bench(|builder| builder.seed(*seed));
            let (stream, memory, mut source) = (bench.stream(), bench.memory(bytes), vec![7_u8; bytes]);
            assert_eq!(copy(&stream, memory.address, source.as_ptr().expose_provenance() as u64, bytes), 0);
            source.fill(0xEE);
            let queued = bench.device.sim().expect("simulated").queued();
            assert_eq!(contents(&bench, memory.address, bytes), vec![7; bytes], "seed {seed}");
            queued > 0
        };
        (0..seeds).filter(is_late).count()
    };
    assert_eq!(late(64 << 10, 32), 32);
    for bytes in [(64 << 10) + 1, 1 << 20] {
        assert!((8..=28).contains(&late(bytes, 32)), "{bytes} bytes");
    }
    assert_eq!(late(20 << 20, 4), 0, "the driver does not hold that much");
}

#[test]
fn blocking_upload_does_not_order_host_after_earlier_work() {
    for seed in 0..32 {
        let bench = bench(|builder| builder.seed(seed).record_accesses(true));
        let (stream, memory, target) = (bench.stream(), bench.memory(1 << 20), bench.pinned(4096));
        crate::raw::download(&stream, &target, 0, memory.address, 4096).expect("down");
        let source = vec![7_u8; 1 << 20];
        assert_eq!(copy(&stream, memory.address, source.as_ptr().expose_provenance() as u64, 1 << 20), 0);
        host_access::note(target.address(), 4096, HostAccess::Read);
        assert_eq!(bench.device.sim().expect("simulated").races().len(), 1, "seed {seed}");
        stream.synchronize().expect("healthy");
    }
}

#[test]
fn the_launch_queue_of_a_stream_is_as_deep_as_the_device_says() {
    let bench = bench(|builder| builder.launch_queue(8));
    let (stream, memory) = (bench.stream(), bench.memory(64));
    let sim = *bench.device.sim().expect("simulated");
    for turn in 1..=20 {
        fill(&stream, memory.address, turn, 64).expect("fill");
        assert!(sim.queued() <= 8, "{} operations after {turn} calls", sim.queued());
    }
    assert_eq!(sim.queued(), 8, "it fills up, and no more runs than has to");
    assert_eq!(contents(&bench, memory.address, 64), [20; 64]);
}

#[test]
fn freeing_waits_for_streams_that_a_gate_holds() {
    type Free = fn(&Bench) -> Box<dyn FnOnce() + Send + '_>;
    let frees: [(&str, Free); 2] = [
        ("cuMemFree", |bench| {
            let memory = bench.memory(64);
            Box::new(|| drop(memory))
        }),
        ("cuMemFreeHost", |bench| {
            let memory = bench.pinned(64);
            Box::new(|| drop(memory))
        }),
    ];
    for (what, free) in frees {
        let bench = bench(|builder| builder);
        let stream = bench.stream();
        let free = free(&bench);
        let gate = Gate::before(&bench, &[&stream]);
        thread::scope(|scope| {
            let call = Aside::new(scope, free);
            assert!(call.early().is_none(), "{what} did not wait");
            gate.open();
            call.late();
        });
    }
}

#[test]
fn unregister_waits_for_device_for_most_seeds() {
    let mut waited = 0;
    for seed in 0..24 {
        let bench = bench(|builder| builder.seed(seed));
        let (stream, memory) = (bench.stream(), bench.memory(64));
        let mut bytes = vec![0_u8; 4096];
        let start = bytes.as_mut_ptr().cast();
        let _bound = bench.context.enter().expect("enter");
        // SAFETY: the vector outlives its registration.
        unsafe {
            check("register", ffi::cuMemHostRegister_v2(start, 4096, 0)).expect("register");
            fill(&stream, memory.address, 1, 64).expect("fill");
            check("unregister", ffi::cuMemHostUnregister(start)).expect("unregister");
        }
        waited += usize::from(bench.device.sim().expect("simulated").queued() == 0);
    }
    assert!((12..24).contains(&waited), "{waited} of 24");
}

#[test]
fn a_free_that_waits_keeps_other_calls_waiting_for_most_seeds() {
    let kept = |seed: &u64| {
        let bench = bench(|builder| builder.seed(*seed));
        let (stream, other, memory, target) =
            (bench.stream(), bench.stream(), bench.memory(64), bench.memory(64));
        let gate = Gate::before(&bench, &[&stream]);
        thread::scope(|scope| {
            let free = Aside::new(scope, || drop(memory));
            assert!(free.early().is_none());
            let call = Aside::new(scope, || fill(&other, target.address, 1, 64));
            let early = call.early();
            let kept = early.is_none();
            gate.open();
            free.late();
            early.unwrap_or_else(|| call.late()).expect("fill");
            kept
        })
    };
    let kept = (0..12).filter(kept).count();
    assert!((4..12).contains(&kept), "{kept} of 12");
}

#[test]
fn lazy_module_load_waits_for_device_once() {
    let mut at_launch = 0;
    for seed in 0..16 {
        let bench = bench(|builder| builder.seed(seed));
        let sim = *bench.device.sim().expect("simulated");
        let (stream, other, memory) = (bench.stream(), bench.stream(), bench.memory(64));
        fill(&other, memory.address, 1, 8).expect("fill");
        let function = crate::kernels::load(&bench);
        at_launch += sim.queued();
        let (from, to) = (memory.address + 16, memory.address + 32);
        assert_eq!(crate::kernels::launch(function, &stream, from, to, 16, 0), 0);
        assert_eq!(sim.queued(), 1, "the first launch comes after the module was loaded");
        fill(&other, memory.address, 1, 8).expect("fill");
        assert_eq!(crate::kernels::launch(function, &stream, from, to, 16, 0), 0);
        assert_eq!(sim.queued(), 3, "the second waits for nothing");
        bench.context.synchronize().expect("healthy");
    }
    assert!((2..=14).contains(&at_launch), "{at_launch} of 16 modules are loaded by their first launch");
}

#[test]
fn waiting_for_own_host_function_is_reported_as_deadlock() {
    let bench = bench(|builder| builder.host_function_timeout(Duration::from_millis(300)));
    let (stream, memory) = (bench.stream(), bench.memory(64));
    let sim = *bench.device.sim().expect("simulated");
    let gate = Gate::before(&bench, &[&stream]);
    fill(&stream, memory.address, 1, 64).expect("fill");
    // Only this thread opens the gate.
    assert_eq!(code(stream.synchronize()), LAUNCH_TIMEOUT);
    let reports = sim.deadlocks();
    assert_eq!(reports.len(), 1, "{reports:?}");
    for part in ["host function", "stream 2", &format!("{:?}", thread::current().id())] {
        assert!(reports[0].contains(part), "{part:?} in {}", reports[0]);
    }
    // Nothing waits for that function any more.
    assert_eq!(code(bench.context.synchronize()), LAUNCH_TIMEOUT);
    assert_eq!(sim.deadlocks().len(), 1);
    drop(gate);
}

#[test]
fn word_that_nobody_writes_is_reported_as_deadlock() {
    let bench = bench(|builder| builder.host_function_timeout(Duration::from_millis(300)));
    let (stream, words) = (bench.stream(), bench.pinned(64));
    let sim = *bench.device.sim().expect("simulated");
    // SAFETY: the word lives to the end of the test.
    unsafe { stream.wait_word(words.address() as u64, 1) }.expect("wait");
    assert_eq!(code(stream.synchronize()), LAUNCH_TIMEOUT);
    assert_eq!(sim.deadlocks().len(), 1);
    assert!(sim.deadlocks()[0].contains("word"), "{}", sim.deadlocks()[0]);
}
