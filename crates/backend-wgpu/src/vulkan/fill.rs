//! The commands of a fill.

use transload_core::Pattern;

use super::{
    BufferHandle,
    submissions::{Command, Commands, Region, Regions, SCRATCH},
};

/// Returns the commands that fill a range. Vulkan fills whole words only; the rest is copied from scratch memory.
pub(super) fn fill(dst: BufferHandle, offset: u64, bytes: u64, pattern: Pattern) -> Commands {
    let repeated = pattern.repeated();
    let [a, b, c, d, ..] = repeated;
    let (end, mut commands) = (offset + bytes, Commands::new());
    let (first, last) = (offset.next_multiple_of(4), end / 4 * 4);
    let region = |from: u64, to: u64, size: u64| Region { src_offset: from, dst_offset: to, size };
    if pattern.width() <= 4 && first < last {
        // The pattern begins anew at each word, since the offset is a multiple of its width.
        let word = u32::from_ne_bytes([a, b, c, d]);
        commands.push(Command::FillWords { dst, offset: first, bytes: last - first, word });
        let edges = [region(0, offset, first - offset), region(0, last, end - last)];
        let regions: Regions = edges.into_iter().filter(|edge| edge.size > 0).collect();
        if !regions.is_empty() {
            commands.push(Command::WriteScratch { bytes: repeated.to_vec() });
            commands.push(Command::Barrier);
            commands.push(Command::CopyScratch { dst, regions });
        }
    } else if bytes > 0 {
        let mut done = bytes.min(SCRATCH as u64);
        let written = done.next_multiple_of(16) as usize;
        commands
            .push(Command::WriteScratch { bytes: repeated.iter().copied().cycle().take(written).collect() });
        commands.push(Command::Barrier);
        commands.push(Command::CopyScratch { dst, regions: [region(0, offset, done)].into_iter().collect() });
        while done < bytes {
            let part = done.min(bytes - done);
            commands.push(Command::Barrier);
            let regions = [region(offset, offset + done, part)].into_iter().collect();
            commands.push(Command::Copy { src: dst, dst, regions, is_bindable: false, is_local: false });
            done += part;
        }
    }
    commands
}

#[cfg(test)]
#[path = "../../tests/unit/fill.rs"]
mod tests;
