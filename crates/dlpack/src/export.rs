//! Exports buffers as DLPack tensors.

use dlpark::allocation::dynamic;
use transload_core::{
    Access, Error, ErrorKind, RawBuffer, Result,
    host_access::{self, HostAccess},
};

use crate::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, Element, Flags, Form, ManagedTensor,
    device,
    exported_loan::{ExportedLoan, ReturnMode},
    layout,
};

/// Builder of an export: how the consumer sees the buffer, and how its uses are ordered. The buffer is lent until the
/// tensor's deleter is called; see the crate documentation for who may use it when.
///
/// Without a stream, creating the tensor waits on the host for earlier work on the buffer, and the consumer must have
/// completed its work when it calls the deleter.
#[derive(Debug)]
#[must_use = "nothing is exported until `versioned` or `unversioned`"]
pub struct Export<'a> {
    buffer: &'a RawBuffer,
    dtype: DLDataType,
    shape: Option<Vec<i64>>,
    strides: Option<Vec<i64>>,
    device: Option<DLDevice>,
    read_only: bool,
    copied: bool,
    pub(crate) order: Order,
}

/// How uses by the consumer are ordered with ours.
#[derive(Debug)]
pub(crate) enum Order {
    /// The host waits for earlier work; the consumer is done at the deleter.
    Host,
    /// The first stream waits for earlier work; the consumer's work at the deleter is on the second.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    Streams(transload_streams::CudaStream, transload_streams::CudaStream),
    /// The consumer is responsible for all ordering.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    Consumer,
}

impl<'a> Export<'a> {
    /// Exports the bytes as elements of a type, in one dimension unless [`shape`](Self::shape) is set.
    pub fn new(buffer: &'a RawBuffer, dtype: DLDataType) -> Self {
        Self {
            buffer,
            dtype,
            shape: None,
            strides: None,
            device: None,
            read_only: false,
            copied: false,
            order: Order::Host,
        }
    }

    /// Like [`new`](Self::new), with the type of a Rust element.
    pub fn of<T: Element>(buffer: &'a RawBuffer) -> Self {
        Self::new(buffer, T::DTYPE)
    }

    /// Sets the length of each dimension; the layout is row-major unless [`strides`](Self::strides) are set. An empty
    /// shape is a scalar. The tensor may be smaller than the buffer, which is lent as a whole: to lend less, export a
    /// slice.
    pub fn shape(mut self, shape: &[i64]) -> Self {
        self.shape = Some(shape.to_vec());
        self
    }

    /// Sets the stride of each dimension, in elements; at least 0.
    pub fn strides(mut self, strides: &[i64]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// Forbids the consumer to write; this library may read concurrently. Needs the versioned form, as the older one
    /// has no such flag. Always set for a buffer that is not writable.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Sets the flag that the bytes were copied for this consumer, which only a versioned tensor has.
    pub fn copied(mut self) -> Self {
        self.copied = true;
        self
    }

    /// Exports the buffer as memory of another device than its own, if that needs no copy: pinned and mapped memory as
    /// `kDLCPU`, unified memory as `kDLCUDA` or `kDLCPU`. PyTorch supports no others.
    pub fn on_device(mut self, device: DLDevice) -> Self {
        self.device = Some(device);
        self
    }

    /// Creates a tensor of DLPack 1.x. Waits for earlier work on the buffer if the host must.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a conflicting host view or loan is open; [`ErrorKind::SourceFailed`] if an operation that
    /// wrote some of the bytes failed, also if the consumer would replace them ([`RawBuffer::assume_written`] permits
    /// that); [`ErrorKind::OutOfRange`] for a shape that exceeds the buffer; [`ErrorKind::InvalidArgument`] for an invalid
    /// shape, or elements that are not aligned; [`ErrorKind::Unsupported`] for memory or a device that DLPack cannot
    /// describe. Nothing is lent then.
    pub fn versioned(self) -> Result<ManagedTensor<DLManagedTensorVersioned>> {
        self.make()
    }

    /// Creates a tensor in the form before DLPack 1.0.
    ///
    /// # Errors
    /// Those of [`versioned`](Self::versioned); [`ErrorKind::Unsupported`] for a read-only export.
    pub fn unversioned(self) -> Result<ManagedTensor<DLManagedTensor>> {
        if self.read_only || !self.buffer.is_writable() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the unversioned form has no read-only flag; export the versioned form",
            ));
        }
        self.make()
    }

    fn make<M: Form + 'static>(self) -> Result<ManagedTensor<M>> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        transload_streams::CudaStream::retry_loan_ends();
        let (shape, strides, bytes) = self.layout()?;
        let (device, data) = device::export_device(self.buffer, self.device)?;
        // The standard wants a null pointer for an empty tensor.
        let data = if bytes == 0 { std::ptr::null_mut() } else { data };
        let element = layout::element_bits(self.dtype).div_ceil(8);
        if element.is_power_of_two() && !data.addr().is_multiple_of(element.min(16)) {
            let text = format!(
                "the buffer begins at {data:p}, which is not aligned for elements of {element} bytes"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let too_large = |error: dlpark::allocation::Error| {
            Error::caused_by(ErrorKind::InvalidArgument, "the shape has too many dimensions", error)
        };
        let rank = shape.len();
        let mut room = dynamic::Allocation::<M>::allocate(2 * rank).map_err(too_large)?;
        room.extra_mut().iter_mut().zip(shape.iter().chain(&strides)).for_each(|(to, from)| *to = *from);

        let read_only = self.read_only || !self.buffer.is_writable();
        let weak = read_only || transload_core::mutant!("dlpack/export-claims-reading-only");
        let access = if weak { Access::Read } else { Access::Write };
        let loan = self.buffer.lend(access)?;
        let (return_mode, fences) = match self.order {
            Order::Host => {
                loan.wait_for_earlier_work()?;
                (ReturnMode::Immediate, Vec::new())
            }
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Order::Streams(consumer, back) => {
                if device::is_host_device(device) {
                    loan.wait_for_earlier_work()?;
                    (ReturnMode::AfterStream(back), Vec::new())
                } else {
                    consumer.wait_fences(loan.after())?;
                    loan.check_sources()?;
                    (ReturnMode::AfterStream(back), loan.after().to_vec())
                }
            }
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Order::Consumer => (ReturnMode::Immediate, loan.after().to_vec()),
        };
        if device::is_host_device(device) && bytes > 0 {
            let used = if read_only { HostAccess::Read } else { HostAccess::Write };
            host_access::note(data.addr(), self.buffer.len(), used);
        }

        let mut tensor =
            room.initialize(Box::new(ExportedLoan::new(loan, return_mode)), rank).map_err(too_large)?;
        let numbers = tensor.extra_mut().as_mut_ptr();
        tensor.set_data(data).set_device(device).set_dtype(self.dtype);
        if rank > 0 {
            tensor.tensor_mut().shape = numbers;
            // SAFETY: the allocation has room for two numbers per dimension.
            tensor.tensor_mut().strides = unsafe { numbers.add(rank) };
        }
        let mut flags = Flags::empty();
        flags.set(Flags::READ_ONLY, read_only);
        flags.set(Flags::IS_COPIED, self.copied);
        // SAFETY: until the deleter drops it, the loan keeps the memory alive and excludes other uses as the flags say.
        let made = unsafe {
            tensor.set_flags_unchecked(flags);
            tensor.finish()
        };
        // SAFETY: the tensor is new and owned; its description was checked above and holds until the deleter ends the
        // loan.
        unsafe { ManagedTensor::from_raw(made.into_raw(), &fences) }
    }

    /// Returns the shape, the strides, and the number of bytes that they span in the buffer.
    fn layout(&self) -> Result<(Vec<i64>, Vec<i64>, usize)> {
        let bits = layout::element_bits(self.dtype);
        let length = self.buffer.len();
        let shape = match &self.shape {
            Some(shape) => shape.clone(),
            None => {
                let elements = length.checked_mul(8).and_then(|all| all.checked_div(bits)).unwrap_or(0);
                vec![i64::try_from(elements).unwrap_or(i64::MAX)]
            }
        };
        let strides = match &self.strides {
            Some(strides) => strides.clone(),
            None => layout::compact(&shape)?,
        };
        let bytes = layout::span_bytes(&shape, &strides, self.dtype)?;
        if bytes > length {
            let text = format!(
                "a tensor of shape {shape:?} with strides {strides:?} spans {bytes} bytes, the buffer has {length}"
            );
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        Ok((shape, strides, bytes))
    }
}
