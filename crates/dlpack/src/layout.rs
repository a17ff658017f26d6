//! Checks shapes and strides, and computes the bytes that they span.

use std::ffi::c_void;

use dlpark::tensor::{self, TensorRef};
use transload_core::{Error, ErrorKind, Result};

use crate::{DLDataType, Flags};

/// Returns the bits of an element, including all lanes.
pub(crate) fn element_bits(dtype: DLDataType) -> usize {
    usize::from(dtype.bits) * usize::from(dtype.lanes)
}

/// Converts an error about a description.
pub(crate) fn invalid(error: tensor::Error) -> Error {
    Error::caused_by(ErrorKind::InvalidArgument, "not a valid DLPack tensor", error)
}

/// Returns row-major strides without gaps.
pub(crate) fn compact(shape: &[i64]) -> Result<Vec<i64>> {
    tensor::compact_strides(shape).map_err(invalid)
}

/// Returns the number of elements of a shape.
fn count(shape: &[i64]) -> Result<usize> {
    let mut count = 1_usize;
    for (axis, length) in shape.iter().enumerate() {
        let length = usize::try_from(*length).map_err(|_| {
            let text = format!("dimension {axis} is {length}; valid: 0 or more");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        count = count.checked_mul(length).ok_or_else(too_large)?;
    }
    Ok(count)
}

/// Returns the number of bytes from the first element to the end of the last.
pub(crate) fn span_bytes(shape: &[i64], strides: &[i64], dtype: DLDataType) -> Result<usize> {
    if shape.len() != strides.len() {
        let text = format!("got {} strides for {} dimensions", strides.len(), shape.len());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let bits = element_bits(dtype);
    if bits == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "an element needs at least 1 bit and 1 lane"));
    }
    if count(shape)? == 0 {
        return Ok(0);
    }
    let mut last = 0_usize;
    for (length, stride) in shape.iter().zip(strides).filter(|(length, _)| **length > 1) {
        let stride = usize::try_from(*stride).map_err(|_| {
            let text = format!("a stride of {stride} would start before the buffer; valid: 0 or more");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let steps = usize::try_from(length - 1).map_err(|_| too_large())?;
        last = steps.checked_mul(stride).and_then(|far| far.checked_add(last)).ok_or_else(too_large)?;
    }
    let bits = last.checked_add(1).and_then(|elements| elements.checked_mul(bits)).ok_or_else(too_large)?;
    Ok(bits.div_ceil(8))
}

/// Returns the size in bytes and the strides of a dense tensor; fails for others.
pub(crate) fn dense(tensor: &TensorRef<'_>, flags: Flags) -> Result<(usize, Vec<i64>)> {
    let shape = tensor.shape();
    let strides = tensor.strides_or_compact().map_err(invalid)?.into_owned();
    let bits = element_bits(tensor.dtype());
    let whole = bits.is_multiple_of(8);
    if tensor.num_elements() != 0 && !is_dense(shape, &strides) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "a tensor of shape {shape:?} with strides {strides:?} is not dense: it has gaps between its elements, or \
                 elements share bytes; make it contiguous first"
            ),
        ));
    }
    if !whole && tensor.num_elements() != 0 && !is_row_major(shape, &strides)? {
        let text = format!("elements of {bits} bits must be row-major, got strides {strides:?}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let bytes = if flags.contains(Flags::IS_SUBBYTE_TYPE_PADDED) && !whole {
        tensor.num_elements().checked_mul(bits.div_ceil(8)).ok_or_else(too_large)?
    } else {
        tensor.num_bytes()
    };
    Ok((bytes, strides))
}

/// Returns whether the elements are contiguous in some order of the dimensions.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut steps: Vec<(i64, i64)> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|(_, length)| *length != 1).collect();
    steps.sort_unstable();
    let mut expected = 1_i64;
    steps.into_iter().all(|(stride, length)| {
        let fits = stride == expected;
        expected = expected.saturating_mul(length);
        fits
    })
}

/// Returns whether the elements are contiguous in the order of the dimensions. The stride of a dimension of length 1 has no meaning.
fn is_row_major(shape: &[i64], strides: &[i64]) -> Result<bool> {
    let mut steps = compact(shape)?.into_iter().zip(strides).zip(shape);
    Ok(steps.all(|((compact, stride), length)| *length == 1 || *stride == compact))
}

/// The address of tensors without bytes, which may have any, mostly null: aligned for every type.
const NO_BYTES: usize = 4096;

/// Returns the address of the first element.
pub(crate) fn address(data: *const c_void, offset: u64, bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Ok(NO_BYTES);
    }
    // The buffer's pointer will be made from this address.
    let base = data.expose_provenance();
    if data.is_null() {
        let text = format!("a tensor of {bytes} bytes has a null pointer for its data");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let start = usize::try_from(offset).ok().and_then(|offset| base.checked_add(offset));
    start
        .filter(|start| start.checked_add(bytes).is_some() && isize::try_from(bytes).is_ok())
        .ok_or_else(too_large)
}

fn too_large() -> Error {
    Error::new(ErrorKind::OutOfRange, "the tensor's size or address exceeds the address space")
}
