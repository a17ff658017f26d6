//! Casts between floating-point element types: round to nearest even, the same bits on every device.

use std::fmt;

use super::operation::check_disjoint;
use crate::{Error, ErrorKind, RawBuffer, Result};

/// An element type that [`Operation::Cast`](crate::Operation::Cast) reads or writes.
///
/// A cast rounds to nearest, ties to even. What exceeds the largest finite value becomes an infinity, what is too small a subnormal or
/// zero. A NaN stays a NaN with its sign and the upper bits of its payload; other than from `bf16` to `f32`, which are its bits and 16
/// zeros, it becomes quiet. From `bf16` to `f16` and back, it goes by way of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum FloatType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
    F16,
    /// The upper half of an `f32`: 8 bits of exponent, 7 of mantissa.
    Bf16,
}

impl FloatType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Casts the little-endian elements of `src` to those of `dst`, as far as both have one.
    pub fn cast(self, src: &[u8], to: Self, dst: &mut [u8]) {
        match (self, to) {
            (Self::F32, Self::F32) => each(src, dst, |bits: [u8; 4]| bits),
            (Self::F32, Self::F16) => each(src, dst, |bits| f16_of(u32::from_le_bytes(bits)).to_le_bytes()),
            (Self::F32, Self::Bf16) => each(src, dst, |bits| bf16_of(u32::from_le_bytes(bits)).to_le_bytes()),
            (Self::F16, Self::F32) => {
                each(src, dst, |bits| f32_of_f16(u16::from_le_bytes(bits)).to_le_bytes())
            }
            (Self::F16, Self::Bf16) => {
                each(src, dst, |bits| bf16_of(f32_of_f16(u16::from_le_bytes(bits))).to_le_bytes());
            }
            (Self::Bf16, Self::F32) => each(src, dst, |[low, high]: [u8; 2]| [0, 0, low, high]),
            (Self::Bf16, Self::F16) => {
                each(src, dst, |bits| f16_of(u32::from(u16::from_le_bytes(bits)) << 16).to_le_bytes());
            }
            (Self::F16, Self::F16) | (Self::Bf16, Self::Bf16) => each(src, dst, |bits: [u8; 2]| bits),
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

#[inline(always)]
fn each<const FROM: usize, const TO: usize>(
    src: &[u8],
    dst: &mut [u8],
    cast: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let ((src, _), (dst, _)) = (src.as_chunks(), dst.as_chunks_mut());
    src.iter().zip(dst).for_each(|(from, to)| *to = cast(*from));
}

/// Without branches, so that the compiler vectorises it, like all of these.
#[inline(always)]
fn bf16_of(bits: u32) -> u16 {
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if is_nan { bits >> 16 | 0x40 } else { rounded }) as u16
}

#[inline(always)]
fn f16_of(bits: u32) -> u16 {
    /// Its last bit is worth 2⁻²⁴, as is that of a subnormal `f16`: adding it rounds there.
    const HALF: f32 = 0.5;
    let (sign, abs) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let nan = 0x7e00 | abs >> 13 & 0x3ff;
    let subnormal = (f32::from_bits(abs) + HALF).to_bits().wrapping_sub(HALF.to_bits());
    // The exponent less 112, rounded at bit 13. From 65,520 on this carries into the exponent of infinity.
    let normal = abs.wrapping_sub(112 << 23).wrapping_add(0xfff + (abs >> 13 & 1)) >> 13;
    let finite = if abs < 113 << 23 { subnormal } else { normal };
    let bounded = if abs >= 0x4780_0000 { 0x7c00 } else { finite };
    (sign | if abs > 0x7f80_0000 { nan } else { bounded }) as u16
}

#[inline(always)]
fn f32_of_f16(bits: u16) -> u32 {
    /// The value of a subnormal's last bit.
    const LEAST: f32 = 1.0 / (1 << 24) as f32;
    let (sign, abs) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let subnormal = (abs as f32 * LEAST).to_bits();
    let normal = (abs << 13) + (112 << 23);
    let finite = if abs < 0x400 { subnormal } else { normal };
    let infinite = 0x7f80_0000 | if abs > 0x7c00 { 0x40_0000 | abs << 13 } else { 0 };
    sign | if abs >= 0x7c00 { infinite } else { finite }
}

/// Checks what any queue requires of a cast.
pub(super) fn check_cast(
    (src, from): (&RawBuffer, FloatType),
    (dst, to): (&RawBuffer, FloatType),
) -> Result<()> {
    if from == to {
        let text = format!("a cast from {from} to {to}; expected two types (a copy keeps the type)");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    for (which, buffer, float) in [("source", src, from), ("destination", dst, to)] {
        let (len, offset, size) = (buffer.len(), buffer.offset(), float.size());
        if !len.is_multiple_of(size) || !offset.is_multiple_of(size) {
            let text = format!(
                "the {which}'s {len} bytes from offset {offset} on are no whole elements of {float}; expected multiples of {size}"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
    }
    let (there, here) = (src.len() / from.size(), dst.len() / to.size());
    if there != here {
        let text = format!(
            "source has {there} elements of {from}, destination {here} of {to}; expected equal numbers"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    check_disjoint(src, dst)
}

#[cfg(test)]
#[path = "../../tests/unit/cast.rs"]
mod tests;
