//! Records of activities, built by the offsets of CUPTI's headers.

use super::*;

/// Of every version's size at least.
fn record(fields: &[(usize, u64, usize)]) -> Vec<u8> {
    let mut bytes = vec![0xA5; 248];
    for (at, value, length) in fields {
        bytes[*at..at + length].copy_from_slice(&value.to_ne_bytes()[..*length]);
    }
    bytes
}

fn work(task: EngineTask, engine: Option<Engine>, bytes: u64) -> Activity {
    let (call, device) = (77, DeviceId::Cuda(3));
    Activity::Known(EngineRecord::Worked(EngineWork {
        call,
        device,
        task,
        engine,
        bytes,
        begin: 500,
        end: 900,
    }))
}

#[test]
fn work_has_its_engine_and_direction() {
    let times = [(8, 4096, 8), (16, 500, 8), (24, 900, 8)];
    let copy = |kind, channel| {
        let fields = [(0, 1, 4), (4, kind, 1), (32, 3, 4), (44, 77, 4), (80, channel, 4)];
        read(&record(&[&times[..], &fields].concat()))
    };
    assert_eq!(copy(1, 2), work(EngineTask::CopyToDevice, Some(Engine::Copy), 4096));
    assert_eq!(copy(2, 2), work(EngineTask::CopyFromDevice, Some(Engine::Copy), 4096));
    assert_eq!(copy(8, 1), work(EngineTask::CopyWithin, Some(Engine::Compute), 4096));
    assert_eq!(copy(8, 9), work(EngineTask::CopyWithin, None, 4096));
    let peer = [(0, 22, 4), (32, 3, 4), (60, 77, 4), (88, 2, 4)];
    assert_eq!(
        read(&record(&[&times[..], &peer].concat())),
        work(EngineTask::CopyWithin, Some(Engine::Copy), 4096)
    );
    let fill = [(0, 2, 4), (32, 3, 4), (44, 77, 4), (80, 1, 4)];
    assert_eq!(
        read(&record(&[&times[..], &fill].concat())),
        work(EngineTask::Fill, Some(Engine::Compute), 4096)
    );
    let kernel = [(0, 10, 4), (40, 3, 4), (92, 77, 4), (172, 1, 4)];
    assert_eq!(
        read(&record(&[&times[..], &kernel].concat())),
        work(EngineTask::Kernel, Some(Engine::Compute), 0)
    );
}

#[test]
fn work_in_flight_and_cut_off_records_are_incomplete() {
    let kernel = |begin, end| {
        record(&[(0, 10, 4), (16, begin, 8), (24, end, 8), (40, 3, 4), (92, 77, 4), (172, 1, 4)])
    };
    assert_eq!(read(&kernel(0, 0)), Activity::Incomplete);
    assert_eq!(read(&kernel(500, 0)), Activity::Incomplete);
    assert_eq!(read(&kernel(500, 900)[..175]), Activity::Incomplete);
    assert_ne!(read(&kernel(500, 900)[..176]), Activity::Incomplete);
    assert_eq!(read(&[1, 0]), Activity::Incomplete);
}

#[test]
fn calls_of_other_users_are_foreign() {
    let call = |kind, number| record(&[(0, 39, 4), (4, kind, 4), (8, number, 8), (16, 77, 4)]);
    let operation = OperationId::of_number(12).unwrap();
    assert_eq!(read(&call(5, 12)), Activity::Known(EngineRecord::Called { call: 77, operation }));
    assert_eq!(read(&call(3, 12)), Activity::Foreign);
    assert_eq!(read(&call(5, 0)), Activity::Incomplete);
    assert_eq!(read(&record(&[(0, 4, 4)])), Activity::Foreign, "an API call's record");
}
