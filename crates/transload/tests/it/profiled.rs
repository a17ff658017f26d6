//! `Runtime::profile`, and the traces of programs that the environment asks to record.

use std::{
    env, fs,
    path::Path,
    process::Child,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use transload::{
    ErrorKind, Runtime,
    backend::{Observer, OperationSampling, TransferEvent},
    profiler::{ProfilerOptions, ProfilerReport, TRACE_VARIABLE, TraceContents},
};

use crate::{packets, programs::this_program, uncalibrated};

fn timing_all() -> ProfilerOptions {
    ProfilerOptions::new().sampling(OperationSampling::ALL)
}

fn host_runtime() -> Runtime {
    uncalibrated::builder().without("cuda").discover().unwrap()
}

fn copy(rt: &Runtime, bytes: usize) {
    let (src, dst) = (rt.zeros::<u8>(bytes).unwrap(), rt.zeros::<u8>(bytes).unwrap());
    rt.copy(&src, &dst).wait().unwrap();
}

fn transfers(report: &ProfilerReport) -> u64 {
    report.paths.iter().map(|path| path.sampled).sum()
}

#[test]
fn one_call_profiles_host_and_transfers() {
    let rt = host_runtime();
    copy(&rt, 8 << 20);
    let profiler = rt.profile(timing_all()).unwrap();
    (0..3).for_each(|_| copy(&rt, 8 << 20));
    profiler.disable();
    copy(&rt, 8 << 20);
    profiler.enable().unwrap();
    copy(&rt, 1000);
    let report = profiler.get_comprehensive_report();
    assert_eq!((transfers(&report), report.lost), (4, 0), "{report}");
    let bytes: u64 = report.directions.iter().map(|direction| direction.timed_bytes).sum();
    assert_eq!(bytes, 24 << 20, "the small one is copied by the caller, without a queue: {report}");
    // The profiler outlives the runtime.
    drop(rt);
    assert_eq!(transfers(&profiler.get_comprehensive_report()), 4);
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn one_call_profiles_every_device() {
    use transload::{
        cuda::CudaBackendConfig,
        profiler::{TraceFormat, TraceOptions},
    };
    use transload_cuda_sim::harness;

    let tests = [harness::device(), harness::device()].map(|test| test.end_check());
    let config = CudaBackendConfig::default().with_devices(tests.each_ref().map(|test| test.ordinal()));
    let rt = uncalibrated::builder().cuda(config).discover().unwrap();
    let profiler = rt.profile(timing_all()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = TraceOptions::new();
    profiler.start_trace(file.reopen().unwrap(), TraceFormat::Perfetto, options).unwrap();
    let pinned = rt.cuda(tests[0].ordinal()).unwrap().pinned::<u8>(3 << 20).unwrap();
    let bytes = rt.resources().pinned_bytes as f64;
    profiler.finish_trace().unwrap();
    let trace = packets::read(&fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(trace.points("pinned host memory").last().unwrap().1, bytes);
    assert!(bytes >= (3 << 20) as f64);
    drop(pinned);
    for test in &tests {
        let there = rt.cuda(test.ordinal()).unwrap().upload(&[7_u8; 100_000]).unwrap();
        assert_eq!(*rt.download(&there).wait().unwrap(), [7; 100_000]);
    }
    rt.drain().unwrap();
    let report = profiler.get_comprehensive_report();
    for test in &tests {
        let of_device =
            report.directions.iter().filter(|it| it.device.to_string() == format!("cuda:{}", test.ordinal()));
        // On hardware both may be the same device.
        let copies = tests.iter().filter(|other| other.ordinal() == test.ordinal()).count() as u64;
        let expected = [copies * 100_000; 2];
        assert_eq!(of_device.map(|it| it.timed_bytes).collect::<Vec<_>>(), expected, "{report}");
    }
    // Nothing of the devices is left in the profiler, which is still there.
    drop(rt);
    tests.iter().for_each(|test| test.assert_no_live_objects());
    assert_eq!(profiler.get_comprehensive_report().outstanding, 0);
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn advice_rests_on_the_costs_of_the_runtime() {
    use transload::{
        MemoryKind, TransferMethod,
        backend::{CostBasis, CostModel, PathCost, TransferPath},
        cuda::CudaBackendConfig,
        profiler::AdviceBasis,
    };
    use transload_cuda_sim::harness;

    let Some(test) = harness::device_with(|device| device) else { return };
    let test = test.end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = uncalibrated::builder().cuda(config).discover().unwrap();
    let profiler = rt.profile(timing_all()).unwrap();
    let there = rt.cuda(test.ordinal()).unwrap().alloc::<u8>(16 << 20).unwrap();
    let here = rt.zeros::<u8>(16 << 20).unwrap();
    let mut path = TransferPath::new(here.raw().place(), there.raw().place());
    path.src.kind = MemoryKind::Pinned;
    let (method, model) = (TransferMethod::DirectCopy, CostModel::linear(std::time::Duration::ZERO, 55e9));
    rt.copy(&here, &there).method(method).wait().unwrap();
    assert!(profiler.get_comprehensive_report().advice.is_empty(), "those of a built-in table are none");
    rt.manager().set_costs(vec![PathCost { path, method, model }]);
    let report = profiler.get_comprehensive_report();
    let bases: Vec<_> = report.advice.iter().map(|advice| advice.basis).collect();
    assert_eq!(bases, [Some(AdviceBasis::Costs(CostBasis::User))], "{report}");
    // Those that were known last.
    drop((here, there, rt));
    assert_eq!(profiler.get_comprehensive_report().advice, report.advice);
}

#[test]
fn second_profile_is_busy_until_the_first_is_dropped() {
    let rt = host_runtime();
    let first = rt.profile(timing_all()).unwrap();
    assert_eq!(rt.clone().profile(timing_all()).unwrap_err().kind(), ErrorKind::Busy);
    copy(&rt, 8 << 20);
    assert_eq!(transfers(&first.get_comprehensive_report()), 1, "the first goes on");
    // Another runtime has queues of its own.
    let other = host_runtime();
    let second = other.profile(timing_all()).unwrap();
    copy(&other, 8 << 20);
    assert_eq!(transfers(&first.get_comprehensive_report()), 1);
    assert_eq!(transfers(&second.get_comprehensive_report()), 1);
    drop(first);
    let third = rt.profile(timing_all()).unwrap();
    copy(&rt, 8 << 20);
    assert_eq!(transfers(&third.get_comprehensive_report()), 1);
}

#[test]
fn backend_of_another_profiler_refuses_and_nothing_stays_attached() {
    let (rt, other) = (host_runtime(), transload::profiler::StreamProfiler::new(timing_all()));
    other.attach(&(Arc::clone(rt.cpu()) as _)).unwrap();
    other.enable().unwrap();
    assert_eq!(rt.profile(timing_all()).unwrap_err().kind(), ErrorKind::Busy);
    other.disable();
    let profiler = rt.profile(timing_all()).unwrap();
    copy(&rt, 8 << 20);
    assert_eq!(transfers(&profiler.get_comprehensive_report()), 1);
}

#[test]
fn observer_of_the_caller_is_told_with_and_without_a_profiler() {
    #[derive(Default)]
    struct Counting(AtomicU64);
    impl Observer for Counting {
        fn transfer(&self, event: TransferEvent<'_>) {
            if let TransferEvent::Completed(_) = event {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let own = Arc::new(Counting::default());
    let rt = uncalibrated::builder().without("cuda").observer(Arc::clone(&own) as _).discover().unwrap();
    copy(&rt, 100);
    let profiler = rt.profile(timing_all()).unwrap();
    copy(&rt, 100);
    assert_eq!((own.0.load(Ordering::Relaxed), transfers(&profiler.get_comprehensive_report())), (2, 1));
    drop(profiler);
    copy(&rt, 100);
    assert_eq!(own.0.load(Ordering::Relaxed), 3);
}

#[test]
fn observer_of_the_caller_leaves_the_sampling_of_a_profiler_as_it_is() {
    struct Nothing;
    impl Observer for Nothing {
        fn transfer(&self, _: TransferEvent<'_>) {}
    }
    let builder = uncalibrated::builder().without("cuda").observer(Arc::new(Nothing));
    let rt = builder.discover().unwrap();
    let profiler = rt.profile(ProfilerOptions::new()).unwrap();
    for _ in 0..1000 {
        copy(&rt, 4096);
    }
    let report = profiler.get_comprehensive_report();
    let sampled = report.paths.iter().map(|path| path.sampled).sum::<u64>();
    let timed = report.streams.iter().flat_map(|it| &it.kinds).map(|it| it.running.count).sum::<u64>();
    assert!((1..100).contains(&sampled) && timed < 200, "one in 64 of 1,000: {sampled}, {timed}");
}

#[test]
fn profiler_is_toggled_and_replaced_while_copies_run() {
    let (rt, stop, copies) = (host_runtime(), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    copy(&rt, 3 << 20);
                    copies.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..20 {
            let profiler = rt.profile(timing_all()).unwrap();
            profiler.disable();
            profiler.enable().unwrap();
            let before = copies.load(Ordering::Relaxed);
            while copies.load(Ordering::Relaxed) < before + 2 {
                thread::yield_now();
            }
            let report = profiler.get_comprehensive_report();
            assert_eq!(report.lost, 0, "{report}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let profiler = rt.profile(timing_all()).unwrap();
    copy(&rt, 8 << 20);
    let report = profiler.get_comprehensive_report();
    assert_eq!((transfers(&report), report.outstanding), (1, 0), "{report}");
}

/// What [`child`] does.
const CHILD: &str = "TRANSLOAD_TEST_TRACED";

/// Starts [`child`], which records to a file.
fn start(mode: &str, file: &Path) -> Child {
    let mut command = this_program();
    command.args(["profiled::child", "--exact"]).env(CHILD, mode).env(TRACE_VARIABLE, file);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// The program that is recorded: does nothing unless another test started it.
#[test]
fn child() {
    static KEPT: OnceLock<Runtime> = OnceLock::new();
    let Ok(mode) = env::var(CHILD) else { return };
    match &mode[..] {
        "dropped" => copy(&host_runtime(), 8 << 20),
        "two" => {
            let (one, other) = (host_runtime(), host_runtime());
            copy(&one, 8 << 20);
            copy(&other, 8 << 20);
            assert_eq!(one.profile(timing_all()).unwrap_err().kind(), ErrorKind::Busy);
        }
        "kept" => copy(KEPT.get_or_init(host_runtime), 8 << 20),
        #[cfg(unix)]
        "forked" => {
            let rt = KEPT.get_or_init(host_runtime);
            // SAFETY: the forked process only exits, which runs functions that are registered for that.
            let forked = unsafe { libc::fork() };
            if forked == 0 {
                // SAFETY: as above.
                unsafe { libc::exit(0) };
            }
            // SAFETY: waits for a process of this one.
            assert_eq!(unsafe { libc::waitpid(forked, std::ptr::null_mut(), 0) }, forked);
            copy(rt, 8 << 20);
        }
        "killed" => {
            let rt = host_runtime();
            while fs::exists(env::var_os(TRACE_VARIABLE).unwrap()).unwrap() {
                copy(&rt, 8 << 20);
            }
        }
        other => panic!("{other}"),
    }
}

fn contents(file: &Path) -> TraceContents {
    TraceContents::read(&fs::read(file).unwrap()[..]).unwrap()
}

/// A submission, the copy's parts on the workers' queues, and the transfer.
const SLICES: u64 = 3;

#[test]
fn recorded_program_leaves_a_trace_however_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    for mode in ["dropped", "kept"] {
        let file = folder.path().join(mode).with_extension("pftrace");
        assert!(start(mode, &file).wait().unwrap().success());
        let contents = contents(&file);
        let summary = contents.summary.unwrap();
        assert!(contents.slices >= SLICES && summary.slices == contents.slices, "{mode}: {contents:?}");
        assert_eq!((summary.records_lost, summary.unfinished), (0, 0), "{mode}");
    }
    let file = folder.path().join("killed.pftrace");
    let mut child = start("killed", &file);
    while fs::read(&file)
        .map_or(true, |bytes| TraceContents::read(&bytes[..]).map_or(true, |it| it.slices < 10))
    {
        assert!(child.try_wait().unwrap().is_none());
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let contents = contents(&file);
    assert!(contents.slices >= 10 && contents.summary.is_none(), "{contents:?}");
}

/// So that others, such as `transload trace`, neither rename nor remove it meanwhile.
#[cfg(any(unix, windows))]
#[test]
fn recording_holds_its_file_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("held.pftrace");
    let is_held = || {
        if cfg!(windows) {
            return fs::rename(&file, &file).is_err();
        }
        let locked = fs::File::open(&file).unwrap().try_lock_shared();
        matches!(locked, Err(fs::TryLockError::WouldBlock))
    };
    let mut child = start("killed", &file);
    // A file with bytes was locked before.
    while fs::read(&file).map_or(true, |bytes| bytes.is_empty()) {
        assert!(child.try_wait().unwrap().is_none());
        thread::yield_now();
    }
    let was_held = is_held();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((was_held, is_held()), (true, false));
}

#[cfg(unix)]
#[test]
fn forked_process_leaves_the_trace_of_its_parent_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forked.pftrace");
    assert!(start("forked", &file).wait().unwrap().success());
    let trace = packets::read(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(trace.events().filter(|(_, event)| event.kind == 3).count(), 1, "one end");
    assert!(trace.drawn().len() as u64 >= SLICES);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn each_runtime_records_a_file_and_none_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.old.pftrace");
    fs::write(&file, "of the user").unwrap();
    assert!(start("two", &file).wait().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), b"of the user");
    for number in [2, 3] {
        let contents = contents(&folder.path().join(format!("mine.old.{number}.pftrace")));
        assert!(contents.summary.is_some_and(|it| it.slices >= SLICES), "{contents:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}

#[test]
fn trace_that_cannot_be_written_fails_no_program() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["", "/", "..", "not/there/trace", "with\nnewline/x"] {
        let path = if path.is_empty() { path.into() } else { folder.path().join(path) };
        assert!(start("dropped", &path).wait().unwrap().success(), "{path:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}
