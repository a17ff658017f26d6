//! Memory that differs from what was sent, which no file and no healthy device can produce.

use std::{io::Write as _, sync::Arc}; // as _;

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, MemoryKind, Place};

use super::*;

/// Two tensors of 3000 and 700 bytes, and an empty one.
fn model() -> tempfile::NamedTempFile {
    let header = r#"{"a":{"dtype":"U8","shape":[3000],"data_offsets":[0,3000]},"b":{"dtype":"U8","shape":[700],"data_offsets":[3000,3700]},"c":{"dtype":"U8","shape":[0],"data_offsets":[3700,3700]}}"#;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.write_all(&(0..3700_u32).map(|index| (index * 7 + index / 256) as u8).collect::<Vec<_>>()).unwrap();
    file
}

fn read_back_after(options: LoadOptions, flip: Option<usize>) -> Result<()> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let file = model();
    let source = Arc::new(Source::open(file.path()).unwrap());
    let header = Header::read(&source).unwrap();
    let placement = Arc::new(TensorPlacement::plan(&manager, &header, &options, usize::MAX).unwrap());
    let mut pipeline = Pipeline::new(&manager, &placement, &options).unwrap();
    let mut report = pipeline.report(&header, &source);
    let hashes = pipeline.send(&header, &source, &mut report).unwrap();
    if let Some(at) = flip {
        placement.segments()[0].write().unwrap()[at] ^= 0x10;
    }
    let outcome = pipeline.read_back(&header, &source, &hashes);
    drop(pipeline);
    drop(placement);
    manager.drain().unwrap();
    assert!(manager.resource_counts().iter().all(|(_, ledger)| ledger.is_empty()));
    outcome
}

#[test]
fn one_flipped_bit_is_found_and_its_tensor_named() {
    let in_place = LoadOptions::new(Place::new(DeviceId::Cpu, MemoryKind::Pageable)).chunk(500);
    found(|| in_place.clone());
    found(|| in_place.clone().staging(MemoryKind::Pageable));
}

fn found(options: impl Fn() -> LoadOptions) {
    // The second tensor begins at the next multiple of 64 after 3000.
    for (at, tensor, byte) in [(0, "`a`", 0), (2999, "`a`", 2999), (3008, "`b`", 0), (3707, "`b`", 699)] {
        let error = read_back_after(options().checksum(true), Some(at)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted);
        assert!(error.to_string().contains(&format!("tensor {tensor} has checksum")), "{error}");
        let error = read_back_after(options().verify(true), Some(at)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted);
        assert!(error.to_string().contains(&format!("tensor {tensor} differs at byte {byte}:")), "{error}");
    }
    // Gaps between tensors belong to none.
    read_back_after(options().checksum(true).verify(true), Some(3004)).unwrap();
    read_back_after(options().checksum(true).verify(true), None).unwrap();
}
