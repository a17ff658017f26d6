// transload_copy(dst, src, bytes): copies by the device's threads, which read or write mapped host memory in place.
//
// How copy.ptx was made: written by hand after this source, in the oldest words that do (PTX ISA 6.0 of CUDA 9, sm_50), so
// that the driver of any machine in use compiles it when it is loaded; no toolkit takes part in a build. This file is what
// to read; it is not compiled. Change both together, and run the tests of crates/streams on a real device
// (TRANSLOAD_TEST_DRIVER=real): the software driver runs a host kernel in Rust (crates/cuda-sim/src/kernels.rs) instead of the PTX.
//
// Promises: any alignment of either side, any size from 1 byte on (indices have 64 bits), any grid and block of one
// dimension. The ranges do not overlap. No byte outside the two ranges is touched, also where aligned blocks are loaded.

#include <cstdint>

// A grid-stride loop with four loads under way before their stores: a load over the host's link takes about a microsecond.
static __device__ void body(uint4 *dst, const uint4 *src, uint64_t units, uint64_t index, uint64_t stride) {
    uint64_t i = index;
    for (; i + 3 * stride < units; i += 4 * stride) {
        uint4 a = src[i];
        uint4 b = src[i + stride];
        uint4 c = src[i + 2 * stride];
        uint4 d = src[i + 3 * stride];
        dst[i] = a;
        dst[i + stride] = b;
        dst[i + 2 * stride] = c;
        dst[i + 3 * stride] = d;
    }
    for (; i < units; i += stride) {
        dst[i] = src[i];
    }
}

// Whole words of two neighbouring blocks, from byte `apart` on.
static __device__ uint4 joined(uint4 block, uint4 next, uint32_t apart) {
    uint32_t words[8] = {block.x, block.y, block.z, block.w, next.x, next.y, next.z, next.w};
    const uint32_t *from = words + apart / 4;
    uint32_t bits = apart % 4 * 8;
    return {__funnelshift_r(from[0], from[1], bits), __funnelshift_r(from[1], from[2], bits),
            __funnelshift_r(from[2], from[3], bits), __funnelshift_r(from[3], from[4], bits)};
}

// The block after `block`: that of the next thread, and the last thread's is the first one of the row after it.
static __device__ uint4 next_of(uint4 block, uint4 after, uint32_t lane) {
    uint4 shown = lane == 0 ? after : block;
    auto from_next = [&](uint32_t word) { return __shfl_sync(~0u, word, (lane + 1) % 32); };
    return {from_next(shown.x), from_next(shown.y), from_next(shown.z), from_next(shown.w)};
}

// Units of sides that are apart: `blocks` are the aligned blocks of the source, and each unit is of two of them. A whole warp has four rows
// of 32 units at once, from unit `first` on and then `step` units further.
static __device__ void body_apart(
    uint4 *dst, const uint4 *blocks, uint32_t apart, uint64_t units, uint64_t first, uint64_t step, uint32_t lane
) {
    for (; first < units; first += step) {
        uint4 row[5];
        for (uint32_t r = 0; r < 5; r++) {
            uint64_t i = first + 32 * r + lane;
            if (i <= units && (r < 4 || lane == 0)) {
                row[r] = blocks[i];
            }
        }
        for (uint32_t r = 0; r < 4; r++) {
            uint64_t i = first + 32 * r + lane;
            uint4 unit = joined(row[r], next_of(row[r], row[r + 1], lane), apart);
            if (i < units) {
                dst[i] = unit;
            }
        }
    }
}

// The parts of a range. Units of 16 bytes are aligned at the destination, and begin `apart` bytes into the aligned blocks of the source.
struct Parts {
    uint64_t head; // Bytes before the first unit, all of whose blocks are within the source: at most 30.
    uint64_t units;
    uint64_t rest; // Where the bytes after them begin, at most 30.
    uint32_t apart;
};

static __device__ Parts parts_of(uint64_t dst, uint64_t src, uint64_t bytes) {
    uint64_t head = -dst % 16;
    uint64_t apart = (src + head) % 16;
    if (apart > head) {
        head += 16;
    }
    head = min(head, bytes);
    uint64_t left = bytes - head;
    uint64_t units = (left - min(-apart % 16, left)) / 16;
    return {head, units, head + units * 16, uint32_t(apart)};
}

extern "C" __global__ void transload_copy(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
    uint64_t index = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    Parts parts = parts_of(uint64_t(dst), uint64_t(src), bytes);
    // Threads that are not whole warps have no next one each: they copy sides that are apart by bytes.
    if (parts.apart != 0 && blockDim.x % 32 != 0) {
        parts.units = 0;
        parts.rest = parts.head;
    }
    for (uint64_t i = index; i < parts.head; i += stride) {
        dst[i] = src[i];
    }
    for (uint64_t i = parts.rest + index; i < bytes; i += stride) {
        dst[i] = src[i];
    }
    uint4 *to = (uint4 *)(dst + parts.head);
    const uint4 *from = (const uint4 *)(src + parts.head - parts.apart);
    if (parts.apart == 0) {
        body(to, from, parts.units, index, stride);
    } else {
        body_apart(to, from, parts.apart, parts.units, index / 32 * 128, stride * 4, index % 32);
    }
}
