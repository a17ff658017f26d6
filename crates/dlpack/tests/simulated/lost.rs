//! Exports to a device that is lost.

use transload_core::Access;
use transload_cuda_sim::harness;
use transload_dlpack::Export;
use transload_streams::CudaStream;

#[test]
fn loan_to_lost_device_ends_at_once() {
    const ILLEGAL_ADDRESS: u32 = 700;
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let setup = crate::unchecked(test);
    let theirs = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(4096);
    let tensor = Export::of::<f32>(&there).for_stream(&theirs).versioned().unwrap();
    assert!(there.lend(Access::Read).is_err(), "the consumer has it");
    setup.test.sim().unwrap().poison(ILLEGAL_ADDRESS);
    drop(tensor);
    assert!(there.lend(Access::Write).is_ok());
}
