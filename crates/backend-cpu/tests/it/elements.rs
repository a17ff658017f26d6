//! Fills with elements of any size write exactly the buffer.

use transload_backend_cpu::CpuBackend;
use transload_core::{ErrorKind, Queue, fill};

use crate::{backend, lease, noise};

/// Fills all but the edges with an element, and compares everything.
fn fill_elements(backend: &CpuBackend, queue: &dyn Queue, element: &[u8], count: usize, start: usize) {
    let mut expected = noise(7, start + count * element.len() + 9);
    let buffer = backend.wrap_vec(expected.clone());
    let part = start..start + count * element.len();
    let fence = fill(queue, &buffer.slice(part.clone()).unwrap(), element).unwrap();
    fence.wait().unwrap();
    expected[part].chunks_mut(element.len()).for_each(|chunk| chunk.copy_from_slice(element));
    assert!(*buffer.read().unwrap() == expected[..], "{count} of {} bytes from {start} on", element.len());
}

#[test]
fn elements_of_any_size_fill_exactly_their_bytes() {
    let backend = backend(2, 1 << 20);
    let queue = lease(&backend);
    for bytes in [1, 2, 3, 4, 5, 8, 12, 16, 24, 31, 3072] {
        let element = noise(8, bytes);
        for count in [1, 2, 3, 15, 16, 17, 1003] {
            for start in [0, 3, 8, 16, bytes] {
                fill_elements(&backend, &*queue, &element, count, start);
            }
        }
        // Bytes that repeat.
        fill_elements(&backend, &*queue, &[element[0]].repeat(bytes), 100, 1);
    }
    fill_elements(&backend, &*queue, &noise(9, 24), 300_001, 8);
    fill_elements(&backend, &*queue, &noise(9, 16), 300_001, 16);
}

#[test]
fn misfit_elements_are_refused_and_none_completes() {
    let backend = backend(2, 1 << 20);
    let queue = lease(&backend);
    let buffer = backend.wrap_vec(vec![1_u8; 100]);
    for element in [&[0; 0][..], &[0; 3], &[0; 16], &[0; 101]] {
        let error = fill(&*queue, &buffer, element).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    fill(&*queue, &buffer.slice(5..5).unwrap(), &[1, 2, 3]).unwrap().wait().unwrap();
    assert_eq!(*buffer.read().unwrap(), [1; 100]);
    let read_only = backend.wrap_readonly(vec![1; 12]);
    let error = fill(&*queue, &read_only, &[1, 2, 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(*read_only.read().unwrap(), [1; 12]);
}
