// Copies pieces of words, or of four words each, from one buffer to another. A workgroup copies one piece. No two pieces of `to` overlap.

// In words, or in four of them: where the piece is in `source` and in `to`, and its length.
struct Piece {
    source: u32,
    to: u32,
    words: u32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read> pieces: array<Piece>;
@group(0) @binding(2) var<storage, read_write> to: array<u32>;
@group(0) @binding(0) var<storage, read> wide_source: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> wide_to: array<vec4<u32>>;

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
