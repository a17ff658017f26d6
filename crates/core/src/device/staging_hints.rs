//! What a backend says of how transfers through staging buffers are divided.

/// How transfers between the host and a device go through staging buffers, as far as the device differs from most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StagingHints {
    /// Over how many [reserved queues](crate::Backend::lease_reserved_queue) a transfer is spread: more than one where a queue pauses
    /// between operations, and leases return different queues in turn.
    pub queues: usize,
    /// Average bytes of the pieces of a list up to which one queue for [computing](crate::WorkloadType::Compute) copies it faster than
    /// others; 0, the default, if none does.
    pub computed_piece: usize,
    /// Bytes of an upload that one operation copies, at most a staging buffer; `None`, the default, if 1 MiB is right.
    pub upload_segment: Option<u64>,
    /// The same of a download; `None`, the default, if 512 KiB are right.
    pub download_segment: Option<u64>,
    /// Least bytes of an upload that the host stores into the processor's caches, where these are large; `None`, the default, if 128 MiB
    /// are right.
    pub upload_cached_from: Option<u64>,
}

impl Default for StagingHints {
    fn default() -> Self {
        Self {
            queues: 1,
            computed_piece: 0,
            upload_segment: None,
            download_segment: None,
            upload_cached_from: None,
        }
    }
}
