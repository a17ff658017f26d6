//! Loading model files: correct content, or a typed error and nothing kept.

mod bad_files;
mod content;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda;
mod damaged;

use std::path::{Path, PathBuf};

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, Place, RawBuffer,
    cpu::CpuBackend,
    load::{LoadedModel, LoadedTensor},
};

pub(crate) const HOST: Place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);

/// Every type of the format, with its bits per element.
pub(crate) const DTYPES: [(&str, usize); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// A model for tests: name, type, shape and bytes of each tensor, in the file's order.
#[derive(Clone)]
pub(crate) struct Model(Vec<(String, &'static str, Vec<usize>, Vec<u8>)>);

impl Model {
    /// Tensors of bytes with these sizes.
    pub(crate) fn of_sizes(sizes: &[usize]) -> Self {
        let tensor = |(index, size): (usize, &usize)| {
            (format!("t{index}"), "U8", vec![*size], noise(*size, index as u64))
        };
        Self(sizes.iter().enumerate().map(tensor).collect())
    }

    /// One tensor of each type, then odd sizes, empty ones and a scalar.
    pub(crate) fn of_every_type() -> Self {
        let mut tensors: Vec<_> = DTYPES
            .iter()
            .enumerate()
            .map(|(index, (dtype, bits))| {
                let shape = vec![3 + index, 1, 4];
                let bytes = (3 + index) * 4 * bits / 8;
                (format!("layer.{index}.{dtype}"), *dtype, shape, noise(bytes, index as u64))
            })
            .collect();
        tensors.push(("scalar".to_owned(), "F32", vec![], noise(4, 90)));
        tensors.push(("none".to_owned(), "BF16", vec![0, 7], vec![]));
        for (index, size) in [1, 255, 256, 257, 100_003].into_iter().enumerate() {
            tensors.push((format!("odd \"{index}\" é"), "U8", vec![size], noise(size, 91 + index as u64)));
        }
        tensors.push(("last none".to_owned(), "F64", vec![2, 0], vec![]));
        Self(tensors)
    }

    /// Those of its tensors with at most this many bytes.
    pub(crate) fn of_at_most(&self, bytes: usize) -> Self {
        Self(self.0.iter().filter(|(.., content)| content.len() <= bytes).cloned().collect())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(.., bytes)| bytes.len()).sum()
    }

    pub(crate) fn header(&self) -> String {
        let mut header = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
        let mut at = 0;
        for (name, dtype, shape, bytes) in &self.0 {
            let end = at + bytes.len();
            let name = name.replace('"', "\\\"");
            header +=
                &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#);
            at = end;
        }
        header + "}"
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        file(&self.header(), &self.0.iter().flat_map(|(.., bytes)| bytes.clone()).collect::<Vec<u8>>())
    }

    /// Asserts that every tensor is where the model says, with its content.
    #[track_caller]
    pub(crate) fn assert_is(
        &self,
        loaded: &LoadedModel,
        alignment: u64,
        bytes_of: impl Fn(&RawBuffer) -> Vec<u8>,
    ) {
        assert_eq!(loaded.tensors().len(), self.0.len());
        assert_eq!(loaded.bytes(), self.bytes() as u64);
        assert_eq!(loaded.metadata()["format"], "pt");
        for (name, dtype, shape, bytes) in &self.0 {
            let tensor = loaded.tensor(name).unwrap();
            assert_eq!((tensor.name(), tensor.shape()), (name.as_str(), shape.as_slice()));
            assert_eq!(tensor.dtype().to_string(), *dtype);
            assert_eq!(address(tensor) % alignment, 0, "{name}");
            assert!(bytes_of(tensor.buffer()) == *bytes, "{name}, {} bytes", bytes.len());
        }
    }
}

pub(crate) fn address(tensor: &LoadedTensor) -> u64 {
    // Those of Vulkan have none.
    let host = || tensor.buffer().host_address().map_or(0, |address| address.as_ptr().addr() as u64);
    tensor.buffer().device_address().unwrap_or_else(host)
}

/// A header with its length, followed by data.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(byte).collect()
}

/// A folder with one file.
pub(crate) struct OnDisk {
    folder: tempfile::TempDir,
}

impl OnDisk {
    pub(crate) fn new(content: &[u8]) -> Self {
        let on_disk = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(on_disk.path(), content).unwrap();
        on_disk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("model.safetensors")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

pub(crate) fn host_manager() -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager
}

#[track_caller]
pub(crate) fn assert_empty(manager: &CrossBackendTransferManager) {
    manager.drain().unwrap();
    for (backend, ledger) in manager.resource_counts() {
        assert!(ledger.is_empty(), "{backend}: {ledger}");
    }
}
