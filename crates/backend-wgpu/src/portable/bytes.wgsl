// Writes ranges of bytes to words of a buffer, and leaves the other bytes of the words as they are. A workgroup does one range.

struct Job {
    // Where the range begins in `to`, and its length; in bytes.
    begin: u32,
    bytes: u32,
    // Where its bytes begin in `source`, in bytes; or, if `is_inline`, in `data` over and over.
    source: u32,
    is_inline: u32,
    data: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read> jobs: array<Job>;
// Other ranges may begin in the word in which one ends.
@group(0) @binding(2) var<storage, read_write> to: array<atomic<u32>>;

// The word at an offset in bytes.
fn word_at(job: Job, at: u32) -> u32 {
    let index = at / 4u;
    var low: u32;
    var high: u32;
    if job.is_inline != 0u {
        low = job.data[index & 3u];
        high = job.data[(index + 1u) & 3u];
    } else {
        low = source[index];
        high = source[index + 1u];
    }
    let shift = (at & 3u) * 8u;
    if shift == 0u {
        return low;
    }
    return (low >> shift) | (high << (32u - shift));
}

@compute @workgroup_size(64)
fn write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.x];
    let end = job.begin + job.bytes;
    for (var word = job.begin / 4u + lane; word * 4u < end; word += 64u) {
        let value = word_at(job, job.source + word * 4u - job.begin);
        // Of the word's bytes those from `first` to `last`.
        let first = max(word * 4u, job.begin) - word * 4u;
        let last = min(word * 4u + 4u, end) - word * 4u;
        if last - first == 4u {
            atomicStore(&to[word], value);
        } else {
            let mask = ((1u << ((last - first) * 8u)) - 1u) << (first * 8u);
            atomicAnd(&to[word], ~mask);
            atomicOr(&to[word], value & mask);
        }
    }
}
