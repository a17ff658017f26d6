//! Exports and imports with injected faults and race checks, on the software driver only.
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their tests"
)]

mod lost;
#[path = "../it/producer.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod producer;
#[path = "../it/setup.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod setup;

use transload_core::{ErrorKind, MemoryKind, Pattern, RawBuffer, Result};
use transload_cuda_sim::harness;
use transload_dlpack::{
    ConsumerStream, DLDataType, DLDevice, DLManagedTensorVersioned, Export, ManagedTensor,
};
use transload_streams::CudaStream;

use crate::{
    producer::{Said, delete},
    setup::Setup,
};

const BYTES: usize = 200_000;

fn address(tensor: *mut DLManagedTensorVersioned) -> u64 {
    // SAFETY: a valid tensor until it is deleted.
    unsafe { (*tensor).dl_tensor.data.addr() as u64 }
}

/// Uses memory on a stream of its own, like another library.
fn use_it(stream: &CudaStream, at: u64, byte: u8) -> Result<()> {
    // SAFETY: the memory is lent, or the test's own, and alive.
    unsafe { stream.memset_raw_async(at, Pattern::U8(byte), BYTES) }
}

fn import(setup: &Setup, stream: &CudaStream, owner: &RawBuffer) -> Result<(RawBuffer, producer::Deleted)> {
    let data = std::ptr::without_provenance_mut(owner.device_address().unwrap() as usize);
    let device = DLDevice::cuda(i32::try_from(setup.device.ordinal()).unwrap());
    let said = Said { device, dtype: DLDataType::U8, ..Said::floats(data, BYTES as i64) };
    let fence = stream.fence()?;
    let (raw, deleted) = said.versioned();
    // SAFETY: only the producer's stream, whose fence this is, uses the owner's memory meanwhile.
    let tensor = unsafe { ManagedTensor::from_raw(raw, &[fence]) }?;
    Ok((setup.importer.import(tensor)?.into_buffer(), deleted))
}

/// A setup for tests that race or leak on purpose.
fn unchecked(test: harness::TestDevice) -> Setup {
    let mut setup = Setup::on(test);
    std::mem::forget(setup._end.take());
    setup
}

#[test]
fn export_and_import_have_no_race_for_fifty_seeds() {
    for seed in 0..50 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed).record_accesses(true)) else {
            return;
        };
        let setup = Setup::on(test);
        let [ours, other, theirs] = [(); 3].map(|()| CudaStream::new(&setup.device).unwrap());
        let (there, owner) = (setup.device(BYTES), setup.device(BYTES));
        let host = setup.pinned(&vec![0; BYTES]);
        drop(ours.memset_async(&there, Pattern::U8(1)));
        let lent = Export::of::<u8>(&there).for_stream(&theirs).versioned().unwrap().into_raw();
        use_it(&theirs, address(lent), 2).unwrap();
        delete(lent);
        drop(other.copy_to_host_async(&there, &host));
        // Lend it again while it is read, and import it.
        let lent = Export::of::<u8>(&there).for_stream(&theirs).versioned().unwrap();
        let again = setup.importer.import(lent).unwrap().into_buffer();
        drop(ours.memset_async(&again, Pattern::U8(3)));
        drop(again);
        // The loan ends when that is complete.
        setup.importer.drain().unwrap();
        // A producer's memory, on its stream and then on ours.
        use_it(&theirs, owner.device_address().unwrap(), 4).unwrap();
        let (imported, deleted) = import(&setup, &theirs, &owner).unwrap();
        drop(other.copy_device_to_device_async(&imported, &there));
        drop(imported);
        setup.importer.drain().unwrap();
        assert_eq!(deleted.times(), 1, "seed {seed}");
        assert!(host.read().unwrap().iter().all(|byte| *byte == 2), "seed {seed}");
        assert!(setup.read(&there).iter().all(|byte| *byte == 4), "seed {seed}");
        drop((there, owner, host, ours, other, theirs));
        setup.finish();
    }
}

#[test]
fn unordered_consumer_is_reported_as_race() {
    let Some(test) = harness::device_with(|builder| builder.record_accesses(true)) else { return };
    let setup = unchecked(test);
    let [ours, theirs] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
    let there = setup.device(BYTES);
    drop(ours.memset_async(&there, Pattern::U8(1)));
    let export = Export::of::<u8>(&there);
    // SAFETY: the promise is broken on purpose; the software driver notes it.
    let lent = unsafe { export.for_consumer(&setup.device, ConsumerStream::NoSync) }.unwrap().versioned();
    let lent = lent.unwrap().into_raw();
    use_it(&theirs, address(lent), 2).unwrap();
    theirs.synchronize().unwrap();
    ours.synchronize().unwrap();
    assert!(!test.sim().unwrap().races().is_empty());
    delete(lent);
}

#[test]
fn each_failing_driver_call_is_a_typed_error_and_nothing_is_lost() {
    fn scenario(setup: &Setup) -> Result<()> {
        let [ours, theirs] = [CudaStream::new(&setup.device)?, CudaStream::new(&setup.device)?];
        let there = setup.memory.allocate(MemoryKind::Device, BYTES)?;
        let owner = setup.memory.allocate(MemoryKind::Device, BYTES)?;
        drop(ours.memset_async(&there, Pattern::U8(1)));
        let lent = Export::of::<u8>(&there).for_stream(&theirs).versioned()?;
        drop(setup.importer.import(lent)?);
        let (imported, deleted) = import(setup, &theirs, &owner)?;
        drop(imported);
        setup.importer.drain()?;
        assert_eq!(deleted.times(), 1);
        Ok(())
    }
    let mut call = 1;
    loop {
        let Some(test) = harness::device_with(|builder| builder) else { return };
        let (setup, sim) = (unchecked(test), test.sim().unwrap());
        let before = sim.calls();
        sim.fail_call(None, call, 999);
        let outcome = scenario(&setup);
        let was_reached = sim.calls() - before >= call;
        // How often a thread polls for the end of work varies, so the call may be yet to come.
        while sim.calls() - before < call {
            let _failed_by_design = CudaStream::new(&setup.device);
        }
        if let Err(error) = &outcome {
            assert!(!error.to_string().is_empty(), "call {call}");
        }
        // A loan that could not be ended by its deleter ends at a later export.
        let probe = setup.device(64);
        drop(Export::of::<u8>(&probe).versioned().unwrap());
        drop(probe);
        assert!(setup.importer.drain().is_ok(), "call {call}");
        assert!(
            setup.importer.resource_counts().is_empty(),
            "call {call}: {}",
            setup.importer.resource_counts()
        );
        let _failed_by_design = setup.memory.drain();
        if !was_reached {
            outcome.unwrap();
            assert!(call > 20, "only {call} calls were tried");
            return;
        }
        call += 1;
    }
}

#[test]
fn failed_loan_end_is_retried() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let setup = Setup::on(test);
    let theirs = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(BYTES);
    let lent = Export::of::<u8>(&there).for_stream(&theirs).versioned().unwrap();
    test.sim().unwrap().fail_call(Some("cuEventRecord"), 1, 999);
    drop(lent);
    // Retried by this export, before it lends.
    drop(Export::of::<u8>(&there).versioned().unwrap());
    drop((there, theirs));
    setup.finish();
}

#[test]
fn failed_pointer_query_returns_the_tensor() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let setup = Setup::on(test);
    let there = setup.device(BYTES);
    let tensor = Export::of::<u8>(&there).versioned().unwrap();
    test.sim().unwrap().fail_call(Some("cuPointerGetAttribute"), 2, 999);
    let refused = setup.importer.import(tensor).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::Device);
    let there_again = setup.importer.import(refused.into_tensor()).unwrap();
    drop((there, there_again));
    setup.finish();
}

#[test]
fn unified_memory_without_host_access_has_no_host_export() {
    let Some(test) = harness::device_with(|builder| builder.concurrent_managed_access(false)) else { return };
    let setup = Setup::on(test);
    let unified = setup.memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    let refused = Export::of::<u8>(&unified).on_device(DLDevice::CPU).versioned().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let there = setup.importer.import(Export::of::<u8>(&unified).versioned().unwrap()).unwrap();
    assert_eq!(there.buffer().place(), unified.place());
    assert_eq!(there.buffer().host_address(), None);
    assert_eq!(there.buffer().read().unwrap_err().kind(), ErrorKind::Unsupported);
    drop((unified, there));
    setup.finish();
}
