//! A loaded model: tensors by name and in the file's order.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use safetensors::Dtype;
use transload_core::{Backend, Error, ErrorKind, Pod, RawBuffer, Result};

use crate::Array;

use super::{entries::quoted, header::Header, placement::TensorPlacement, report::LoadReport};

/// Loaded tensors. The memory lives as long as this value or any tensor's buffer.
pub struct LoadedModel {
    tensors: Vec<LoadedTensor>,
    by_name: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
    segments: Vec<RawBuffer>,
    report: LoadReport,
}

/// A tensor and its memory. Serialized (feature `serde`) it is its name, type, shape, bytes and, in hexadecimal digits, checksum.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LoadedTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    #[cfg_attr(feature = "serde", serde(rename = "bytes", serialize_with = "serialize_len"))]
    buffer: RawBuffer,
    #[cfg_attr(feature = "serde", serde(skip))]
    backend: Arc<dyn Backend>,
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_checksum")
    )]
    checksum: Option<u64>,
}

#[cfg(feature = "serde")]
fn serialize_len<S: serde::Serializer>(buffer: &RawBuffer, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(buffer.len() as u64)
}

#[cfg(feature = "serde")]
fn serialize_checksum<S: serde::Serializer>(
    checksum: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // JSON's numbers have 53 bits.
    serializer.collect_str(&format_args!("{:016x}", checksum.unwrap_or_default()))
}

impl LoadedModel {
    pub(super) fn new(
        header: Header,
        placement: &TensorPlacement,
        backend: &Arc<dyn Backend>,
        hashes: Option<Vec<u64>>,
        report: LoadReport,
    ) -> Result<Self> {
        let mut tensors = Vec::with_capacity(header.tensors.len());
        for (index, (entry, range)) in header.tensors.into_iter().zip(&placement.layout.ranges).enumerate() {
            tensors.push(LoadedTensor {
                name: entry.name,
                dtype: entry.dtype,
                shape: entry.shape,
                buffer: placement.tensor(*range)?,
                backend: Arc::clone(backend),
                checksum: hashes.as_ref().and_then(|hashes| hashes.get(index).copied()),
            });
        }
        let by_name =
            tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(Self {
            tensors,
            by_name,
            metadata: header.metadata,
            segments: placement.segments().to_vec(),
            report,
        })
    }

    /// Returns the tensors, in the order of their bytes in the file.
    #[must_use]
    pub fn tensors(&self) -> &[LoadedTensor] {
        &self.tensors
    }

    /// Returns the tensor with a name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&LoadedTensor> {
        self.by_name.get(name).and_then(|index| self.tensors.get(*index))
    }

    /// Returns the bytes of all tensors, without gaps.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.report.bytes
    }

    /// Returns the file's `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Returns the allocations that contain the tensors.
    #[must_use]
    pub fn segments(&self) -> &[RawBuffer] {
        &self.segments
    }

    /// Returns methods, sizes and times of the load.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }
}

impl LoadedTensor {
    /// Returns the tensor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the length of each dimension, the slowest-varying first; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the tensor's bytes: a slice of the model's memory, empty for a tensor without elements.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Returns the tensor's elements, which share the model's memory.
    ///
    /// ```no_run
    /// # fn example(model: &transload::load::LoadedModel) -> transload::Result<()> {
    /// if let Some(table) = model.tensor("table") {
    ///     let table = table.array::<f32>()?;
    ///     println!("{} elements", table.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `T` has another size than the file's elements, except that bytes suit all.
    pub fn array<T: Pod>(&self) -> Result<Array<T>> {
        if size_of::<T>() * 8 != self.dtype.bitsize() && size_of::<T>() != 1 {
            let text = format!(
                "elements of {} bytes were requested, tensor {} has {} of {} bits",
                size_of::<T>(),
                quoted(&self.name),
                self.dtype,
                self.dtype.bitsize()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Array::new(self.buffer.clone(), Arc::clone(&self.backend))
    }

    /// Returns the XXH3 hash (64 bits, seed 0) of the tensor's bytes if requested, verified on the device.
    #[must_use]
    pub fn checksum(&self) -> Option<u64> {
        self.checksum
    }
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedModel")
            .field("tensors", &self.tensors.len())
            .field("segments", &self.segments)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
