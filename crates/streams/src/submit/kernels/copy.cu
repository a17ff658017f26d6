// transload_copy(dst, src, bytes): copies by the device's threads, which read or write mapped host memory in place.
//
// How copy.ptx was made: written by hand after this source, in the oldest words that do (PTX ISA 6.0 of CUDA 9, sm_50), so
// that the driver of any machine in use compiles it when it is loaded; no toolkit takes part in a build. This file is what
// to read; it is not compiled. Change both together, and run the tests of crates/streams on a real device
// (TRANSLOAD_TEST_DRIVER=real): the software driver runs a host kernel in Rust (crates/cuda-sim/src/kernels.rs) instead of the PTX.
//
// Promises: any alignment of either side, any size from 1 byte on (indices have 64 bits), any grid and block of one
// dimension. The ranges do not overlap. No byte outside the two ranges is touched.

#include <cstdint>

// A grid-stride loop with four loads under way before their stores: a load over the host's link takes about a microsecond.
template <typename Unit>
static __device__ void body(Unit *dst, const Unit *src, uint64_t units, uint64_t index, uint64_t stride) {
    uint64_t i = index;
    for (; i + 3 * stride < units; i += 4 * stride) {
        Unit a = src[i];
        Unit b = src[i + stride];
        Unit c = src[i + 2 * stride];
        Unit d = src[i + 3 * stride];
        dst[i] = a;
        dst[i + stride] = b;
        dst[i + 2 * stride] = c;
        dst[i + 3 * stride] = d;
    }
    for (; i < units; i += stride) {
        dst[i] = src[i];
    }
}

// Copies as the thread `index` of `stride` threads.
static __device__ void copy_by(uint8_t *dst, const uint8_t *src, uint64_t bytes, uint64_t index, uint64_t stride) {
    // The widest unit for which both sides can be aligned at once: 16, 8, 4, 2 or 1 bytes.
    uint64_t apart = uint64_t(dst) ^ uint64_t(src);
    uint32_t shift = apart % 16 == 0 ? 4 : apart % 8 == 0 ? 3 : apart % 4 == 0 ? 2 : apart % 2 == 0 ? 1 : 0;

    // Head: the bytes before the first aligned unit. Then whole units. The rest is fewer bytes than a unit.
    uint64_t head = min(-uint64_t(dst) & ((uint64_t(1) << shift) - 1), bytes);
    uint64_t units = (bytes - head) >> shift;
    for (uint64_t i = index; i < head; i += stride) {
        dst[i] = src[i];
    }
    for (uint64_t i = head + (units << shift) + index; i < bytes; i += stride) {
        dst[i] = src[i];
    }

    dst += head;
    src += head;
    switch (shift) {
    case 4: body((uint4 *)dst, (const uint4 *)src, units, index, stride); break;
    case 3: body((uint64_t *)dst, (const uint64_t *)src, units, index, stride); break;
    case 2: body((uint32_t *)dst, (const uint32_t *)src, units, index, stride); break;
    case 1: body((uint16_t *)dst, (const uint16_t *)src, units, index, stride); break;
    default: body(dst, src, units, index, stride); break;
    }
}

extern "C" __global__ void transload_copy(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
    uint64_t index = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    copy_by(dst, src, bytes, index, stride);
}
