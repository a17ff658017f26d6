//! A model that was loaded: its tensors by name and in the file's order.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use safetensors::Dtype;
use transload_core::{RawBuffer, Result};

use super::{header::Header, placement::TensorPlacement, report::LoadReport};

/// Tensors in memory that lives while this, or any tensor's buffer, does.
pub struct LoadedModel {
    tensors: Vec<LoadedTensor>,
    by_name: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
    segments: Vec<RawBuffer>,
    report: LoadReport,
}

/// A tensor and its place.
#[derive(Clone, Debug)]
pub struct LoadedTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    buffer: RawBuffer,
    checksum: Option<u64>,
}

impl LoadedModel {
    pub(super) fn new(
        header: Header,
        placement: TensorPlacement,
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
                checksum: hashes.as_ref().and_then(|hashes| hashes.get(index).copied()),
            });
        }
        let by_name =
            tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(Self { tensors, by_name, metadata: header.metadata, segments: placement.segments, report })
    }

    /// The tensors, in the order of their bytes in the file.
    #[must_use]
    pub fn tensors(&self) -> &[LoadedTensor] {
        &self.tensors
    }

    /// The tensor of a name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&LoadedTensor> {
        self.by_name.get(name).and_then(|index| self.tensors.get(*index))
    }

    /// Bytes of all tensors, gaps between them not counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.report.bytes
    }

    /// What the file says about itself: its `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The allocations that the tensors are slices of.
    #[must_use]
    pub fn segments(&self) -> &[RawBuffer] {
        &self.segments
    }

    /// How it went.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }
}

impl LoadedTensor {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its extents, the slowest first; none for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its bytes: a slice of the model's memory, empty for a tensor without elements.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// The XXH3 hash (64 bits, seed 0) of its bytes, the same in the file and read back from the device, where it was
    /// asked for.
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
