//! Stored calibrations: used where they fit, ignored where they do not, and never a reason to fail.

use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use transload::{
    DeviceId, ErrorKind, MemoryKind, Place, Runtime,
    backend::CostBasis,
    calibration::{Calibrated, CalibrationOptions, CalibrationStore},
};

fn runtime(store: CalibrationStore) -> Runtime {
    Runtime::builder().without("cuda").calibration(store).threads(2).discover().unwrap()
}

fn over(file: &Path) -> Runtime {
    runtime(CalibrationStore::File(file.to_owned()))
}

fn basis(runtime: &Runtime) -> CostBasis {
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let plan = runtime.plan(host, host, 4096).unwrap();
    assert!(plan.to_string().contains(&plan.basis.to_string()), "{plan}");
    plan.basis
}

/// A process calibrates once at a time: so do its tests.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn quick() -> CalibrationOptions {
    // Enough for any machine.
    CalibrationOptions::new().largest(64 << 10).budget(Duration::from_secs(60))
}

fn calibrate(runtime: &Runtime) -> Calibrated {
    let _alone = alone();
    runtime.calibrate(&quick()).unwrap()
}

/// Calibrates without finishing any path.
fn cancel(runtime: &Runtime) -> Calibrated {
    let _alone = alone();
    runtime.calibrate(&CalibrationOptions::new().progress(|_| ControlFlow::Break(()))).unwrap()
}

/// Returns the names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn calibration_is_kept_for_later_runtimes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/b/calibration.json");
    let first = over(&file);
    assert_eq!(basis(&first), CostBasis::BuiltIn, "nothing is stored yet");
    let found = calibrate(&first);
    assert_eq!(found.stored.as_deref().unwrap(), file);
    assert_eq!((found.calibration.unfinished.len(), found.calibration.simulated), (0, false));
    assert_eq!(basis(&first), CostBasis::Measured);
    assert_eq!(names(file.parent().unwrap()), ["calibration.json", "calibration.json.lock"]);

    let later = over(&file);
    assert_eq!(basis(&later), CostBasis::Measured);
    assert_eq!(later.manager().costs(), first.manager().costs());
    assert_eq!(basis(&runtime(CalibrationStore::None)), CostBasis::BuiltIn);
    // Again, and by a task.
    let options = CalibrationOptions::new().largest(1024);
    let _alone = alone();
    let again = pollster::block_on(later.calibrate_async(&options)).unwrap();
    assert_eq!(again.stored.unwrap(), file);
}

/// It is done nevertheless, and nothing of it is left after a drain.
#[test]
fn drain_waits_for_a_calibration_whose_future_was_dropped() {
    let (rt, _alone) = (runtime(CalibrationStore::None), alone());
    let options = CalibrationOptions::new().largest(1024);
    let mut calibrating = Box::pin(rt.calibrate_async(&options));
    let waker = std::task::Waker::noop();
    let polled = calibrating.as_mut().poll(&mut std::task::Context::from_waker(waker));
    drop((calibrating, polled));
    rt.drain().unwrap();
    assert_eq!(basis(&rt), CostBasis::Measured);
    assert!(rt.resources().is_empty(), "{}", rt.resources());
}

/// Asserts that the file is ignored, and replaced by the next calibration.
#[track_caller]
fn is_ignored_and_rebuilt(file: &Path) {
    let rt = over(file);
    assert_eq!(basis(&rt), CostBasis::BuiltIn);
    calibrate(&rt).stored.unwrap();
    assert_eq!(basis(&over(file)), CostBasis::Measured);
}

#[test]
fn damaged_and_foreign_files_are_ignored_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    calibrate(&over(&file)).stored.unwrap();
    let good: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let text = good.to_string();

    let lists = |pieces: u64, seconds: f64| {
        let time = json!({
            "pieces": pieces, "bytes": 64, "median_seconds": seconds, "noise_seconds": 0.0, "repetitions": 1,
        });
        let path = json!({ "src": "cpu/pinned", "dst": "cuda:0/device" });
        json!([{ "path": path, "way": "copy_kernel", "times": [time] }])
    };
    let staging = |device: &str, segment: u64, threads: u32, seconds: f64| {
        let tuning = json!({
            "upload_cached_from": 1, "upload_segment": segment, "short_threads": threads, "long_threads": 8,
            "download_segment": 65536, "download_buffers": 16,
        });
        let path = json!({ "src": "cpu/pageable", "dst": "cuda:0/device" });
        let time = json!({ "path": path, "bytes": 64, "built_in_seconds": seconds, "tuned_seconds": 1.0 });
        json!([{ "device": device, "tuning": tuning, "times": [time] }])
    };
    let changes: [(&str, Value); 26] = [
        ("/format", json!(1)),
        ("/format", json!("1")),
        ("/key/library", json!("0.0.0")),
        ("/key/cores", json!(100_000)),
        ("/key/threads", json!(3)),
        ("/key/ring_limit", json!(4 << 20)),
        ("/key/pinned_limit", json!(1 << 30)),
        ("/key/kernel_driver", json!("another")),
        ("/key/devices/0/name", json!("another processor")),
        ("/key/devices/0/uuid", json!("00000000000000000000000000000001")),
        ("/key/devices", json!([])),
        ("/calibration/paths/0/methods/0/times/1/median_seconds", json!(-1.0)),
        ("/calibration/paths/0/methods/0/times/1/median_seconds", json!(1e300)),
        ("/calibration/paths/0/methods/0/times/1/bytes", json!(u64::MAX)),
        ("/calibration/paths/0/methods/0/times", json!([])),
        ("/calibration/paths/0/path/src", json!("nowhere/pageable")),
        ("/calibration/lists", json!(null)),
        ("/calibration/lists", lists(1, -1.0)),
        ("/calibration/lists", lists(u64::MAX, 1e300)),
        ("/calibration/lists", lists(1, 1.0)),
        ("/calibration/staging", json!(null)),
        ("/calibration/staging", staging("cuda:0", 1 << 20, 0, 1.0)),
        ("/calibration/staging", staging("cuda:0", 1 << 20, u32::MAX, 1.0)),
        ("/calibration/staging", staging("cuda:0", 1 << 40, 1, 1.0)),
        ("/calibration/staging", staging("cuda:0", 0, 1, 1.0)),
        ("/calibration/staging", staging("cpu", 1 << 20, 1, 1.0)),
    ];
    for (pointer, value) in changes {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        fs::write(&file, changed.to_string()).unwrap();
        is_ignored_and_rebuilt(&file);
    }
    let half = text.get(..text.len() / 2).unwrap().to_owned();
    let not_a_number = text.replacen("\"median_seconds\":", "\"median_seconds\":NaN,\"x\":", 1);
    let too_large = text.replacen("\"median_seconds\":", "\"median_seconds\":1e999,\"x\":", 1);
    let deep = "[".repeat(1 << 20);
    for bad in [String::new(), half, not_a_number, too_large, deep, "\0".repeat(4096)] {
        fs::write(&file, bad).unwrap();
        is_ignored_and_rebuilt(&file);
    }
    // Larger than any calibration: valid JSON otherwise.
    fs::write(&file, text + &" ".repeat(9 << 20)).unwrap();
    is_ignored_and_rebuilt(&file);
}

#[test]
fn calibration_of_a_larger_staging_limit_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    calibrate(&over(&file)).stored.unwrap();
    let limited = |bytes| {
        let builder = Runtime::builder().without("cuda").calibration(CalibrationStore::File(file.clone()));
        basis(&builder.threads(2).staging_limit(bytes).discover().unwrap())
    };
    assert_eq!(limited(4 << 20), CostBasis::BuiltIn);
    assert_eq!(limited(1 << 40), CostBasis::Measured, "rings are as large without a limit");
}

#[cfg(unix)]
#[test]
fn links_and_other_files_are_neither_followed_nor_replaced() {
    use std::os::unix::{fs::symlink, net::UnixListener};

    let folder = tempfile::tempdir().unwrap();
    let (elsewhere, file) = (folder.path().join("elsewhere"), folder.path().join("calibration.json"));
    calibrate(&over(&elsewhere)).stored.unwrap();
    let before = fs::read(&elsewhere).unwrap();
    let refused = |file: &Path| {
        let rt = over(file);
        assert_eq!(basis(&rt), CostBasis::BuiltIn);
        let found = calibrate(&rt);
        assert_eq!(found.stored.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(basis(&rt), CostBasis::Measured, "it is used by this runtime");
    };
    symlink(&elsewhere, &file).unwrap();
    refused(&file);
    assert_eq!(fs::read(&elsewhere).unwrap(), before);
    fs::remove_file(&file).unwrap();
    symlink(folder.path().join("dangling"), &file).unwrap();
    refused(&file);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&file);
    fs::remove_dir(&file).unwrap();
    let _socket = UnixListener::bind(&file).unwrap();
    refused(&file);
    fs::remove_file(&file).unwrap();
    // The lock would be made elsewhere.
    fs::remove_file(folder.path().join("calibration.json.lock")).unwrap();
    symlink(folder.path().join("dangling"), folder.path().join("calibration.json.lock")).unwrap();
    refused(&file);
    assert!(!folder.path().join("dangling").exists());
    // A folder that is a link is the user's choice.
    let link = folder.path().join("link");
    symlink(folder.path().join("real"), &link).unwrap();
    assert!(calibrate(&over(&link.join("c.json"))).stored.is_err(), "it leads nowhere");
    fs::create_dir(folder.path().join("real")).unwrap();
    calibrate(&over(&link.join("c.json"))).stored.unwrap();
    assert!(folder.path().join("real/c.json").exists());
}

#[test]
fn place_that_cannot_be_written_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let rt = over(&file.join("calibration.json"));
    let found = calibrate(&rt);
    assert_eq!(found.stored.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(basis(&rt), CostBasis::Measured);
    let unkept = calibrate(&runtime(CalibrationStore::None));
    assert_eq!(unkept.stored.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn second_calibration_at_once_is_busy() {
    let other = runtime(CalibrationStore::None);
    let options = CalibrationOptions::new().progress(move |_| {
        // Of another store, with other threads or of simulated devices: it would measure the first one.
        let error = other.calibrate(&quick()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        ControlFlow::Break(())
    });
    let rt = runtime(CalibrationStore::None);
    let alone = alone();
    let _nothing = rt.calibrate(&options).unwrap();
    drop(alone);
    calibrate(&rt).stored.unwrap_err();
}

#[test]
fn calibration_of_another_process_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    // As another process would.
    let lock = fs::File::create(folder.path().join("calibration.json.lock")).unwrap();
    lock.lock().unwrap();
    let rt = over(&file);
    let alone = alone();
    let error = rt.calibrate(&CalibrationOptions::new()).unwrap_err();
    drop(alone);
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(basis(&rt), CostBasis::BuiltIn, "nothing was measured");
    // Closing it is not enough while another test starts a program.
    let _closing = lock.unlock();
    drop(lock);
    calibrate(&rt).stored.unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn calibration_is_found_by_a_thread_of_one_processor() {
    let folder = tempfile::tempdir().unwrap();
    let rt = over(&folder.path().join("calibration.json"));
    calibrate(&rt).stored.unwrap();
    let found = std::thread::spawn(move || {
        // SAFETY: zero is a valid value.
        let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid for the calls, and this thread's own ends with it.
        let changed = unsafe {
            libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut mask);
            libc::sched_setaffinity(0, size_of_val(&mask), &raw const mask)
        };
        assert_eq!(changed, 0);
        rt.stored_calibration()
    });
    assert!(found.join().unwrap().unwrap().is_some());
}

/// A process that does nothing, with copies of the files that were open when it began. Killed on drop.
#[cfg(target_os = "linux")]
struct Forked(i32);

#[cfg(target_os = "linux")]
impl Forked {
    fn start() -> Self {
        // SAFETY: the child calls only functions that may be called after a fork.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: as above. It also ends with its parent.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            },
            child => Self(child),
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: the child is this process's, and not yet waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// As a process that is being started, until its program runs.
#[cfg(target_os = "linux")]
#[test]
fn lock_ends_although_a_forked_process_has_a_copy_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let child = std::sync::OnceLock::new();
    let options = quick().progress(move |_| {
        child.get_or_init(Forked::start);
        ControlFlow::Continue(())
    });
    let rt = over(&folder.path().join("calibration.json"));
    let _alone = alone();
    rt.calibrate(&options).unwrap().stored.unwrap();
    rt.calibrate(&quick()).unwrap().stored.unwrap();
}

#[test]
fn unfinished_paths_stay_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let rt = over(&file);
    calibrate(&rt).stored.unwrap();
    let costs = rt.manager().costs();
    let found = cancel(&rt);
    found.stored.unwrap();
    assert_eq!(found.calibration.unfinished.len(), 1);
    assert_eq!(rt.manager().costs(), costs);
    assert_eq!(over(&file).manager().costs(), costs);
}

#[test]
fn kept_paths_are_used_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let earlier = over(&file);
    calibrate(&over(&file)).stored.unwrap();
    assert_eq!(basis(&earlier), CostBasis::BuiltIn);
    let found = cancel(&earlier);
    assert_eq!((found.calibration.paths.len(), found.calibration.unfinished.len()), (1, 1));
    assert_eq!(basis(&earlier), CostBasis::Measured);
}

#[test]
fn kept_paths_replace_nothing_newer() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let rt = over(&file);
    let mut newer = calibrate(&rt).calibration;
    for time in newer.paths.iter_mut().flat_map(|path| &mut path.methods).flat_map(|curve| &mut curve.times) {
        time.median *= 2;
    }
    rt.manager().use_calibration(&newer).unwrap();
    let costs = rt.manager().costs();
    let found = cancel(&rt);
    assert_eq!(found.calibration.paths.len(), 1, "it is kept in the file");
    assert_eq!(rt.manager().costs(), costs);
}

#[test]
fn earlier_calibration_is_kept_where_none_can_be_stored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let earlier = over(&file);
    calibrate(&over(&file)).stored.unwrap();
    let lock = folder.path().join("calibration.json.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let found = cancel(&earlier);
    let refused = found.stored.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "a folder is no lock: {refused}");
    assert_eq!(found.calibration.paths.len(), 1);
    assert_eq!(basis(&earlier), CostBasis::Measured);
}

#[test]
fn damaged_path_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    calibrate(&over(&file)).stored.unwrap();
    let mut damaged: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    *damaged.pointer_mut("/calibration/paths/0/methods/0/times/1/median_seconds").unwrap() = json!(0.0);
    fs::write(&file, damaged.to_string()).unwrap();
    cancel(&over(&file)).stored.unwrap();
    let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept.pointer("/calibration/paths"), Some(&json!([])));
}

#[cfg(unix)]
#[test]
fn earlier_calibration_that_cannot_be_read_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    calibrate(&over(&file)).stored.unwrap();
    let before = fs::read(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&file).is_ok() {
        println!("skipped: needs a user who may not read everything");
        return;
    }
    assert_eq!(cancel(&over(&file)).stored.unwrap_err().kind(), ErrorKind::Io);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn part_left_by_a_killed_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    fs::write(folder.path().join("calibration.json.transload-new"), "half").unwrap();
    calibrate(&over(&file)).stored.unwrap();
    assert_eq!(names(folder.path()), ["calibration.json", "calibration.json.lock"]);
}

/// On the device there is: what was measured is what copies are chosen by from then on, and it keeps what is in their memory.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn calibration_of_a_cuda_device_is_what_copies_are_chosen_by() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config = transload::cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = crate::uncalibrated::builder().cuda(config).discover().unwrap();
    let there = Place::new(DeviceId::Cuda(test.ordinal()), MemoryKind::Device);
    let kept = rt.alloc::<u8>(there.device, there.kind, 1 << 20).unwrap();
    let content = rt.host((0..1 << 20).map(|at| (at % 251) as u8).collect()).unwrap();
    rt.copy(&content, &kept).wait().unwrap();

    let found = calibrate(&rt).calibration;
    assert!(found.unfinished.is_empty(), "{:?}", found.unfinished);
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        let host = Place::new(DeviceId::Cpu, kind);
        for (src, dst) in [(host, there), (there, host)] {
            let path = found.paths.iter().find(|one| (one.path.src, one.path.dst) == (src, dst)).unwrap();
            for bytes in [4096, 16 << 10, 64 << 10] {
                let plan = rt.plan(src, dst, bytes).unwrap();
                assert_eq!(plan.basis, CostBasis::Measured, "{plan}");
                assert!(path.methods.iter().any(|measured| measured.method == plan.method), "{plan}");
            }
        }
    }
    assert_eq!(*rt.download(&kept).wait().unwrap(), *content.read().unwrap());
    let up = rt.plan(Place::new(DeviceId::Cpu, MemoryKind::Pageable), there, 1 << 20).unwrap().method;
    assert_eq!(rt.copy(&content, &kept).wait().unwrap().method, up);
    drop((kept, content));
    rt.drain().unwrap();
    drop(rt);
    test.assert_no_live_objects();
}
