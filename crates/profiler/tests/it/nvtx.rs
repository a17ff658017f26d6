//! Ranges as a tool is told them: by a library of our own, in another process.
//!
//! To see those of a real tool, run the tests' program under Nsight Compute, which then profiles one kernel of two:
//! `TRANSLOAD_TEST_DRIVER=real TRANSLOAD_TEST_NVTX=kernel ncu --nvtx --nvtx-include transload@inside PROGRAM nvtx::child --exact --nocapture`.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, StreamPriority, TransferMethod, WorkloadType,
};
use transload_cuda_sim::harness;
use transload_transfer::CrossBackendTransferManager;

use crate::timing_all;

/// The variable that names a tool's library.
const LIBRARY: &str = "NVTX_INJECTION64_PATH";
const LOG: &str = "NVTX_TEST_LOG";
/// What [`child`] expects.
const CHILD: &str = "TRANSLOAD_TEST_NVTX";

fn start(mode: &str, library: &Path, log: Option<&Path>) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["nvtx::child", "--exact"]).env(CHILD, mode).env(LIBRARY, library);
    match log {
        Some(log) => command.env(LOG, log),
        None => command.env_remove(LOG),
    };
    command.output().unwrap()
}

fn assert_passed(ran: &Output) {
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// What a program with a tool does: nothing unless another test started it.
#[test]
fn child() {
    let Ok(mode) = env::var(CHILD) else { return };
    let profiler = timing_all();
    if !["ranges", "kernel"].contains(&&*mode) {
        let error = profiler.enable_nvtx().unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(&mode), "{error}");
        return;
    }
    let test = harness::device_like(|device| device);
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let device = DeviceId::Cuda(test.ordinal());
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 1 << 20).unwrap();
    let dst = manager.allocate(device, MemoryKind::Device, 1 << 20).unwrap();
    src.write().unwrap().fill(1);
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    if mode == "kernel" {
        println!("{LIBRARY}={:?}", env::var_os(LIBRARY));
        assert!(profiler.enable_nvtx().unwrap(), "{LIBRARY} names no tool");
        profiler.enable().unwrap();
        let by_kernel = || manager.copy(&src, &dst).method(TransferMethod::ZeroCopy).wait().unwrap();
        by_kernel();
        let inside = profiler.operation(&*queue, "inside").unwrap();
        println!("A kernel ran in no range. In the range transload@inside: {}", by_kernel());
        inside.end().unwrap();
        return;
    }

    assert!(profiler.enable_nvtx().unwrap());
    assert!(profiler.enable_nvtx().unwrap(), "again");
    manager.copy(&src, &dst).wait().unwrap();
    profiler.enable().unwrap();
    let step = profiler.operation(&*queue, "step \"1\"\0 and more").unwrap();
    manager.copy(&src, &dst).wait().unwrap();
    drop(manager.copy(&src, &dst).submit());
    step.end().unwrap();
    manager.drain().unwrap();
    let kept = manager.copy(&src, &dst).submit();
    profiler.disable();
    kept.wait().unwrap();
    manager.copy(&src, &dst).wait().unwrap();
    profiler.enable().unwrap();
    let failing = manager.copy(&src, &dst).submit();
    // An access that is not allowed, which the next call learns of.
    test.sim().unwrap().fail_call(None, 1, 700);
    failing.wait().unwrap_err();
}

#[test]
fn ranges_are_balanced_however_transfers_end() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let folder = env::temp_dir().join(format!("transload-nvtx-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (library, log) = (folder.join("libinjection.so"), folder.join("log"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvtx/injection.c");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    match compile.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return;
        }
    }
    assert_passed(&start("ranges", &library, Some(&log)));
    let copy = "DirectCopy cpu/pinned to cuda:0/device, 1048576";
    let expected = [
        "domain transload".to_owned(),
        "start 1 step \"1\", 0".to_owned(),
        format!("start 2 {copy}"),
        "end 2".to_owned(),
        format!("start 3 {copy}"),
        "end 3".to_owned(),
        "end 1".to_owned(),
        format!("start 4 {copy}"),
        "end 4".to_owned(),
        format!("start 5 {copy}"),
        "end 5".to_owned(),
    ];
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);

    let log_of_kernel = folder.join("kernel");
    assert_passed(&start("kernel", &library, Some(&log_of_kernel)));
    let kernel = "ZeroCopy cpu/pinned to cuda:0/device, 1048576";
    let expected = [
        "domain transload".to_owned(),
        format!("start 1 {kernel}"),
        "end 1".to_owned(),
        "start 2 inside, 0".to_owned(),
        format!("start 3 {kernel}"),
        "end 3".to_owned(),
        "end 2".to_owned(),
    ];
    let log = fs::read_to_string(&log_of_kernel).unwrap();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
    assert_passed(&start("refused to be initialised", &library, None));
    assert_passed(&start("cannot be loaded", &folder.join("missing.so"), None));
    assert_passed(&start("is no library of a tool", Path::new("libc.so.6"), None));
    fs::remove_dir_all(&folder).unwrap();
}
