//! A driver call that fails while operations are profiled: the operation ends as without a profiler.

use std::{cell::Cell, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    ErrorKind, MemoryKind, Operation, OperationRecord, OperationSampling, OperationSink, Queue, Timing,
    submit,
};
use transload_cuda_sim::harness;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use crate::{UNKNOWN, alone_with_drop_errors};

#[derive(Default)]
struct Recorder(Mutex<Vec<OperationRecord>>);

impl OperationSink for Recorder {
    fn operation(&self, record: OperationRecord) {
        self.0.lock().push(record);
    }
}

/// Copies there and back; with a profiler if `sampling` is given. Returns how many of the runs with a failed call fail, and the number of runs.
fn failing_runs(sampling: Option<OperationSampling>) -> (u64, u64) {
    const COPIES: usize = 3;
    let failed = Cell::new(0);
    let runs = harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &[ErrorKind::Device],
        |sim| {
            let device = CudaDevice::new(sim.ordinal())?;
            let memory = CudaMemoryManager::new(&device)?;
            let recorder = Arc::new(Recorder::default());
            let sink: Arc<dyn OperationSink> = Arc::clone(&recorder) as _;
            if let Some(sampling) = sampling {
                device.profile().sink().attach(Arc::clone(&sink), sampling)?;
            }
            let scenario = || {
                let stream = CudaStream::new(&device)?;
                let (host, there) =
                    (memory.allocate(MemoryKind::Pinned, 9000)?, memory.allocate(MemoryKind::Device, 9000)?);
                let back = memory.allocate(MemoryKind::Pinned, 9000)?;
                host.write()?.fill(7);
                for _ in 0..COPIES {
                    submit(&stream, &Operation::Copy { src: &host, dst: &there }, Timing::Off)?;
                    submit(&stream, &Operation::Copy { src: &there, dst: &back }, Timing::Off)?.wait()?;
                }
                assert!(back.read()?.iter().all(|byte| *byte == 7));
                stream.synchronize()
            };
            let outcome = scenario();
            if outcome.is_err() {
                failed.set(failed.get() + 1);
            }
            let records = std::mem::take(&mut *recorder.0.lock());
            assert!(records.len() <= 2 * COPIES);
            for record in &records {
                if let (Ok(Some(begin)), Ok(Some(end))) = (record.begin.time(), record.end.time()) {
                    assert!(begin <= end, "{begin} {end}");
                }
            }
            device.profile().sink().detach(&sink);
            drop(records);
            let drained = memory.drain();
            outcome.and(drained)
        },
    );
    (failed.get(), runs)
}

#[test]
fn failed_call_of_profiling_fails_no_operation() {
    let _alone = alone_with_drop_errors();
    let (plain, calls) = failing_runs(None);
    let (profiled, more_calls) = failing_runs(Some(OperationSampling::ALL));
    println!("{plain} of {calls} calls fail the copies, with a profiler {profiled} of {more_calls}");
    assert!(more_calls > calls && plain > 0);
    assert_eq!(profiled, plain, "a call that only the profiler makes fails a copy");
}

#[test]
fn failed_call_of_a_stamp_or_an_anchor_is_its_error() {
    let _alone = alone_with_drop_errors();
    let failed = Cell::new(0);
    let runs = harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &[ErrorKind::Device],
        |sim| {
            let device = CudaDevice::new(sim.ordinal())?;
            let stream = CudaStream::new(&device)?;
            let scenario = || {
                let (one, two) = (stream.stamp()?, stream.stamp()?);
                let anchor = one.clock().anchor()?;
                stream.synchronize()?;
                let times = (one.time()?, two.time()?);
                assert!(times.0.is_some() && times.0 <= times.1, "{times:?} {anchor:?}");
                Ok(())
            };
            let outcome: transload_core::Result<()> = scenario();
            failed.set(failed.get() + u64::from(outcome.is_err()));
            // What failed once is made the next time.
            let again = scenario();
            assert!(outcome.is_ok() || again.is_ok(), "{outcome:?} {again:?}");
            outcome
        },
    );
    assert!(runs > 20 && failed.get() > 10, "{} of {runs}", failed.get());
}
