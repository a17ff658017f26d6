//! The built-in table of this crate: figures of one machine (H200, PCIe 5, 16 processors) that stand in code. What copies cost is in the
//! backends' tables. A [calibration](crate::CrossBackendTransferManager::calibrate) replaces a figure where the figure's text says
//! so; the others change how fast a method is, and calibrations measure the methods with them.

/// Most workers of a transfer, unless a calibration found another number: more do not raise a link's rate (measured with 4, 8 and 14).
pub(crate) const WORKERS: usize = 8;

/// Bytes that one driver call copies between a staging buffer and the device, unless a calibration found another number: so long does the
/// device wait for the first ones of an upload.
pub(crate) const SEGMENT: usize = 1 << 20;

/// The same of a download: 5 to 24 MiB come 5 to 15 % faster than by 1 MiB, and a third faster than by 256 KiB.
pub(crate) const DOWNLOAD_SEGMENT: usize = SEGMENT / 2;

/// Least bytes of a segment at the beginning and at the end of a transfer whose usual segments are longer than [`SEGMENT`].
pub(crate) const FIRST_SEGMENT: usize = SEGMENT / 2;

/// Segments of a short transfer, for which the device, or the host, would otherwise begin late; and the least bytes of one.
pub(crate) const SHORT_SEGMENTS: usize = 4;
pub(crate) const SHORT_SEGMENT: usize = 256 << 10;

/// Threads that copy a transfer that fits a staging buffer, unless a calibration found another number: 3 MiB go up in 132 µs with six, in
/// 152 with eight.
pub(crate) const SHORT_THREADS: usize = 6;

/// Bytes from which an upload goes through the processor's caches, on CUDA: 256 MiB go up at 45 instead of 40 GB/s, 1 GiB at 50 instead of
/// 41, but 16 MiB at 28 instead of 37; by two processors 256 MiB at 13.6 instead of 12.6, 48 MiB at 15 instead of 22.
pub(crate) const CACHED_FROM: u64 = 128 << 20;

/// Bytes from which a piece of an upload is stored past the caches: a copy engine reads slowly what cores have just written and still hold. By 16
/// processors 1,000 pieces of 2, 4 and 8 KiB go up through device memory in 141, 174 and 289 µs instead of 171, 253 and 442.
pub(crate) const STREAMED_FOR_ENGINES: usize = 2 << 10;

/// The same for CUDA's copy kernel, which has more reads under way. Past the caches 300 pieces of 4 KiB take 85 µs instead of 79, and 1,000 of 2 KiB 148
/// instead of 123; by two processors 3,000 of 8 KiB take 1.5 ms instead of 1.8, which by 16 differ by less than 5 %.
pub(crate) const STREAMED_FOR_KERNELS: usize = 8 << 10;

/// Bytes of a part that a thread copies at once: some ten microseconds of it.
pub(crate) const PART: usize = 128 << 10;

/// The same of a transfer that fits a staging buffer, whose threads would otherwise wait long for the last one.
pub(crate) const SHORT_PART: usize = 64 << 10;

/// The same of an upload into the caches: a core that writes more of a staging buffer in a row takes fewer lines from others.
pub(crate) const CACHED_PART: usize = 256 << 10;

/// Chunks that threads copy part by part at once: the second one's parts are there when the first one's are taken.
pub(crate) const PARTED: usize = 2;

/// The same of an upload into the caches, of which more should be there when the device begins to read: 256 MiB go up at 48 GB/s instead
/// of 45.5.
pub(crate) const PARTED_INTO_CACHES: usize = 4;

/// Bytes from which a download is copied by chunks, one for a thread, and not in parts: 5 MiB come at 21 GB/s in parts, at 16 in chunks;
/// 16 MiB at 28 and 25; 32 MiB at the same rate.
pub(crate) const CHUNKED: usize = 32 << 20;

/// Chunk size, in bytes, from which the device takes longer than a task switch.
pub(crate) const LARGE_CHUNK: usize = 1 << 20;

/// Rows of pageable memory up to which the driver's own copy is faster than a list of them, in bytes: 16 MiB of 4 KiB rows take the driver
/// 1.2 ms up and 1.6 down, as a list 1.9 and 4.2; lists of 64 KiB pieces are twice as fast as the driver.
pub(crate) const DRIVER_ROW: usize = 16 << 10;

/// Rows from one device to another from which copy engines copy them, in bytes: a kernel takes 0.88 ms for 300 of 1 MiB, engines 0.95; 0.22
/// and 0.65 for 1,000 of 64 KiB.
pub(crate) const ENGINE_ROW: usize = 1 << 20;

/// Most copies of a path by engines that are recorded. One batch call is faster than a graph with a node for each, and takes less of the
/// host's time: 1,000 pieces of 64 KiB in 2.1 against 4.0 ms, submitted in 0.9 against 1.8.
pub(crate) const RECORDED_COPIES: usize = 3;

/// Which lists go through device memory, unless a calibration measured lists: beside a GEMM loop. Alone, a kernel on the
/// host's memory is faster, unless as much goes the other way.
pub(crate) mod through_device {
    /// Least pieces of a list of pageable memory, and their average length in bytes up to which it is faster than the batch call, for a
    /// list that is staged. Its kernel waits for those of others, 1.5 ms beside a loop of large matrix products; the batch call takes
    /// 1.4 µs a piece there.
    pub(crate) const LEAST_STAGED: u64 = 512;
    pub(crate) const SHORT_STAGED: u64 = 16 << 10;
    /// Least bytes of a list; fewer are not worth a launch.
    pub(crate) const LEAST: u64 = 1 << 20;
    /// Average bytes of a piece up to which it is faster than the batch call.
    pub(crate) const SHORT: u64 = 32 << 10;
    /// Least bytes of a list of a device without other work that goes as if there were some, because as much goes the other way at once:
    /// kernels on the host's memory have 65 to 78 GB/s both ways together then, and this way 78 to 99
    /// (docs/benchmarks/2026-11-29-1xH200-lists-both-ways.txt).
    pub(crate) const LEAST_OPPOSED: u64 = 4 << 20;
    /// Least pieces of a stretch on average, calibrated or not.
    pub(crate) const JOINED: u64 = 4;
    /// Most bytes between two pieces of a stretch of an upload, and the part of the average piece that they are at most: a copy engine copies
    /// 8 KiB in 160 ns, and takes one to two microseconds for another copy; and the link and scratch memory have at most a quarter more
    /// bytes than those of the list, by which its time is predicted.
    pub(crate) const GAP: usize = 8 << 10;
    pub(crate) const GAP_SHARE: u64 = 4;
}
