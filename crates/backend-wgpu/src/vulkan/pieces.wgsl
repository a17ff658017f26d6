// Copies words, or four at a time, from one buffer to another: pieces of a table, or a long region that is cut into pieces. A workgroup copies one
// piece. What is written does not overlap.

// In words, or in four of them: where the bytes are in `source` and in `to`, and their length.
struct Region {
    source: u32,
    to: u32,
    words: u32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read> pieces: array<Region>;
@group(0) @binding(2) var<storage, read_write> to: array<u32>;
@group(0) @binding(0) var<storage, read> wide_source: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> wide_to: array<vec4<u32>>;

var<immediate> region: Region;

// 64 KiB.
const PIECE = 16384u;
const WIDE_PIECE = 4096u;

@compute @workgroup_size(256)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let piece = pieces[group.x];
    for (var word = lane; word < piece.words; word += 256u) {
        to[piece.to + word] = source[piece.source + word];
    }
}

@compute @workgroup_size(256)
fn copy_wide(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let piece = pieces[group.x];
    for (var word = lane; word < piece.words; word += 256u) {
        wide_to[piece.to + word] = wide_source[piece.source + word];
    }
}

@compute @workgroup_size(256)
fn copy_long(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let end = min((group.x + 1u) * PIECE, region.words);
    for (var word = group.x * PIECE + lane; word < end; word += 256u) {
        to[region.to + word] = source[region.source + word];
    }
}

@compute @workgroup_size(256)
fn copy_long_wide(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let end = min((group.x + 1u) * WIDE_PIECE, region.words);
    for (var word = group.x * WIDE_PIECE + lane; word < end; word += 256u) {
        wide_to[region.to + word] = wide_source[region.source + word];
    }
}
