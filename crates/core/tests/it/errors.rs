//! An error says what happened in words with numbers, and in values that a program can act on.

use std::error::Error as _;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, MemoryShortage, Place, Retry};

use crate::mock::buffer;

#[test]
fn out_of_memory_has_numbers_in_text_and_value() {
    let place = Place::new(DeviceId::Cuda(1), MemoryKind::Device);
    let shortage = MemoryShortage { requested: 1_000_003, free: Some(77), total: Some(80_000) };
    let error = Error::out_of_memory(place, shortage);
    assert_eq!((error.kind(), error.retry()), (ErrorKind::OutOfMemory, Retry::AfterFreeing));
    assert_eq!(error.memory_shortage(), Some(shortage));
    assert_eq!(error.to_string(), "out of cuda:1/device memory: 1000003 bytes requested, 77 free of 80000");
    let blind = Error::out_of_memory(place, MemoryShortage { free: None, total: None, ..shortage });
    assert!(blind.to_string().ends_with("unknown free of unknown"), "{blind}");
    assert_eq!(Error::new(ErrorKind::Busy, "x").memory_shortage(), None);
}

#[test]
fn texts_name_the_numbers_that_were_wrong() {
    let error = buffer(10).slice(3..11).unwrap_err().to_string();
    assert!(["3", "11", "10 bytes"].iter().all(|number| error.contains(number)), "{error}");
    let kept = buffer(10);
    let _view = kept.write().unwrap();
    let error = kept.slice(2..7).unwrap().read().unwrap_err();
    assert_eq!(error.retry(), Retry::Later);
    assert!(error.to_string().contains("bytes 2 to 7 of the allocation"), "{error}");
}

#[test]
fn error_text_contains_cause_and_chain_continues_after_it() {
    let root = std::io::Error::other("disk on fire");
    let middle = Error::caused_by(ErrorKind::Io, "cannot read weights", root);
    let error = Error::caused_by(ErrorKind::Device, "cannot load", middle);
    assert_eq!(error.to_string(), "cannot load: cannot read weights: disk on fire");
    assert_eq!(format!("{error:?}"), format!("Device: {error}"));
    assert!(error.source().is_none(), "nothing is told twice");
    assert_eq!(error.clone().kind(), ErrorKind::Device);
    assert_eq!(error.retry(), Retry::Never);
}
