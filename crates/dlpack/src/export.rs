//! Buffers as DLPack tensors for others.

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

/// An export to be: what the consumer sees, and how it is put behind work in flight. The buffer is lent until the tensor's
/// deleter is called; see the crate's documentation for who may use it when.
///
/// Without a stream the host waits, when the tensor is made, for earlier work on the buffer, and the deleter says that the
/// consumer's own work is over.
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

/// How the consumer is put behind work in flight, and ours behind the consumer's.
#[derive(Debug)]
pub(crate) enum Order {
    /// The host waits before; the deleter means that the consumer is done.
    Host,
    /// The first stream waits before; work in flight at the deleter is on the second one.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    Streams(transload_streams::CudaStream, transload_streams::CudaStream),
    /// The consumer sees to everything.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    Consumer,
}

impl<'a> Export<'a> {
    /// The buffer's bytes as elements of a type, in one dimension unless a [`shape`](Self::shape) is given.
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

    /// As [`new`](Self::new), for a type of Rust's.
    pub fn of<T: Element>(buffer: &'a RawBuffer) -> Self {
        Self::new(buffer, T::DTYPE)
    }

    /// Elements along each dimension, row by row unless [`strides`](Self::strides) are given. Without any it is a single
    /// element. The tensor may be smaller than the buffer, which is lent as a whole: lend a slice instead.
    pub fn shape(mut self, shape: &[i64]) -> Self {
        self.shape = Some(shape.to_vec());
        self
    }

    /// Elements from one index to the next along each dimension; 0 or more.
    pub fn strides(mut self, strides: &[i64]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// The consumer may only read, and our own readers go on beside it. Needs the versioned form: the older one cannot tell
    /// a consumer. A buffer that may not be written is exported like this by itself.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The bytes were copied for this consumer alone, which a versioned tensor says.
    pub fn copied(mut self) -> Self {
        self.copied = true;
        self
    }

    /// Shows the buffer as another device's memory than its proper one, where that is possible without a copy: pinned and
    /// mapped memory as `kDLCPU`, unified memory as `kDLCUDA` or `kDLCPU`. PyTorch knows no others.
    pub fn on_device(mut self, device: DLDevice) -> Self {
        self.device = Some(device);
        self
    }

    /// Makes the tensor in the form of DLPack 1.x. Waits for earlier work on the buffer where the host has to.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a host view or another loan is open in conflict; [`ErrorKind::OutOfRange`] for a shape that
    /// leaves the buffer; [`ErrorKind::InvalidArgument`] for one that cannot be, or elements that are not aligned;
    /// [`ErrorKind::Unsupported`] for memory or a device that DLPack has no name for. Nothing is lent then.
    pub fn versioned(self) -> Result<ManagedTensor<DLManagedTensorVersioned>> {
        self.make()
    }

    /// Makes the tensor in the form that is older than DLPack 1.0.
    ///
    /// # Errors
    /// As for [`versioned`](Self::versioned); [`ErrorKind::Unsupported`] for an export for reading only.
    pub fn unversioned(self) -> Result<ManagedTensor<DLManagedTensor>> {
        if self.read_only || !self.buffer.is_writable() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the unversioned form cannot say that memory may only be read; export the versioned one",
            ));
        }
        self.make()
    }

    fn make<M: Form + 'static>(self) -> Result<ManagedTensor<M>> {
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        crate::cuda::retry_pending_ends();
        let (shape, strides, bytes) = self.layout()?;
        let (device, data) = device::export_device(self.buffer, self.device)?;
        // The standard wants no address where there are no bytes.
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
                loan.wait_for_earlier_work();
                (ReturnMode::Immediate, Vec::new())
            }
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Order::Streams(consumer, back) => {
                if device::is_host_device(device) {
                    loan.wait_for_earlier_work();
                    (ReturnMode::AfterStream(back), Vec::new())
                } else {
                    consumer.wait_fences(loan.after())?;
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
            // SAFETY: there is room for two numbers of each dimension.
            tensor.tensor_mut().strides = unsafe { numbers.add(rank) };
        }
        let mut flags = Flags::empty();
        flags.set(Flags::READ_ONLY, read_only);
        flags.set(Flags::IS_COPIED, self.copied);
        // SAFETY: the loan keeps the memory alive, and everyone else away from it as the flags say, until the deleter drops it.
        let made = unsafe {
            tensor.set_flags_unchecked(flags);
            tensor.finish()
        };
        // SAFETY: just made, and owned; what was checked above is true of it until the deleter ends the loan.
        unsafe { ManagedTensor::from_raw(made.into_raw(), &fences) }
    }

    /// Shape and strides, and the bytes that they reach, within the buffer.
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
                "a tensor of shape {shape:?} with strides {strides:?} reaches {bytes} bytes far, the buffer has {length}"
            );
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        Ok((shape, strides, bytes))
    }
}
