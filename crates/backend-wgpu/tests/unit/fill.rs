//! Fills are words as far as Vulkan can, and touch nothing else.

use ash::vk::Handle as _;
use transload_core::Pattern;

use super::{BufferHandle, Command, SCRATCH, fill};

/// Runs the commands on host memory.
fn run(memory: &mut [u8], offset: usize, bytes: usize, pattern: Pattern) -> usize {
    let (mut scratch, mut words) = ([0_u8; SCRATCH], 0);
    for command in fill(BufferHandle::from_raw(1), offset as u64, bytes as u64, pattern) {
        match command {
            Command::FillWords { offset, bytes, word, .. } => {
                assert!(offset % 4 == 0 && bytes % 4 == 0 && bytes > 0);
                let range = offset as usize..(offset + bytes) as usize;
                memory[range].chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&word.to_ne_bytes()));
                words += bytes as usize;
            }
            Command::WriteScratch { bytes } => {
                assert!(bytes.len() % 4 == 0 && !bytes.is_empty());
                scratch[..bytes.len()].copy_from_slice(&bytes);
            }
            Command::CopyScratch { regions, .. } => {
                for region in regions {
                    let (from, to, size) =
                        (region.src_offset as usize, region.dst_offset as usize, region.size as usize);
                    memory[to..to + size].copy_from_slice(&scratch[from..from + size]);
                }
            }
            Command::Copy { regions, .. } => {
                for region in regions {
                    let (from, size) = (region.src_offset as usize, region.size as usize);
                    memory.copy_within(from..from + size, region.dst_offset as usize);
                }
            }
            Command::CopyList(_) => unreachable!("a fill copies no list"),
            Command::Barrier | Command::HandOver { .. } | Command::Timestamp { .. } => {}
        }
    }
    words
}

#[test]
fn fills_write_every_byte_of_the_range_and_no_other() {
    let wide = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10_u128;
    let patterns = [
        Pattern::U8(7),
        Pattern::U16(0x0102),
        Pattern::U32(0x0102_0304),
        Pattern::U64(wide as u64),
        Pattern::U128(wide),
    ];
    for pattern in patterns {
        let width = pattern.width();
        for start in 0..5 {
            for count in [0, 1, 2, 3, 5, 9, 300, 1000] {
                let (offset, bytes) = (start * width, count * width);
                let mut memory = vec![0xEE; offset + bytes + 40];
                let mut expected = memory.clone();
                let repeated = pattern.repeated();
                expected[offset..offset + bytes]
                    .iter_mut()
                    .zip(repeated.iter().cycle())
                    .for_each(|(to, from)| *to = *from);
                let words = run(&mut memory, offset, bytes, pattern);
                assert!(memory == expected, "{bytes} bytes from {offset} on of {pattern:?}");
                assert!(width > 4 || words + 6 >= bytes, "{words} of {bytes} bytes as words");
            }
        }
    }
}
