//! The header of a safetensors file, validated against itself and the file's length.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use safetensors::{Dtype, tensor::TensorInfo};
use transload_core::{Error, ErrorKind, Result};

use super::{
    entries::{Entries, quoted, shortened},
    source::Source,
};

/// The format's limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Size of the header's length, which precedes it.
const PREFIX_BYTES: u64 = 8;

/// Tensors in the order of the file, contiguous up to the file's end.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) tensors: Vec<Entry>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Offset of the data in the file.
    pub(super) data: u64,
    /// Bytes of all tensors.
    pub(super) bytes: u64,
}

/// One tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// Why the header is invalid; the file name is prefixed later.
struct Invalid(String);

impl Header {
    /// Reads the header.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where the file is not valid, [`ErrorKind::Io`].
    pub(super) fn read(source: &Source) -> Result<Self> {
        let error = |source: &Source, invalid: Invalid| {
            let text = format!("{} is not a valid safetensors file: {invalid}", source.name());
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let len = source.len();
        let Some(rest) = len.checked_sub(PREFIX_BYTES) else {
            let text = format!("it has {len} bytes, fewer than the {PREFIX_BYTES} of the header's length");
            return Err(error(source, Invalid(text)));
        };
        let mut prefix = [0; PREFIX_BYTES as usize];
        source.read_exact_at(0, &mut prefix)?;
        let size = u64::from_le_bytes(prefix);
        if let Err(invalid) = check_length(size, rest) {
            return Err(error(source, invalid));
        }
        let mut text = vec![0; usize::try_from(size).unwrap_or_default()];
        source.read_exact_at(PREFIX_BYTES, &mut text)?;
        let data = PREFIX_BYTES + size;
        parse(&text, data, len - data).map_err(|invalid| error(source, invalid))
    }

    /// Makes a header for the whole file as one tensor of bytes, named after the file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty file, or one that exceeds the address space.
    pub(super) fn raw(source: &Source) -> Result<Self> {
        let (name, len) = (source.name(), source.len());
        let valid = format!("valid: a file of 1 to {} bytes", isize::MAX);
        let bytes = match usize::try_from(len) {
            Ok(0) => return Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is empty; {valid}"))),
            Ok(bytes) if isize::try_from(bytes).is_ok() => bytes,
            _ => {
                let text = format!("{name} has {len} bytes; {valid}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        };
        let entry = Entry { name: name.to_owned(), dtype: Dtype::U8, shape: vec![bytes], bytes };
        Ok(Self { tensors: vec![entry], metadata: BTreeMap::new(), data: 0, bytes: len })
    }
}

fn check_length(size: u64, rest: u64) -> Result<(), Invalid> {
    if size > MAX_HEADER_BYTES {
        return Err(Invalid(format!(
            "it declares a header of {size} bytes; valid: at most {MAX_HEADER_BYTES}"
        )));
    }
    if size > rest {
        return Err(Invalid(format!(
            "it declares a header of {size} bytes, but only {rest} follow: it is truncated, or has another format"
        )));
    }
    Ok(())
}

fn parse(text: &[u8], data: u64, bytes: u64) -> Result<Header, Invalid> {
    let text =
        std::str::from_utf8(text).map_err(|error| Invalid(format!("its header is not UTF-8: {error}")))?;
    let Entries { tensors, metadata } = serde_json::from_str(text).map_err(|error| {
        Invalid(shortened(format!("its header is not valid JSON for the format: {error}"), 600))
    })?;
    let tensors = validate(tensors, bytes)?;
    Ok(Header { tensors, metadata: metadata.unwrap_or_default(), data, bytes })
}

/// Returns the tensors in the order of the file; fails unless they fill its `bytes` of data exactly.
fn validate(mut given: Vec<(String, TensorInfo)>, bytes: u64) -> Result<Vec<Entry>, Invalid> {
    let mut names = HashSet::with_capacity(given.len());
    if let Some((name, _)) = given.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(Invalid(format!("tensor {} is given twice; names must be unique", quoted(name))));
    }
    given.sort_by(|(a, left), (b, right)| left.data_offsets.cmp(&right.data_offsets).then_with(|| a.cmp(b)));
    let mut tensors: Vec<Entry> = Vec::with_capacity(given.len());
    let mut end = 0;
    for (name, info) in given {
        let size = tensor_bytes(&name, &info, bytes)?;
        let begin = info.data_offsets.0 as u64;
        if begin < end {
            let last = tensors.last().map_or(String::new(), |last| quoted(&last.name));
            return Err(Invalid(format!(
                "tensors {last} and {} overlap: one ends at byte {end} of the data, the other begins at {begin}",
                quoted(&name)
            )));
        }
        check_contiguous(end, begin)?;
        end = info.data_offsets.1 as u64;
        tensors.push(Entry { name, dtype: info.dtype, shape: info.shape, bytes: size });
    }
    if tensors.is_empty() {
        return Err(Invalid("it has no tensors; at least one is needed".to_owned()));
    }
    check_contiguous(end, bytes)?;
    Ok(tensors)
}

fn check_contiguous(end: u64, next: u64) -> Result<(), Invalid> {
    if end == next {
        return Ok(());
    }
    Err(Invalid(format!(
        "bytes {end} to {next} of its data belong to no tensor; tensors must be contiguous up to the end of the file"
    )))
}

/// Returns a tensor's size; fails unless its offsets, type and shape agree.
fn tensor_bytes(name: &str, info: &TensorInfo, bytes: u64) -> Result<usize, Invalid> {
    let (begin, end) = info.data_offsets;
    let what = || {
        let shape = shortened(format!("{:?}", info.shape), 80);
        format!("tensor {} of {} {shape}", quoted(name), info.dtype)
    };
    let Some(held) = end.checked_sub(begin) else {
        return Err(Invalid(format!("{} ends at byte {end}, before it begins at {begin}", what())));
    };
    if end as u64 > bytes {
        return Err(Invalid(format!(
            "{} ends at byte {end} of the data, but the file has {bytes}: it is truncated, or the header is wrong",
            what()
        )));
    }
    let elements = info.shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    match elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize())) {
        None => Err(Invalid(format!("{} exceeds the address space", what()))),
        Some(bits) if bits % 8 != 0 => {
            Err(Invalid(format!("{} has {bits} bits, which is not a whole number of bytes", what())))
        }
        Some(bits) if bits / 8 != held => Err(Invalid(format!(
            "{} has {} bytes, but its offsets {begin} to {end} hold {held}; both must agree",
            what(),
            bits / 8
        ))),
        Some(_) => Ok(held),
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
