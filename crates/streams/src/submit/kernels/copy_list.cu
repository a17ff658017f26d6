// transload_copy_list(pieces, count): copies a list of pieces by the device's threads, a warp each. Mapped host memory is read and
// written in place; the list itself is in such memory.
//
// How copy_list.ptx was made: by hand, like copy.ptx, whose body it repeats.
//
// Promises: any alignment of either side of a piece, any size, any number of pieces, any grid of one dimension and block of whole
// warps. No destination overlaps another range. No byte outside the list and the ranges is touched.

#include "copy.cu"

struct Piece {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
};

extern "C" __global__ void transload_copy_list(const Piece *pieces, uint64_t count) {
    // The first pieces go to the first warps of all blocks, so that few pieces occupy all multiprocessors.
    uint64_t warp = uint64_t(threadIdx.x / 32) * gridDim.x + blockIdx.x;
    uint64_t warps = uint64_t(gridDim.x) * (blockDim.x / 32);
    for (uint64_t i = warp; i < count; i += warps) {
        copy_by(pieces[i].dst, pieces[i].src, pieces[i].bytes, threadIdx.x % 32, 32);
    }
}
