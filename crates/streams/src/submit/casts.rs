//! Casts of elements by a kernel, between memories that the device accesses in place.

use transload_core::{Error, ErrorKind, FloatType, RawBuffer, Result};
use transload_cuda_sys::{DriverError, RawStream};

use super::{addresses::in_place, kernels::Kernels};
use crate::CudaStream;

/// A checked cast: addresses, and the numbers of their types.
pub(crate) struct Cast<'a> {
    kernels: &'a Kernels,
    src: (u64, u32),
    dst: (u64, u32),
    elements: usize,
}

impl<'a> Cast<'a> {
    /// # Errors
    /// `Unsupported` for memory that the device does not access, and without kernels; `InvalidArgument` for an address that is not
    /// aligned; the driver's.
    pub(super) fn new(
        (src, from): (&RawBuffer, FloatType),
        (dst, to): (&RawBuffer, FloatType),
        stream: &'a CudaStream,
    ) -> Result<Self> {
        let (src, dst, elements) = (side(src, from, stream)?, side(dst, to, stream)?, dst.len() / to.size());
        Ok(Self { kernels: stream.own.kernels()?, src, dst, elements })
    }

    /// # Safety
    /// * The kernels' context is current, and the stream is of it.
    /// * The buffers stay alive and have no conflicting use until the cast is complete.
    pub(super) unsafe fn make(&self, stream: RawStream) -> std::result::Result<(), DriverError> {
        let Self { kernels, src, dst, elements } = *self;
        // SAFETY: the caller's promise; the addresses were checked.
        unsafe { kernels.cast(src, dst, elements, stream) }
    }
}

fn side(buffer: &RawBuffer, float: FloatType, stream: &CudaStream) -> Result<(u64, u32)> {
    let number = match float {
        FloatType::F32 => 0,
        FloatType::F16 => 1,
        FloatType::Bf16 => 2,
        other => return Err(Error::new(ErrorKind::Unsupported, format!("the kernel casts no {other}"))),
    };
    let address = in_place(buffer, stream)?;
    if !address.is_multiple_of(float.size() as u64) {
        let text =
            format!("device address {address:#x} is not aligned to the {} bytes of {float}", float.size());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok((address, number))
}
