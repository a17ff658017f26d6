//! The built-in table of this crate: figures of one machine (H200, PCIe 5) by which kernels and batches are divided. Calibrations measure
//! the methods with them.

/// Maximum blocks per multiprocessor of a copy: two saturate the link (51 and 52 GB/s) and device memory (2.0 TB/s) and leave room for
/// other kernels; eight are no faster, and a third slower towards the host if source and destination cannot both be aligned.
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// Most blocks of a launch that gathers or scatters within a device's memory. A warp has about 2 GB/s: these have several times a link's
/// rate, and occupy a quarter of the multiprocessors.
pub(crate) const HALF_BLOCKS: u32 = 32;

/// Longest pieces of it, in bytes: a warp copies a piece.
pub(crate) const HALF_PIECE: usize = 16 << 10;

/// Longest pieces of a small list for a copy kernel, in bytes. A warp copies a piece, so short ones occupy more of the device.
pub(crate) const LIST_PIECE: u64 = 4096;

/// Pieces into which a larger list is cut at least, if they are not shorter than [`LIST_PIECE`]: about two for each warp.
pub(crate) const LIST_CUTS: u64 = 4096;

/// Pieces of the first launch of a long list: a link moves a piece of 4 KiB in some 80 ns, in which the host writes about two entries.
pub(crate) const FIRST_PART: usize = 128;

/// How many times as many the next launch has, if it begins when the one before it ends, with nothing to do for the link meanwhile. Measured on
/// an H200: 4,096 pieces of 32 KiB down took 2.70 ms, with 8 times as many 2.83 and by one launch 2.84.
pub(crate) const GROWTH: usize = 4;

/// Launches that overlap have as many pieces as the first, or so large a part of all before them, for each takes the host some 2 us. Measured on
/// an H200 (docs/benchmarks/2026-11-29-1xH200-lists-both-ways.txt): 1,000 pieces of 4 KiB up take 97 to 101 us, with a sixteenth 101 to 105, and
/// the kernel alone 91 to 96; 10,000 pieces 860, 865 to 903, and 830.
pub(crate) const OVERLAPPING_PARTS: usize = 4;

/// Operations in flight on a stream from which a list is one launch: the host has written all of it before the device comes to it, and a
/// driver's launch queue has room for about a thousand.
pub(crate) const LAUNCHED_WHOLE: u64 = 16;

/// Least pieces of a list that is launched in parts: a launch takes the host as long as some hundred entries.
pub(crate) const LONG_LIST: usize = 4 * FIRST_PART;

/// Least average bytes of a pair of such a list, for which the device takes longer than the host for the entry.
pub(crate) const LONG_PIECE: u64 = 1024;

/// Most copies that are enqueued one by one although the driver has a call for many.
pub(crate) const SINGLE_CALLS: usize = 3;
