//! Fill patterns: 1, 2, 4, 8 or 16 bytes to be repeated.

/// A fill pattern. Its bytes are those of the number in native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    U8(u8),
    /// Two bytes; offset and length must be multiples of 2.
    U16(u16),
    /// Four bytes; offset and length must be multiples of 4.
    U32(u32),
    /// Eight bytes; offset and length must be multiples of 8.
    U64(u64),
    /// Sixteen bytes; offset and length must be multiples of 16.
    U128(u128),
}

impl Pattern {
    /// Bytes in the widest pattern.
    const MOST: usize = 16;

    /// The shortest pattern that, over and over, gives elements of these bytes behind one another: one of 4 bytes for
    /// `[1.5_f32; 768]`, of 1 byte for an element whose bytes are all equal. `None` where no pattern does: for no bytes, and
    /// for those that do not repeat after 1, 2, 4, 8 or 16 of them.
    ///
    /// ```
    /// use transload_core::Pattern;
    ///
    /// assert_eq!(Pattern::from_bytes(&[7; 12]), Some(Pattern::U8(7)));
    /// assert_eq!(Pattern::from_bytes(&[1, 0, 1, 0]), Some(Pattern::U16(u16::from_ne_bytes([1, 0]))));
    /// assert_eq!(Pattern::from_bytes(&[1, 2, 3]), None);
    /// ```
    #[must_use]
    pub fn from_bytes(element: &[u8]) -> Option<Self> {
        let width = [1, 2, 4, 8, 16].into_iter().find(|width| repeats(element, *width))?;
        let mut bytes = [0; Self::MOST];
        bytes.get_mut(..width)?.copy_from_slice(element.get(..width)?);
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        Some(match width {
            1 => Self::U8(a),
            2 => Self::U16(u16::from_ne_bytes([a, b])),
            4 => Self::U32(u32::from_ne_bytes([a, b, c, d])),
            8 => Self::U64(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => Self::U128(u128::from_ne_bytes(bytes)),
        })
    }

    /// Returns its length in bytes.
    #[must_use]
    #[inline]
    pub fn width(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::U64(_) => 8,
            Self::U128(_) => 16,
        }
    }

    /// Returns the first 16 bytes of memory filled with it.
    #[must_use]
    pub fn repeated(self) -> [u8; 16] {
        let number = match self {
            Self::U8(value) => u128::from(value) * (u128::MAX / u128::from(u8::MAX)),
            Self::U16(value) => u128::from(value) * (u128::MAX / u128::from(u16::MAX)),
            Self::U32(value) => u128::from(value) * (u128::MAX / u128::from(u32::MAX)),
            Self::U64(value) => u128::from(value) * (u128::MAX / u128::from(u64::MAX)),
            Self::U128(value) => value,
        };
        number.to_ne_bytes()
    }

    /// Returns the shortest pattern with the same repetition.
    #[must_use]
    pub fn shortest(self) -> Self {
        Self::from_bytes(&self.repeated()).unwrap_or(self)
    }
}

/// Returns whether the bytes are whole repetitions of the first `width` of them.
fn repeats(bytes: &[u8], width: usize) -> bool {
    let (first, rest) = (bytes.get(..bytes.len().saturating_sub(width)), bytes.get(width..));
    bytes.len() >= width && bytes.len().is_multiple_of(width) && first == rest
}
