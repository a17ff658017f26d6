//! Numbers, sizes and names of paths as people read them.

/// Formats a number with about three digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// Formats a number with its unit, between them a space at which lines do not break.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    format!("{}\u{a0}{}", number(value), if unit == "us" { "µs" } else { unit })
}

/// Formats seconds in the largest unit below them.
pub(crate) fn seconds(value: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    // Powers of ten are not exact.
    let found = units.into_iter().find(|(unit, _)| value >= unit * 0.999_999);
    let (unit, name) = found.unwrap_or((1e-9, "ns"));
    let value = value / unit;
    let rounded = value.round();
    if (value - rounded).abs() < 1e-6 {
        format!("{rounded} {name}")
    } else {
        format!("{} {name}", number(value))
    }
}

const SIZES: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Formats a size in the largest unit of which it is a multiple.
pub(crate) fn size(bytes: u64) -> String {
    match SIZES.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Formats a size rounded to about three digits.
pub(crate) fn about(bytes: u64) -> String {
    match SIZES.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if !bytes.is_multiple_of(unit) => {
            format!("{} {name}", number(bytes as f64 / unit as f64))
        }
        _ => size(bytes),
    }
}

/// Formats a change in percent: `-12 %`, `+3.1 %`.
pub(crate) fn percent(factor: f64) -> String {
    let change = (factor - 1.0) * 100.0;
    if change.abs() >= 10.0 { format!("{change:+.0}\u{a0}%") } else { format!("{change:+.1}\u{a0}%") }
        .replace('-', "−")
}

/// Where the bytes come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
}

impl Direction {
    pub(crate) const ALL: [Self; 4] =
        [Self::HostToDevice, Self::DeviceToHost, Self::DeviceToDevice, Self::HostToHost];

    /// Returns the direction of a path named as in a row's id: `cpu.pinned-to-cuda:0.device`.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let (from, to) = path.split_once("-to-")?;
        if !from.contains('.') || !to.contains('.') || path.contains('/') {
            return None;
        }
        Some(match (is_host(from), is_host(to)) {
            (true, false) => Self::HostToDevice,
            (false, true) => Self::DeviceToHost,
            (false, false) => Self::DeviceToDevice,
            (true, true) => Self::HostToHost,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "Host → device",
            Self::DeviceToHost => "Device → host",
            Self::DeviceToDevice => "Device → device",
            Self::HostToHost => "Host → host",
        }
    }
}

fn is_host(place: &str) -> bool {
    place.starts_with("cpu.")
}

/// Describes a path: `host (pinned) → GPU 0`.
pub(crate) fn path(name: &str) -> String {
    match name.split_once("-to-") {
        Some((from, to)) => format!("{} → {}", place(from), place(to)),
        None => name.to_owned(),
    }
}

fn place(name: &str) -> String {
    let Some((device, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    let device = match (device, device.strip_prefix("cuda:")) {
        ("cpu", _) => "host".to_owned(),
        (_, Some(ordinal)) => format!("GPU {ordinal}"),
        _ => device.to_owned(),
    };
    if kind == "device" { device } else { format!("{device} ({kind})") }
}

/// Returns whether more of a unit is better.
pub(crate) fn is_rate(unit: &str) -> bool {
    unit.ends_with("/s") || unit == "share"
}

/// Returns whether a unit counts things, so that a simulated value has a meaning.
pub(crate) fn is_count(unit: &str) -> bool {
    matches!(unit, "allocations/transfer" | "paths" | "bytes held for each asked for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_and_about_rounds() {
        assert_eq!([size(3 << 20), size(4097), size(1 << 30)], ["3 MiB", "4097 B", "1 GiB"]);
        assert_eq!([about(227_482), about(3 << 20), about(7)], ["222 KiB", "3 MiB", "7 B"]);
    }

    #[test]
    fn quantities_have_three_digits_and_a_unit() {
        assert_eq!([quantity(9.2324, "us"), quantity(0.0, "ms")], ["9.23\u{a0}µs", "0\u{a0}ms"]);
        assert_eq!([seconds(1e-5), seconds(0.0125), seconds(2.5e-8)], ["10 µs", "12.5 ms", "25 ns"]);
        assert_eq!([percent(0.88), percent(1.031)], ["−12\u{a0}%", "+3.1\u{a0}%"]);
    }

    #[test]
    fn paths_are_described_and_have_a_direction() {
        assert_eq!(path("cpu.pinned-to-cuda:0.device"), "host (pinned) → GPU 0");
        assert_eq!(path("anything"), "anything");
        assert_eq!(Direction::of("cuda:0.unified-to-cpu.pageable"), Some(Direction::DeviceToHost));
        assert_eq!(Direction::of("scaling/host"), None);
    }
}
