//! Work of two devices of which one is lost: the other is still used.

use transload::{DeviceId, ErrorKind, FloatType, MemoryKind};
use transload_cuda_sim::SimDeviceBuilder;

use crate::{peers::pair, setup::Setup};

const ILLEGAL_ADDRESS: u32 = 700;
const BYTES: usize = 4096;

/// Checks that one device takes copies, and that the other is refused.
fn assert_only_lost(setup: &Setup, lost: usize) {
    let host = setup.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    let there = setup.on(1 - lost, BYTES);
    setup.manager.copy(&host, &there).wait().unwrap();
    setup.manager.copy(&there, &host).wait().unwrap();
}

#[test]
fn replay_between_a_lost_device_and_another_blames_the_lost_one() {
    for lost in [0, 1] {
        let Some(setup) = pair(|builder: SimDeviceBuilder| builder) else { return };
        let (from, to, host) = (setup.on(0, BYTES), setup.on(1, BYTES), setup.pinned(&[0; BYTES]));
        let of_lost = if lost == 0 { from.clone() } else { to.clone() };
        let recorded = setup.manager.copy_many(&[(from, to)]).record().unwrap();
        recorded.replay().wait().unwrap();
        setup.tests[lost].sim().unwrap().poison(ILLEGAL_ADDRESS);
        let met = setup.manager.copy(&host, &of_lost).wait().unwrap_err();
        assert_eq!(met.kind(), ErrorKind::DeviceLost);
        let refused = recorded.replay().wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DeviceLost);
        assert_only_lost(&setup, lost);
    }
}

#[test]
fn cast_from_a_device_that_is_lost_blames_that_one() {
    for lost in [0, 1] {
        let Some(setup) = pair(|builder: SimDeviceBuilder| builder) else { return };
        let (narrow, wide) = (setup.on(0, BYTES), setup.on(1, 2 * BYTES));
        let cast = || setup.manager.cast((&narrow, FloatType::Bf16), (&wide, FloatType::F32));
        cast().wait().unwrap();
        let cast = cast().submit();
        setup.tests[lost].sim().unwrap().poison(ILLEGAL_ADDRESS);
        assert_eq!(cast.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
        assert_only_lost(&setup, lost);
    }
}
