// transload_copy_list(pieces, count, more): copies a list of pieces by the device's threads, a warp each. Mapped host memory is read and
// written in place; the list itself is in such memory.
//
// How copy_list.ptx was made: by hand, like copy.ptx, whose bodies it repeats.
//
// Promises: any alignment of either side of a piece, any size, any number of pieces, any grid of one dimension and block of whole
// warps. No destination overlaps another range. No byte outside the list and the ranges is touched.
//
// Launches of one list may overlap (programmatic dependent launch, CUDA Programming Guide): with `more`, the next one may begin as soon as all
// blocks of this one have begun, and each ends after the one before it. Only devices from compute capability 9.0 on have the two instructions:
// their lines of the PTX begin with `//sm_90`, and are comments for others. A launch that began early may find in its multiprocessor's cache a
// line of the list as it was before this part was written, so it begins with a fence. Measured on an H200, that takes no time; volatile
// loads of the entries take 1,000 pieces of 4 KiB from 104 to 170 us.

#include "copy.cu"

struct Piece {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
};

extern "C" __global__ void transload_copy_list(const Piece *pieces, uint64_t count, uint32_t more) {
    // Lets the launch after this one begin, if that is of the same list.
    if (more) {
        asm volatile("griddepcontrol.launch_dependents;");
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    // The first pieces go to the first warps of all blocks, so that few pieces occupy all multiprocessors.
    uint64_t warp = uint64_t(threadIdx.x / 32) * gridDim.x + blockIdx.x;
    uint64_t warps = uint64_t(gridDim.x) * (blockDim.x / 32);
    uint32_t lane = threadIdx.x % 32;
    for (uint64_t i = warp; i < count; i += warps) {
        auto [dst, src, bytes] = pieces[i];
        Parts parts = parts_of(uint64_t(dst), uint64_t(src), bytes);
        // Head and rest have fewer bytes than a warp has threads. They are stored after the body, whose loads do not wait for them then.
        bool in_head = lane < parts.head, in_rest = parts.rest + lane < bytes;
        uint8_t head = in_head ? src[lane] : 0;
        uint8_t rest = in_rest ? src[parts.rest + lane] : 0;
        uint4 *to = (uint4 *)(dst + parts.head);
        const uint4 *from = (const uint4 *)(src + parts.head - parts.apart);
        if (parts.apart == 0) {
            body(to, from, parts.units, lane, 32);
        } else {
            body_apart(to, from, parts.apart, parts.units, 0, 128, lane);
        }
        if (in_head) {
            dst[lane] = head;
        }
        if (in_rest) {
            dst[parts.rest + lane] = rest;
        }
    }
    // Ends after the launch before this one.
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
