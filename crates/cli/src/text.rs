//! Parses and formats sizes, rates and places.

use transload::{DeviceId, MemoryKind, Place, backend::ListWay};

const UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("bytes", 1),
];

/// Parses a number of bytes, at least 1: `4096`, `64KiB`, `1GB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let (false, Some(factor)) = (number.is_empty(), factor) else {
        return Err(
            "a size is a whole number, alone or with one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB".to_owned()
        );
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(0) => Err("0 bytes; a size is at least 1 byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("too large; a size is at most {} bytes", u64::MAX)),
    }
}

/// Parses `cpu`, `cpu/pinned`, `cuda:0`, `cuda:0/unified`.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    let (device, kind) = match text.split_once('/') {
        Some((device, kind)) => (device, Some(kind)),
        // The host has no ordinals, so a kind may follow its colon.
        None => match text.strip_prefix("cpu:") {
            Some(kind) if kind.starts_with(|c: char| c.is_ascii_alphabetic()) => ("cpu", Some(kind)),
            _ => (text, None),
        },
    };
    let device: DeviceId =
        device.parse().map_err(|error: transload::backend::ParseDeviceError| error.to_string())?;
    let kind = match kind {
        None => valid_kinds(device).first().copied(),
        Some(kind) => valid_kinds(device).iter().find(|valid| valid.to_string() == kind).copied(),
    };
    kind.map(|kind| Place::new(device, kind)).ok_or_else(|| no_such_kind(device))
}

/// Parses the name of a kind of memory.
pub(crate) fn parse_kind(text: &str) -> Result<MemoryKind, String> {
    MemoryKind::ALL.into_iter().find(|kind| kind.to_string() == text).ok_or_else(|| {
        let valid = MemoryKind::ALL.map(|kind| kind.to_string());
        format!("no kind of memory; expected {}", valid.join(", "))
    })
}

/// Returns a place with another kind of memory.
pub(crate) fn with_kind(place: Place, kind: MemoryKind) -> Result<Place, String> {
    let is_valid = valid_kinds(place.device).contains(&kind);
    is_valid.then_some(Place { kind, ..place }).ok_or_else(|| no_such_kind(place.device))
}

/// Pinned and mapped memory belongs to the host, whichever device pinned it.
fn valid_kinds(device: DeviceId) -> &'static [MemoryKind] {
    if device.is_cpu() {
        &[MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped]
    } else {
        &[MemoryKind::Device, MemoryKind::Unified]
    }
}

fn no_such_kind(device: DeviceId) -> String {
    let valid = valid_kinds(device).iter().map(|kind| Place::new(device, *kind).to_string());
    let valid: Vec<_> = valid.collect();
    format!("{device} has no such kind of memory; expected {}", valid.join(", "))
}

/// Formats a size: exact if below 1 KiB, else in the largest unit that leaves digits before the point.
pub(crate) fn bytes(bytes: u64) -> String {
    const NAMES: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = None;
    for name in NAMES {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(name);
    }
    match unit {
        None => format!("{bytes} B"),
        Some(unit) if value.fract() == 0.0 => format!("{value} {unit}"),
        Some(unit) => format!("{value:.1} {unit}"),
    }
}

/// Formats a count with its noun.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats a rate in units of 1000.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.2} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.2} MB/s", bytes_per_second / 1e6)
    }
}

#[cfg(test)]
#[path = "../tests/unit/text.rs"]
mod tests;

/// Returns the way of a list whose times are those on an idle device, or beside kernels.
pub(crate) fn way(way: ListWay, exclusive: bool) -> String {
    if exclusive { way.to_string() } else { format!("{way}, beside kernels") }
}
