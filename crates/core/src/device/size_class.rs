//! Six classes of transfer sizes, for statistics and display only; no decision depends on a class.

use std::fmt;

/// The class that a transfer's size falls into.
///
/// ```
/// use transload_core::SizeClass;
///
/// assert_eq!(SizeClass::of(4096), SizeClass::UpTo4KiB);
/// assert_eq!(SizeClass::of(4097), SizeClass::UpTo64KiB);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SizeClass {
    /// At most 4 KiB.
    #[cfg_attr(feature = "serde", serde(rename = "up_to_4_kib"))]
    UpTo4KiB,
    /// At most 64 KiB.
    #[cfg_attr(feature = "serde", serde(rename = "up_to_64_kib"))]
    UpTo64KiB,
    /// At most 1 MiB.
    #[cfg_attr(feature = "serde", serde(rename = "up_to_1_mib"))]
    UpTo1MiB,
    /// At most 16 MiB.
    #[cfg_attr(feature = "serde", serde(rename = "up_to_16_mib"))]
    UpTo16MiB,
    /// At most 128 MiB.
    #[cfg_attr(feature = "serde", serde(rename = "up_to_128_mib"))]
    UpTo128MiB,
    /// More than 128 MiB.
    #[cfg_attr(feature = "serde", serde(rename = "larger"))]
    Larger,
}

impl SizeClass {
    /// All classes, smallest first.
    pub const ALL: [Self; 6] =
        [Self::UpTo4KiB, Self::UpTo64KiB, Self::UpTo1MiB, Self::UpTo16MiB, Self::UpTo128MiB, Self::Larger];

    /// Returns the class of `bytes`.
    #[must_use]
    #[inline]
    pub fn of(bytes: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|class| class.largest().is_some_and(|largest| bytes <= largest))
            .unwrap_or(Self::Larger)
    }

    /// Returns the largest size of the class in bytes; `None` for the last one.
    #[must_use]
    pub fn largest(self) -> Option<u64> {
        match self {
            Self::UpTo4KiB => Some(4 << 10),
            Self::UpTo64KiB => Some(64 << 10),
            Self::UpTo1MiB => Some(1 << 20),
            Self::UpTo16MiB => Some(16 << 20),
            Self::UpTo128MiB => Some(128 << 20),
            Self::Larger => None,
        }
    }

    /// Returns the index in [`ALL`](Self::ALL).
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::UpTo4KiB => "≤4 KiB",
            Self::UpTo64KiB => "≤64 KiB",
            Self::UpTo1MiB => "≤1 MiB",
            Self::UpTo16MiB => "≤16 MiB",
            Self::UpTo128MiB => "≤128 MiB",
            Self::Larger => ">128 MiB",
        })
    }
}
