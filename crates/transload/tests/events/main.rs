//! The runtime's events, in the situations that `transload_core::events` names. A program of its own, since the subscriber is the
//! process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;
#[path = "../../../streams/tests/it/support/programs.rs"]
mod programs;
#[path = "../it/uncalibrated.rs"]
mod uncalibrated;

use event_log::{find_one, record};
use transload_core::events;

#[test]
fn absent_family_is_reported_with_the_reason() {
    let records = record(|| {
        let runtime = crate::uncalibrated::builder().without("cuda").discover().unwrap();
        runtime.drain().unwrap();
    });
    let absent = find_one(&records, events::FAMILY_ABSENT, events::DRIVER, &["error"]);
    assert_eq!(absent.field("family"), Some("cuda"));
}

#[test]
fn dropping_the_last_handle_emits_what_was_noticed() {
    let records = record(|| {
        let runtime = crate::uncalibrated::builder().without("cuda").discover().unwrap();
        events::report::drop_failed(&"the cause");
        drop(runtime);
    });
    find_one(&records, events::DROP_FAILED, events::DRIVER, &["error"]);
}

/// In a process of its own, which has the variable.
#[cfg(feature = "profiler")]
#[test]
fn trace_of_the_environment_is_reported() {
    use transload::profiler::TRACE_VARIABLE;

    const CHILD: &str = "TRANSLOAD_TEST_TRACED";
    let runtime = || crate::uncalibrated::builder().without("cuda").discover().unwrap();
    if let Some(file) = std::env::var_os(CHILD) {
        let (records, failing) = (record(|| drop(runtime())), !std::path::Path::new(&file).is_file());
        let (name, fields) = match failing {
            false => (events::TRACE_WRITTEN, ["file", "contents"]),
            true => (events::TRACE_FAILED, ["file", "error"]),
        };
        let event = find_one(&records, name, events::TRANSFER, &fields);
        assert_eq!(event.field("file"), file.to_str());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for file in [folder.path().join("trace"), folder.path().join("not/there")] {
        let mut child = programs::this_program();
        child.args(["trace_of_the_environment_is_reported", "--exact"]).env(TRACE_VARIABLE, &file);
        let output = child.env(CHILD, &file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let told = String::from_utf8_lossy(&output.stderr);
        let failed = !file.is_file();
        assert_eq!(told.contains("TRANSLOAD_TRACE: not recorded"), failed, "{told}");
    }
    assert!(folder.path().join("trace").is_file());
}

#[cfg(feature = "calibration")]
#[test]
fn calibration_that_is_not_used_or_not_kept_is_reported() {
    use transload::{
        Runtime,
        calibration::{CalibrationOptions, CalibrationStore},
    };

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    std::fs::write(&file, "damaged").unwrap();
    let over = |file: std::path::PathBuf| {
        Runtime::builder().without("cuda").calibration(CalibrationStore::File(file)).discover().unwrap()
    };
    let records = record(|| drop(over(file.clone())));
    let ignored = find_one(&records, events::CALIBRATION_IGNORED, events::TRANSFER, &["file", "error"]);
    assert_eq!(ignored.field("file"), file.to_str());
    assert!(ignored.field("error").unwrap().contains("is no calibration"), "{ignored:?}");

    let records = record(|| {
        let rt = over(file.join("a file is no folder"));
        let options = CalibrationOptions::new().largest(1024).progress(|_| std::ops::ControlFlow::Break(()));
        rt.calibrate(&options).unwrap().stored.unwrap_err();
    });
    find_one(&records, events::CALIBRATION_NOT_STORED, events::TRANSFER, &["error"]);
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda {
    use std::io::Cursor;

    use transload::io::Blocking;
    use transload_core::events;
    use transload_cuda_sim::{SimDevice, install};

    use crate::event_log::{find_one, record};

    #[test]
    fn pageable_staging_memory_is_reported() {
        install().unwrap();
        let records = record(|| {
            let sim = SimDevice::builder().build();
            let config = transload::cuda::CudaBackendConfig::default().with_devices([sim.ordinal()]);
            let rt = crate::uncalibrated::builder().cuda(config).pinned_limit(100).discover().unwrap();
            let there = rt.cuda(sim.ordinal()).unwrap().alloc::<u8>(1000).unwrap();
            let source = Blocking::new(rt.manager(), Cursor::new(vec![7; 1000]));
            pollster::block_on(rt.read_from(source, &there).chunk(1000).buffers(1).into_future()).unwrap();
            assert!(rt.download(&there).wait().unwrap().iter().all(|byte| *byte == 7));
            rt.drain().unwrap();
        });
        let declined = find_one(&records, events::PAGES_DECLINED, events::MEMORY, &["error"]);
        assert_eq!(declined.field("what"), Some("pinned staging memory"));
    }

    #[cfg(feature = "dlpack")]
    #[test]
    fn loan_that_a_capture_prolongs_is_reported() {
        use transload_core::MemoryKind;
        use transload_cuda_sys::{AsStream, Capture, CaptureMode};
        use transload_dlpack::Export;
        use transload_streams::CudaStream;

        install().unwrap();
        let records = record(|| {
            let sim = SimDevice::builder().build();
            let device = transload_memory::CudaDevice::new(sim.ordinal()).unwrap();
            let memory = transload_memory::CudaMemoryManager::new(&device).unwrap();
            let there = memory.allocate(MemoryKind::Device, 1000).unwrap();
            let theirs = CudaStream::new(&device).unwrap();
            let lent = Export::of::<u8>(&there).for_stream(&theirs).versioned().unwrap();
            let _exposed = theirs.as_raw();
            // SAFETY: nothing else is enqueued on the stream meanwhile.
            let capture = unsafe { Capture::begin(&theirs, CaptureMode::Relaxed) }.unwrap();
            drop(lent);
            drop(capture.end().unwrap());
            CudaStream::drain_loan_ends(theirs.device()).unwrap();
            drop(there);
            memory.drain().unwrap();
        });
        let later = find_one(&records, events::CALL_FAILED, events::DRIVER, &["device", "error"]);
        assert_eq!(later.field("what"), Some("a loan ends later"));
    }
}
