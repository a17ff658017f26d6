//! Thousands of damaged headers, compared with the `safetensors` crate.

use safetensors::SafeTensors;
use transload::{
    ErrorKind,
    load::{LoadOptions, load},
};

use super::*;

/// Accepts and refuses the same headers as the `safetensors` crate, except that it also refuses duplicate names and
/// models without tensors.
#[test]
fn damaged_headers_agree_with_safetensors_crate() {
    let header = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"U8","shape":[9],"data_offsets":[12,21]},"c":{"dtype":"F4","shape":[4],"data_offsets":[21,23]}}"#;
    let manager = host_manager();
    let disk = OnDisk::new(b"");
    let options = LoadOptions::new(HOST).staging(MemoryKind::Pinned);
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let mut text = header.as_bytes().to_vec();
        for _ in 0..random(3) {
            let at = random(text.len());
            match random(3) {
                0 => text[at] = b"0123456789\"[]{},: abcF\xFF"[random(23)],
                1 => drop(text.remove(at)),
                _ => text.insert(at, b"0123456789,\"[]"[random(14)]),
            }
        }
        let file = [&(text.len() as u64).to_le_bytes()[..], &text, &[0; 23]].concat();
        let theirs = SafeTensors::read_metadata(&file);
        std::fs::write(disk.path(), &file).unwrap();
        // The host has no pinned memory: this error comes after the header is validated and before any byte is read.
        let wrong = load(&manager, disk.path(), &options).unwrap_err();
        if wrong.kind() == ErrorKind::Unsupported {
            assert!(theirs.is_ok(), "{}", String::from_utf8_lossy(&text));
            taken += 1;
        } else {
            let said = wrong.to_string();
            let only_ours = said.contains("given twice") || said.contains("no tensors");
            assert!(theirs.is_err() || only_ours, "{said}: {}", String::from_utf8_lossy(&text));
            refused += 1;
        }
    }
    assert!(taken > 300 && refused > 300, "{taken} {refused}");
    assert_empty(&manager);
}
