//! Pairs of devices without usable peer copies, and faults during peer copies.

use transload::{
    Error, ErrorKind, MemoryKind, TransferMethod, TransferOptions, TransferReport,
    backend::{RejectReason, Rejected},
};
use transload_cuda_sim::{SimDeviceBuilder, harness};
use transload_cuda_sys::trace;

use crate::setup::{Setup, noise};

const UNKNOWN: u32 = 999;
const OUT_OF_MEMORY: u32 = 2;

pub(crate) fn pair(first: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Option<Setup> {
    let first = harness::device_with(first)?;
    Some(Setup::over([first, harness::device_with(|builder| builder)?]))
}

fn reason(report: &TransferReport) -> Option<RejectReason> {
    let of_peers = |rejected: &&Rejected| rejected.method == TransferMethod::PeerToPeer;
    report.rejected.iter().find(of_peers).map(|rejected| rejected.reason)
}

fn transfer(setup: &Setup, from: usize, to: usize, seed: u64) -> TransferReport {
    let content = noise(200_003, seed);
    let (src, dst) = (setup.filled(from, &content), setup.on(to, content.len()));
    let report = setup.manager.copy(&src, &dst).wait().unwrap();
    assert!(setup.content(&dst) == content, "{from} → {to}");
    report
}

#[test]
fn devices_without_peer_access_are_host_staged_with_reason() {
    let Some(setup) = pair(SimDeviceBuilder::no_peers) else { return };
    for (from, to) in [(0, 1), (1, 0)] {
        let report = transfer(&setup, from, to, 1);
        assert_eq!(report.method, TransferMethod::HostStaged);
        assert_eq!(reason(&report), Some(RejectReason::NoPeerAccess), "{report}");
    }
    assert!(setup.tests[0].sim().unwrap().enabled_peers().is_empty());
    // Nor have their lists the times of a kernel that accesses the other's memory.
    let (costs, path) = (setup.manager.list_costs(), setup.path(0, 1));
    assert!(costs.iter().all(|(cost, _)| cost.path != path), "{costs:?}");
    setup.finish();
}

#[test]
fn corrupting_pair_is_rejected_in_both_directions() {
    let Some(setup) = pair(SimDeviceBuilder::corrupt_peer_copies) else { return };
    let report = transfer(&setup, 0, 1, 1);
    assert_eq!(report.method, TransferMethod::HostStaged);
    assert_eq!(reason(&report), Some(RejectReason::PeerCorrupts), "{report}");

    let trace = trace::start();
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let path = setup.path(from, to);
        let plan = setup.manager.plan(path.src, path.dst, 200_003, &TransferOptions::new()).unwrap();
        let report = transfer(&setup, from, to, 2);
        assert_eq!(reason(&report), Some(RejectReason::PeerCorrupts), "{report}");
        assert!(plan.agrees_with(&report), "{plan}\n{report}");
    }
    let calls = trace.calls_of_this_thread();
    assert!(calls.iter().all(|call| call.name != "cuMemcpyPeerAsync"), "it was found out once: {calls:?}");
    drop(trace);

    let only = TransferOptions::new().only(TransferMethod::PeerToPeer);
    let (src, dst) = (setup.filled(0, &[1; 100]), setup.on(1, 100));
    let error = setup.manager.copy(&src, &dst).options(only).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("a test pattern copied between the devices was changed"), "{error}");
    drop((src, dst));
    setup.finish();
}

#[test]
fn a_pair_that_cannot_be_enabled_is_host_staged() {
    let Some(setup) = pair(|builder| builder) else { return };
    setup.tests[1].sim().unwrap().fail_call(Some("cuMemPoolSetAccess"), 1, UNKNOWN);
    let report = transfer(&setup, 0, 1, 1);
    assert_eq!(report.method, TransferMethod::HostStaged);
    assert_eq!(reason(&report), Some(RejectReason::NoPeerAccess), "{report}");
    setup.finish();
}

#[test]
fn pair_check_short_of_memory_is_retried_with_backoff() {
    let Some(setup) = pair(|builder| builder) else { return };
    let short = || setup.tests[0].sim().unwrap().fail_call(Some("cuCtxEnablePeerAccess"), 1, OUT_OF_MEMORY);
    let tried = |from, to| {
        let trace = trace::start();
        let report = transfer(&setup, from, to, 1);
        let calls = trace.calls_of_this_thread();
        (report, calls.iter().any(|call| call.name == "cuCtxEnablePeerAccess"))
    };
    short();
    let (report, enabling) = tried(0, 1);
    assert_eq!((report.method, enabling), (TransferMethod::HostStaged, true));
    assert_eq!(reason(&report), Some(RejectReason::PeerUnverified), "{report}");
    short();
    // At once, and again after one transfer that does not try: a verdict is for the pair, in both directions.
    for (enabling, from, to) in [(true, 1, 0), (false, 0, 1)] {
        let (report, tried) = tried(from, to);
        assert_eq!((report.method, tried), (TransferMethod::HostStaged, enabling), "{report}");
        assert_eq!(reason(&report), Some(RejectReason::PeerUnverified), "{report}");
    }
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(transfer(&setup, from, to, 2).method, TransferMethod::PeerToPeer);
    }
    setup.finish();
}

#[test]
fn a_pair_whose_pattern_cannot_be_sent_is_not_trusted() {
    let Some(setup) = pair(|builder| builder) else { return };
    setup.tests[0].sim().unwrap().fail_call(Some("cuMemcpyPeerAsync"), 1, UNKNOWN);
    let report = transfer(&setup, 0, 1, 1);
    assert_eq!(reason(&report), Some(RejectReason::PeerUnverified), "{report}");
    setup.finish();
}

#[test]
fn failed_peer_copy_returns_error_and_next_succeeds() {
    let Some(setup) = pair(|builder| builder) else { return };
    let content = noise(5000, 1);
    let (src, dst) = (setup.filled(0, &content), setup.on(1, 5000));
    setup.manager.copy(&src, &dst).wait().unwrap();
    setup.tests[0].sim().unwrap().fail_call(Some("cuMemcpyPeerAsync"), 1, UNKNOWN);
    let error = setup.manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("cuMemcpyPeerAsync"), "{error}");
    let report = setup.manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(report.method, TransferMethod::PeerToPeer);
    assert!(setup.content(&dst) == content);
    drop((src, dst));
    setup.finish();
}

#[test]
fn devices_without_pools_are_peers_by_their_contexts_alone() {
    let Some(setup) = pair(|builder| builder.memory_pools(false)) else { return };
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(transfer(&setup, from, to, 3).method, TransferMethod::PeerToPeer);
    }
    setup.finish();
}

/// A round trip by peer copies only, the first of which enables and verifies access.
fn there_and_back(setup: &Setup, content: &[u8]) -> Result<bool, Error> {
    let only = TransferOptions::new().only(TransferMethod::PeerToPeer);
    let allocate = |which: usize, kind| setup.manager.allocate_for(setup.devices[which], kind, content.len());
    let host = allocate(0, MemoryKind::Pinned)?;
    host.write()?.copy_from_slice(content);
    let (here, there) = (allocate(0, MemoryKind::Device)?, allocate(1, MemoryKind::Device)?);
    let back = allocate(0, MemoryKind::Device)?;
    let up = setup.manager.copy(&host, &here).submit();
    let over = setup.manager.copy(&here, &there).options(only).submit();
    let again = setup.manager.copy(&there, &back).options(only).submit();
    let (up, over, again) = (up.wait(), over.wait(), pollster::block_on(again));
    up.and(over).and(again)?;
    host.write()?.fill(0xEE);
    setup.manager.copy(&back, &host).wait()?;
    Ok(*host.read()? == *content)
}

#[test]
fn each_failing_driver_call_is_a_typed_error_without_a_hang_or_a_leak() {
    let _alone = crate::alone_with_drop_errors();
    let content = noise(5000, 1);
    for victim in 0..2 {
        for nth in 1.. {
            let Some(setup) = pair(|builder| builder.record_accesses(true)) else { return };
            let tests = setup.tests;
            let sim = *tests[victim].sim().unwrap();
            let before = sim.calls();
            let code = if nth % 2 == 0 { UNKNOWN } else { OUT_OF_MEMORY };
            sim.fail_call(None, nth, code);
            match there_and_back(&setup, &content) {
                Ok(same) => assert!(same, "device {victim}, call {nth}"),
                Err(error) => {
                    let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "device {victim}, call {nth}: {error:?}");
                }
            }
            // The fault may hit the drain itself; then the next one succeeds.
            let _first = setup.manager.drain();
            if sim.calls() - before < nth {
                assert!(nth > 20, "the scenario makes more calls than {nth}");
                break;
            }
            setup.manager.drain().unwrap();
            drop(setup);
            let failed_drops = transload_cuda_sys::take_drop_errors();
            for test in tests {
                test.assert_no_races();
                if failed_drops.is_empty() {
                    test.assert_no_live_objects();
                }
            }
        }
    }
}

#[test]
fn peer_copies_have_no_race_under_any_of_fifty_seeds() {
    for seed in 0..50 {
        let build = |builder: SimDeviceBuilder| builder.seed(seed).record_accesses(true);
        let (Some(a), Some(b)) = (harness::device_with(build), harness::device_with(build)) else { return };
        let setup = Setup::over([a, b]);
        let content = noise(300_001, seed);
        let (here, there, again) =
            (setup.filled(0, &content), setup.on(1, content.len()), setup.on(0, content.len()));
        for _ in 0..3 {
            drop(setup.manager.copy(&here, &there).submit());
            drop(setup.manager.copy(&there, &again).submit());
            drop(setup.manager.copy(&again, &here).submit());
        }
        assert!(setup.content(&here) == content, "seed {seed}");
        drop((here, there, again));
        setup.finish();
    }
}
