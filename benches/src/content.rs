//! Random contents: one long block of which every measurement uses a different part.

/// Number of positions at which a part may begin.
const STARTS: usize = 64 << 10;

/// Random bytes.
#[derive(Debug)]
pub struct Content {
    block: Vec<u8>,
    state: u64,
}

impl Content {
    /// Creates contents of up to `longest` bytes.
    #[must_use]
    pub fn new(longest: usize, seed: u64) -> Self {
        let mut content = Self { block: Vec::new(), state: seed };
        let words = (longest + STARTS).div_ceil(8);
        content.block.reserve_exact(words * 8);
        for _ in 0..words {
            let word = content.next();
            content.block.extend_from_slice(&word.to_ne_bytes());
        }
        content
    }

    /// Splitmix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random position of a part.
    pub fn draw(&mut self) -> usize {
        usize::try_from(self.next() % STARTS as u64).unwrap_or(0)
    }

    /// Returns the part of `bytes` bytes at a drawn position.
    #[must_use]
    pub fn part(&self, start: usize, bytes: usize) -> &[u8] {
        self.block.get(start..start + bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_length_and_differ() {
        let mut content = Content::new(4096, 1);
        let (a, b) = (content.draw(), content.draw());
        assert_eq!(content.part(a, 4096).len(), 4096);
        assert_eq!(content.part(STARTS - 1, 4096).len(), 4096);
        assert_ne!(content.part(a, 4096), content.part(b, 4096));
    }
}
