//! Typed buffers: fills and copies of the whole, of a prefix and of a part.

use std::fmt::Debug;

use super::Failure;
use crate::{Buffer, ErrorKind, Pod, Result};

/// Checks the promises of [`Buffer`] on a buffer of at least 3 elements. `a` and `b` are different values.
///
/// # Errors
/// The first broken promise.
pub fn typed_buffer<T: Pod + PartialEq + Debug>(buffer: &dyn Buffer<T>, a: T, b: T) -> Result<(), Failure> {
    check(buffer, a, b).map_err(|failure| Failure { check: "typed-buffer", ..failure })
}

fn check<T: Pod + PartialEq + Debug>(buffer: &dyn Buffer<T>, a: T, b: T) -> Result<(), Failure> {
    let len = buffer.len();
    ensure!(len >= 3 && a != b, "the check needs 3 elements and two different values");
    ensure_eq!(buffer.is_empty(), false, "is_empty");
    ensure_eq!(buffer.raw().len(), len * size_of::<T>(), "the length in bytes");

    let mut expected = vec![a; len];
    buffer.fill(a)?;
    expect(buffer, &expected, b, "a fill")?;

    expected.iter_mut().step_by(3).for_each(|element| *element = b);
    buffer.copy_from_host(&expected)?;
    expect(buffer, &expected, a, "a copy of all elements")?;

    let swapped: Vec<T> = expected.iter().map(|element| if *element == a { b } else { a }).collect();
    let part = len / 2;
    expected[..part].copy_from_slice(&swapped[..part]);
    buffer.copy_from_host(&swapped[..part])?;
    expect(buffer, &expected, b, "a copy of a prefix")?;

    let last = [expected[len - 1], expected[len - 2]].map(|element| if element == a { b } else { a });
    expected[len - 2..].copy_from_slice(&last);
    buffer.copy_from_host_at(len - 2, &last)?;
    expect(buffer, &expected, b, "a copy to the last two elements")?;

    let mut found = swapped;
    buffer.copy_to_host(&mut found[..part])?;
    buffer.copy_to_host_at(1, &mut found[part..len - 1])?;
    ensure!(found[..part] == expected[..part], "a prefix has other elements");
    ensure!(found[part..len - 1] == expected[1..len - part], "the part from element 1 on has other elements");

    buffer.copy_from_host_at(len, &[])?;
    buffer.copy_to_host_at(len, &mut [])?;
    let mut longer = vec![a; len + 1];
    for (offset, count) in [(0, len + 1), (1, len), (len, 1), (len + 1, 0), (usize::MAX, 2)] {
        for outcome in [
            buffer.copy_from_host_at(offset, &longer[..count]),
            buffer.copy_to_host_at(offset, &mut longer[..count]),
        ] {
            let kind = outcome.err().map(|error| error.kind());
            ensure_eq!(kind, Some(ErrorKind::OutOfRange), "{count} elements at {offset} of {len}");
        }
    }
    ensure!(longer.iter().all(|element| *element == a), "a refused copy wrote to its destination");
    expect(buffer, &expected, a, "a refused copy")
}

/// Checks all elements, read into memory that has the value `other`.
#[track_caller]
fn expect<T: Pod + PartialEq + Debug>(
    buffer: &dyn Buffer<T>,
    expected: &[T],
    other: T,
    after: &str,
) -> Result<(), Failure> {
    let mut found = vec![other; expected.len()];
    buffer.copy_to_host(&mut found)?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => fail!("element {at} after {after} is {:?}, not {:?}", found[at], expected[at]),
        None => Ok(()),
    }
}
