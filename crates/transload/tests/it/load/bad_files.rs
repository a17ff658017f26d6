//! Invalid files and options: the kind of error, a message with the cause, and nothing kept.

use std::fs;

use transload::{
    ErrorKind,
    load::{LoadOptions, load},
};

use super::*;

/// Invalid files, with a part of the expected message.
fn wrong_files() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let one = |dtype: &str, shape: &str, begin: &str, end: &str| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let two = |a: &str, b: &str, c: &str, d: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{a},{b}]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[{c},{d}]}}}}"#
        )
    };
    let valid = Model::of_sizes(&[8, 8]).file();
    let huge = |len: u64| [&len.to_le_bytes()[..], &[b' '; 40]].concat();
    let max = usize::MAX.to_string();
    vec![
        ("empty", vec![], "it has 0 bytes, fewer than the 8"),
        ("seven bytes", vec![1; 7], "it has 7 bytes"),
        ("truncated header", valid[..60].to_vec(), "but only 52 follow: it is truncated"),
        ("header beyond the file", huge(41), "a header of 41 bytes, but only 40 follow"),
        ("header of 100 MB and a byte", huge(100_000_001), "valid: at most 100000000"),
        ("header of all bits", huge(u64::MAX), "valid: at most 100000000"),
        ("no header", vec![0; 8], "not valid JSON"),
        ("not JSON", file("not JSON at all", b""), "not valid JSON"),
        ("a list", file("[]", b""), "an object of tensors"),
        ("no text", [&3_u64.to_le_bytes()[..], &[b'{', 0xFF, b'}']].concat(), "is not UTF-8"),
        ("deep nesting", file(&("{\"x\":".repeat(10_000)), b""), "not valid JSON"),
        (
            "deep lists",
            file(&format!("{{\"x\":{{\"y\":{}", "[".repeat(100_000)), b""),
            "while parsing a list",
        ),
        ("trailing text", file("{} {}", b""), "trailing characters"),
        ("no tensors", file("{}", b""), "has no tensors; at least one"),
        ("only metadata", file(r#"{"__metadata__":{"a":"b"}}"#, b""), "has no tensors; at least one"),
        ("metadata of numbers", file(r#"{"__metadata__":{"a":1}}"#, b""), "`__metadata__`"),
        ("data without tensors", file("{}", b"1234"), "has no tensors"),
        ("truncated data", valid[..valid.len() - 1].to_vec(), "but the file has 15: it is truncated"),
        ("trailing data", [&valid[..], b"x"].concat(), "bytes 16 to 17 of its data belong to no tensor"),
        ("overlap", file(&two("0", "4", "3", "7"), &[0; 8]), "tensors `a` and `b` overlap"),
        ("same place", file(&two("0", "4", "0", "4"), &[0; 4]), "tensors `a` and `b` overlap"),
        ("hole", file(&two("0", "4", "5", "9"), &[0; 9]), "bytes 4 to 5 of its data belong to no tensor"),
        ("hole before", file(&one("U8", "[4]", "1", "5"), &[0; 5]), "bytes 0 to 1"),
        (
            "out of range",
            file(&one("U8", "[9]", "0", "9"), &[0; 8]),
            "ends at byte 9 of the data, but the file has 8",
        ),
        ("far out of range", file(&one("U8", "[1]", &max, &max), &[0; 8]), "but the file has 8"),
        ("reversed", file(&one("U8", "[4]", "8", "4"), &[0; 8]), "before it begins at 8"),
        ("negative", file(&one("U8", "[4]", "-1", "4"), &[0; 8]), "invalid value"),
        ("fraction", file(&one("U8", "[4]", "0.5", "4"), &[0; 8]), "invalid type"),
        ("beyond any number", file(&one("U8", "[4]", "0", "99999999999999999999"), &[0; 8]), "`x`"),
        (
            "too few bytes",
            file(&one("F32", "[2, 1]", "0", "4"), &[0; 4]),
            "has 8 bytes, but its offsets 0 to 4 hold 4",
        ),
        (
            "too many bytes",
            file(&one("F32", "[]", "0", "8"), &[0; 8]),
            "has 4 bytes, but its offsets 0 to 8 hold 8",
        ),
        (
            "product overflows",
            file(&one("U8", &format!("[{max}, 3]"), "0", "8"), &[0; 8]),
            "exceeds the address space",
        ),
        (
            "bits overflow",
            file(&one("F64", &format!("[{max}]"), "0", "8"), &[0; 8]),
            "exceeds the address space",
        ),
        ("half a byte", file(&one("F4", "[3]", "0", "2"), &[0; 2]), "12 bits, which is not a whole number"),
        (
            "unknown type",
            file(&one("F7", "[4]", "0", "4"), &[0; 4]),
            "`x`: unknown variant `F7`, expected one of `BOOL`",
        ),
        ("no shape", file(r#"{"x":{"dtype":"U8","data_offsets":[0,4]}}"#, &[0; 4]), "missing field `shape`"),
        ("no object", file(r#"{"x":7}"#, &[0; 4]), "`x`: invalid type"),
        (
            "twice",
            file(
                r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
                &[0; 4],
            ),
            "tensor `x` is given twice",
        ),
    ]
}

#[test]
fn every_wrong_file_is_refused_before_anything_is_allocated() {
    let manager = host_manager();
    for (what, content, said) in wrong_files() {
        let disk = OnDisk::new(&content);
        let error = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains(said), "{what}: `{said}` is not said in: {text}");
        assert!(text.contains("model.safetensors") && text.len() < 1000, "{what}: {text}");
        assert_empty(&manager);
    }
}

#[test]
fn largest_header_is_read_and_one_of_spaces_refused() {
    let manager = host_manager();
    let padded = |header: &str| file(&(header.to_owned() + &" ".repeat(100_000_000 - header.len())), b"abcd");
    let disk = OnDisk::new(&padded(r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#));
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap();
    assert_eq!(*loaded.tensors()[0].buffer().read().unwrap(), *b"abcd");
    drop(loaded);
    fs::write(disk.path(), padded("")).unwrap();
    let error = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_empty(&manager);
}

#[test]
fn printed_names_are_truncated_and_escaped() {
    let manager = host_manager();
    let name = format!("\\u001b[31m{}", "n".repeat(1 << 20));
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,3]}}}}"#);
    let disk = OnDisk::new(&file(&header, &[0; 3]));
    let text = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap_err().to_string();
    assert!(text.len() < 1000 && !text.contains('\u{1b}') && text.contains("nnn…"), "{text}");
}

#[test]
fn non_regular_file_is_refused_without_blocking() {
    let manager = host_manager();
    let disk = OnDisk::new(b"");
    let refused = |path: PathBuf, kind| {
        let error = load(&manager, path, &LoadOptions::new(HOST)).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("regular file is needed"), "{error}");
    };
    refused(disk.folder().to_owned(), ErrorKind::InvalidArgument);
    refused(disk.folder().join("missing"), ErrorKind::Io);
    if cfg!(unix) {
        refused("/dev/zero".into(), ErrorKind::InvalidArgument);
        let fifo = disk.folder().join("fifo");
        match std::process::Command::new("mkfifo").arg(&fifo).status() {
            Ok(status) if status.success() => refused(fifo, ErrorKind::InvalidArgument),
            _ => println!("skipped: mkfifo is not installed"),
        }
    }
}

#[test]
fn file_changed_during_read_is_an_error_and_frees_all() {
    let manager = host_manager();
    let model = Model::of_sizes(&[300_000, 3_000_000]);
    let change: [fn(&fs::File) -> std::io::Result<()>; 2] =
        [|file| file.set_len(1_000_000), |file| file.set_len(4_000_000)];
    for (change, said) in change.into_iter().zip(["it shrank while it was read", "changed while it was read"])
    {
        let disk = OnDisk::new(&model.file());
        let path = disk.path();
        // Two threads are at most a few chunks ahead of the callback.
        let options = LoadOptions::new(HOST).chunk(100_000).readers(2).checksum(true).verify(true);
        let options = options.progress(move |so_far| {
            if so_far.bytes <= 100_000 {
                change(&fs::File::options().write(true).open(&path).unwrap()).unwrap();
            }
        });
        let error = load(&manager, disk.path(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains(said), "{error}");
        assert_empty(&manager);
    }
}

/// Like `cp -p` of another model over it.
#[cfg(unix)]
#[test]
fn file_rewritten_with_its_old_time_is_reported_removed_is_not() {
    use std::{
        io::Write as _,
        os::unix::fs::MetadataExt,
        sync::atomic::{AtomicBool, Ordering},
    };

    let manager = host_manager();
    let model = Model::of_sizes(&[300_000]);
    let disk = OnDisk::new(&model.file());
    let (path, size) = (disk.path(), model.file().len());
    let first = AtomicBool::new(true);
    let options = LoadOptions::new(HOST).chunk(1000).readers(1).progress(move |_| {
        if first.swap(false, Ordering::Relaxed) {
            let before = fs::metadata(&path).unwrap();
            // In place: a reader must not find it shorter.
            let mut file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all(&vec![0xAA; size]).unwrap();
            let changed = |now: fs::Metadata| (now.ctime(), now.ctime_nsec());
            // The clock of the file system may be coarse.
            while changed(file.metadata().unwrap()) == changed(before.clone()) {
                file.set_modified(before.modified().unwrap()).unwrap();
            }
            file.set_modified(before.modified().unwrap()).unwrap();
        }
    });
    let error = load(&manager, disk.path(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("changed while it was read"), "{error}");
    // A file that is replaced as a whole keeps its bytes for those who have it open.
    let path = disk.path();
    fs::write(&path, model.file()).unwrap();
    let options = LoadOptions::new(HOST).chunk(1000).progress(move |_| drop(fs::remove_file(&path)));
    drop(load(&manager, disk.path(), &options).unwrap());
    assert_empty(&manager);
}

#[test]
fn file_overwritten_before_verification_is_reported_as_changed() {
    let manager = host_manager();
    let model = Model::of_sizes(&[300_000]);
    let disk = OnDisk::new(&model.file());
    let (path, size) = (disk.path(), model.file().len());
    let options = LoadOptions::new(HOST).chunk(1000).buffers(1).verify(true).progress(move |so_far| {
        if so_far.phase == transload::load::LoadPhase::ReadingBack && so_far.bytes == 1000 {
            fs::write(&path, vec![0xAA; size]).unwrap();
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
            fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        }
    });
    let error = load(&manager, disk.path(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_empty(&manager);
}

#[test]
fn load_on_a_worker_is_refused_before_it_begins() {
    let manager = host_manager();
    let disk = OnDisk::new(&Model::of_sizes(&[300_000]).file());
    let (tell, told) = std::sync::mpsc::channel();
    let options = LoadOptions::new(HOST).chunk(1000).progress(move |so_far| tell.send(so_far.bytes).unwrap());
    let (theirs, path) = (manager.clone(), disk.path());
    let loaded = manager.executor().spawn(async move { load(&theirs, path, &options).map(drop) }).wait();
    assert_eq!(loaded.unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(told.try_recv().is_err(), "nothing was read");
    assert_empty(&manager);
}

#[test]
fn invalid_options_are_refused_with_valid_ones() {
    let manager = host_manager();
    let disk = OnDisk::new(&Model::of_sizes(&[10]).file());
    let options = || LoadOptions::new(HOST);
    for (options, said) in [
        (options().alignment(0), "a power of two"),
        (options().alignment(96), "a power of two"),
        (options().alignment(4 << 20), "at most 2097152"),
        (options().chunk(0), "at least 1"),
        (options().buffers(0), "at least 1"),
        (options().segment(0), "at least 1"),
        (options().staging(MemoryKind::Device), "valid: pageable, pinned, mapped"),
    ] {
        let error = load(&manager, disk.path(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(said), "{error}");
    }
    let pinned = load(&manager, disk.path(), &options().staging(MemoryKind::Pinned)).unwrap_err();
    assert_eq!(pinned.kind(), ErrorKind::Unsupported);
    assert_empty(&manager);
}

#[test]
fn a_device_that_is_not_there_is_explained() {
    let disk = OnDisk::new(&Model::of_sizes(&[10]).file());
    let place = Place::new(DeviceId::Wgpu(3), MemoryKind::Device);
    let error = load(&host_manager(), disk.path(), &LoadOptions::new(place)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    assert!(error.to_string().contains("wgpu:3"), "{error}");
}

/// A sparse file: it has a length but no content.
#[cfg(target_os = "linux")]
#[test]
fn model_larger_than_host_memory_is_out_of_memory() {
    let manager = host_manager();
    let size = 1_usize << 43;
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}"#);
    let disk = OnDisk::new(&file(&header, b""));
    let longer = fs::File::options().write(true).open(disk.path()).unwrap();
    if longer.set_len((8 + header.len() + size) as u64).is_err() {
        println!("skipped: this file system has no file of {size} bytes");
        return;
    }
    let error = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!(shortage.requested, size as u64);
    assert!(shortage.free.is_some() && shortage.total.is_some());
    assert_empty(&manager);
}
