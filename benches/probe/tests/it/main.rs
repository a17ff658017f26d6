//! The C library as other programs see it: what it exports, what it needs, and what it answers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod adopt;

use std::{
    env,
    os::raw::c_char,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use libloading::Library;

/// The built library; `None` where there is no cargo to build it with.
fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let cargo = env::var_os("CARGO")?;
    let arguments = ["build", "--locked", "--package", "transload-probe", "--message-format", "json"];
    let output = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    assert!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let file = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact" && message["target"]["name"] == "transload_probe"
        })
        .find_map(|message| message["filenames"][0].as_str().map(PathBuf::from));
    Some(file.expect("cargo names no library"))
}

/// The output of a tool on the library; `None`, said aloud, where either is absent.
fn inspect(tool: &str, arguments: &[&str]) -> Option<String> {
    let Some(library) = library() else {
        println!("skipped: there is no cargo to build the library with");
        return None;
    };
    let Ok(output) = Command::new(tool).args(arguments).arg(library).output() else {
        println!("skipped: there is no {tool} here");
        return None;
    };
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn it_exports_its_own_functions_and_no_driver_function() {
    let Some(symbols) = inspect("nm", &["-D", "--defined-only"]) else { return };
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    for own in ["transload_probe_roundtrip", "transload_probe_last_error", "transload_probe_dlpack_open"] {
        assert!(names.contains(&own), "{own} is missing of {names:?}");
    }
    let is_driver = |name: &&&str| {
        name.strip_prefix("cu")
            .and_then(|rest| rest.chars().next())
            .is_some_and(|first| first.is_ascii_uppercase())
    };
    let driver: Vec<_> = names.iter().filter(is_driver).collect();
    assert!(driver.is_empty(), "exports {driver:?}");
}

#[test]
fn it_does_not_need_the_driver_to_be_loaded() {
    let Some(dynamic) = inspect("readelf", &["--dynamic", "--wide"]) else { return };
    let needed: Vec<&str> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty(), "{dynamic}");
    assert!(!dynamic.contains("libcuda"), "needs {needed:?}");
    let Some(undefined) = inspect("nm", &["-D", "--undefined-only"]) else { return };
    let driver: Vec<&str> = undefined
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| {
            name.starts_with("cu") && name.chars().nth(2).is_some_and(|third| third.is_ascii_uppercase())
        })
        .collect();
    assert!(driver.is_empty(), "asks others for {driver:?}");
}

type Roundtrip = unsafe extern "C" fn(u32, u64, u64) -> i32;
type LastError = unsafe extern "C" fn(*mut c_char, usize) -> usize;

#[test]
fn it_moves_bytes_or_says_that_there_is_no_driver() {
    let Some(path) = library() else {
        println!("skipped: there is no cargo to build the library with");
        return;
    };
    // SAFETY: the library's initialisers demand nothing.
    let library = unsafe { Library::new(path) }.unwrap();
    // SAFETY: the types are those of the library's declarations.
    let (roundtrip, last_error) = unsafe {
        (
            library.get::<Roundtrip>(b"transload_probe_roundtrip\0").unwrap(),
            library.get::<LastError>(b"transload_probe_last_error\0").unwrap(),
        )
    };
    let error = || {
        let mut text = vec![0_u8; 4096];
        // SAFETY: the buffer has so many bytes.
        let length = unsafe { last_error(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(length.min(4095));
        String::from_utf8(text).unwrap()
    };
    // SAFETY: takes any numbers.
    let code = unsafe { roundtrip(0, 0, 1) };
    assert_eq!(code, -1, "{}", error());
    // SAFETY: as above.
    match unsafe { roundtrip(0, (1 << 20) + 3, 1) } {
        0 => println!("bytes went to a device and back"),
        -2 => assert!(error().contains("CUDA"), "{}", error()),
        other => panic!("{other}: {}", error()),
    }
    let mut short = [b'x'; 4];
    // SAFETY: the buffer has so many bytes; null is allowed.
    let (whole, none) =
        unsafe { (last_error(short.as_mut_ptr().cast(), 4), last_error(std::ptr::null_mut(), 0)) };
    assert_eq!(whole, none);
    assert_eq!(short[3], 0);
}

/// As the library declares it.
#[repr(C)]
struct Wish {
    versioned: u32,
    read_only: u32,
    code: u8,
    bits: u8,
    lanes: u16,
    ndim: u32,
    shape: *const i64,
    device_type: u32,
    device_id: i32,
    stream_is_none: u32,
    stream: i64,
}

#[test]
fn a_buffer_goes_out_as_a_tensor_and_comes_back_as_a_buffer() {
    use std::ffi::c_void;

    let Some(path) = library() else {
        println!("skipped: there is no cargo to build the library with");
        return;
    };
    // SAFETY: the library's initialisers demand nothing; the types are those of the library's declarations.
    unsafe {
        let library = Library::new(path).unwrap();
        let find = |name: &str| format!("transload_probe_dlpack_{name}\0").into_bytes();
        let open = library.get::<unsafe extern "C" fn(u32) -> *mut c_void>(find("open").as_slice()).unwrap();
        let close =
            library.get::<unsafe extern "C" fn(*mut c_void) -> i64>(find("close").as_slice()).unwrap();
        type Allocate = unsafe extern "C" fn(*mut c_void, u32, u64) -> i64;
        type Touch = unsafe extern "C" fn(*mut c_void, i64, u8) -> i64;
        type Export = unsafe extern "C" fn(*mut c_void, i64, *const Wish) -> *mut c_void;
        type Import = unsafe extern "C" fn(*mut c_void, *mut c_void, u32) -> i64;
        let allocate = library.get::<Allocate>(find("allocate").as_slice()).unwrap();
        let (fill, compare) = (
            library.get::<Touch>(find("fill").as_slice()).unwrap(),
            library.get::<Touch>(find("compare").as_slice()).unwrap(),
        );
        let drop =
            library.get::<unsafe extern "C" fn(*mut c_void, i64) -> i64>(find("drop").as_slice()).unwrap();
        let drain =
            library.get::<unsafe extern "C" fn(*mut c_void) -> i64>(find("drain").as_slice()).unwrap();
        let export = library.get::<Export>(find("export").as_slice()).unwrap();
        let import = library.get::<Import>(find("import").as_slice()).unwrap();

        let session = open(u32::MAX);
        assert!(!session.is_null());
        let buffer = allocate(session, 0, 64);
        assert_eq!(fill(session, buffer, 3), 0);
        let shape = [4_i64, 4];
        let (mut wish, ndim) = (std::mem::zeroed::<Wish>(), 2);
        (wish.code, wish.bits, wish.lanes, wish.ndim, wish.shape) = (2, 32, 1, ndim, shape.as_ptr());
        wish.stream_is_none = 1;
        for versioned in [0, 1] {
            wish.versioned = versioned;
            let tensor = export(session, buffer, &wish);
            assert!(!tensor.is_null());
            assert_eq!(fill(session, buffer, 4), -6, "it is lent");
            let there = import(session, tensor, versioned);
            assert_eq!(
                (compare(session, there, 3), import(session, tensor, versioned)),
                (0, -7),
                "only once"
            );
            assert_eq!((drop(session, there), drop(session, there)), (0, -7));
            // Another thread ends the loan.
            assert_eq!(drain(session), 0);
            assert_eq!(fill(session, buffer, 3), 0);
        }
        assert_eq!(import(session, std::ptr::null_mut(), 1), -7);
        assert_eq!(compare(session, buffer, 4), -4);
        assert_eq!(close(session), 0);
    }
}
