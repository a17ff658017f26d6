//! A host view and an operation never touch the same bytes at once.

use std::thread;

use transload_backend_cpu::CpuBuffer;
use transload_core::{Buffer, ErrorKind, Operation, Pattern, Timing, conformance, submit};

use crate::{allocate, backend, gate::Gate, lease};

#[test]
fn try_read_in_flight_is_busy_and_read_waits() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let buffer = CpuBuffer::<u32>::new(&backend, 100_000).unwrap();
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U32(77) };
    submit(&*queue, &fill, Timing::Off).unwrap();
    assert_eq!(buffer.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(buffer.try_write().unwrap_err().kind(), ErrorKind::Busy);
    thread::scope(|scope| {
        let reader = scope.spawn(|| buffer.read().unwrap().iter().all(|element| *element == 77));
        gate.open();
        assert!(reader.join().unwrap());
    });
    assert!(buffer.try_read().is_ok());
}

#[test]
fn open_view_refuses_operations_until_closed() {
    let backend = backend(1, usize::MAX);
    let (a, b) = (allocate(&backend, 100), allocate(&backend, 100));
    let queue = lease(&backend);
    let try_copy = || submit(&*queue, &Operation::Copy { src: &a, dst: &b }, Timing::Off).map(|_| ());

    let view = a.read().unwrap();
    try_copy().expect("reading beside a reader");
    drop(view);
    for view in [a.write().unwrap(), b.write().unwrap()] {
        assert_eq!(try_copy().unwrap_err().kind(), ErrorKind::Busy);
        drop(view);
    }
    let view = b.read().unwrap();
    assert_eq!(try_copy().unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    try_copy().unwrap();
}

#[test]
fn typed_buffers_fill_and_copy_both_ways() {
    let backend = backend(1, usize::MAX);
    let buffer = CpuBuffer::from_slice(&backend, &[[1.5_f32; 3], [2.5; 3]]).unwrap();
    let dynamic: &dyn Buffer<[f32; 3]> = &buffer;
    assert_eq!(dynamic.len(), 2);
    let mut out = [[0.0; 3]; 2];
    dynamic.copy_to_host(&mut out).unwrap();
    assert_eq!(out, [[1.5; 3], [2.5; 3]]);
    dynamic.fill([9.0; 3]).unwrap();
    assert_eq!(*buffer.read().unwrap(), [[9.0; 3]; 2]);
    buffer.write().unwrap()[1][2] = 0.5;
    assert_eq!(buffer.clone().read().unwrap()[1], [9.0, 9.0, 0.5]);
    conformance::typed_buffer(&CpuBuffer::<u16>::new(&backend, 13).unwrap(), 1, 2).unwrap();
    conformance::typed_buffer(&CpuBuffer::<[u8; 3]>::new(&backend, 1001).unwrap(), [1; 3], [1, 2, 3])
        .unwrap();
}
