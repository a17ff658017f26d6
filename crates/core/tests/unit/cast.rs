//! Casts against the nearest of all values, found by search.

use super::*;

/// The magnitudes of all finite values of a 16-bit type and the first beyond, by their bits: exact in `f64`.
fn magnitudes(exponent_bits: u32, mantissa_bits: u32) -> Vec<f64> {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let infinity = ((1_u32 << exponent_bits) - 1) << mantissa_bits;
    let value = |bits: u32| {
        let (exponent, mantissa) = (bits >> mantissa_bits, bits & ((1 << mantissa_bits) - 1));
        let fraction = f64::from(mantissa) / f64::from(1_u32 << mantissa_bits);
        match exponent {
            0 => fraction * 2_f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2_f64.powi(exponent as i32 - bias),
        }
    };
    (0..=infinity).map(value).collect()
}

/// The nearest of the magnitudes, of two the even one: not the way that the library takes.
fn nearest(magnitudes: &[f64], value: f32) -> u16 {
    let abs = f64::from(value.abs());
    let above = magnitudes.partition_point(|one| *one < abs);
    let bits = match above {
        0 => 0,
        above if above == magnitudes.len() => above - 1,
        above => {
            let (low, high) = (abs - magnitudes[above - 1], magnitudes[above] - abs);
            if low < high || (low == high && above % 2 == 1) { above - 1 } else { above }
        }
    };
    bits as u16 | if value.is_sign_negative() { 0x8000 } else { 0 }
}

/// Values at and next to every value of a type and every tie between two, with many others.
fn tricky(magnitudes: &[f64]) -> impl Iterator<Item = u32> {
    let ties = magnitudes.windows(2).map(|two| f64::midpoint(two[0], two[1]));
    let exact = magnitudes.iter().copied().chain(ties).map(|value| (value as f32).to_bits());
    let around = exact.flat_map(|bits| [bits.wrapping_sub(1) & 0x7fff_ffff, bits, bits + 1]);
    let spread = (0..1_u32 << 20).map(|at| at.wrapping_mul(0x9e37_79b1));
    around.flat_map(|bits| [bits, bits | 0x8000_0000]).chain(spread)
}

fn cast_one(from: FloatType, bits: u32, to: FloatType) -> u32 {
    let mut out = [0; 4];
    from.cast(&bits.to_le_bytes()[..from.size()], to, &mut out[..to.size()]);
    u32::from_le_bytes(out)
}

fn narrows(to: FloatType, exponent_bits: u32, mantissa_bits: u32) {
    let magnitudes = magnitudes(exponent_bits, mantissa_bits);
    let infinity = (magnitudes.len() - 1) as u32;
    for bits in tricky(&magnitudes) {
        let value = f32::from_bits(bits);
        let found = cast_one(FloatType::F32, bits, to);
        if value.is_nan() {
            let quiet = 1 << (mantissa_bits - 1);
            let payload = bits >> (23 - mantissa_bits) & ((1 << mantissa_bits) - 1);
            let expected = bits >> 16 & 0x8000 | infinity | quiet | payload;
            assert_eq!(found, expected, "NaN {bits:#010x} to {to}");
        } else {
            let expected = u32::from(nearest(&magnitudes, value));
            assert_eq!(found, expected, "{value:e} ({bits:#010x}) to {to}");
        }
    }
}

#[test]
fn f32_rounds_to_the_nearest_even_f16() {
    narrows(FloatType::F16, 5, 10);
}

#[test]
fn f32_rounds_to_the_nearest_even_bf16() {
    narrows(FloatType::Bf16, 8, 7);
}

#[test]
fn every_16_bit_value_is_the_same_f32_and_comes_back() {
    for (from, exponent_bits, mantissa_bits) in [(FloatType::F16, 5, 10), (FloatType::Bf16, 8, 7)] {
        let magnitudes = magnitudes(exponent_bits, mantissa_bits);
        for bits in 0..=0xffff_u32 {
            let wide = cast_one(from, bits, FloatType::F32);
            let (value, abs) = (f32::from_bits(wide), (bits & 0x7fff) as usize);
            assert_eq!(value.is_sign_negative(), bits & 0x8000 != 0, "{from} {bits:#06x}");
            let back = cast_one(FloatType::F32, wide, from);
            if abs >= magnitudes.len() {
                assert!(value.is_nan(), "{from} {bits:#06x}");
                assert_eq!(back, bits | 1 << (mantissa_bits - 1));
                continue;
            }
            let is_infinite = abs == magnitudes.len() - 1;
            let expected = if is_infinite { f64::INFINITY } else { magnitudes[abs] };
            assert_eq!(f64::from(value.abs()), expected, "{from} {bits:#06x}");
            assert_eq!(back, bits);
        }
    }
}

#[test]
fn between_16_bit_types_equals_by_way_of_f32() {
    for (from, to) in [(FloatType::F16, FloatType::Bf16), (FloatType::Bf16, FloatType::F16)] {
        for bits in 0..=0xffff {
            let by_way = cast_one(FloatType::F32, cast_one(from, bits, FloatType::F32), to);
            assert_eq!(cast_one(from, bits, to), by_way, "{from} {bits:#06x} to {to}");
        }
    }
}
