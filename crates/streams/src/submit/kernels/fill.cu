// transload_fill(dst, bytes, low, high): fills memory with 16 bytes over and over, for patterns of 8 and 16 bytes, which the
// driver's memset does not have.
//
// How fill.ptx was made: as copy.ptx (see copy.cu), by hand after this source. It has no header of its own: the driver is
// given both texts as one module, with the header of copy.ptx. Change source and text together.
//
// `low` and `high` are the pattern's bytes 0 to 7 and 8 to 15 as they lie from `dst` on.
//
// Promises: any alignment of `dst`, any size from 1 byte on (indices have 64 bits), any grid and block of one dimension. No
// byte outside the range is touched.

#include <cstdint>

extern "C" __global__ void transload_fill(uint8_t *dst, uint64_t bytes, uint64_t low, uint64_t high) {
    uint64_t index = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;

    // Head: the bytes before the first aligned unit of 16. Then whole units. The rest is fewer bytes than a unit.
    uint64_t head = min(-uint64_t(dst) & 15, bytes);
    uint64_t units = (bytes - head) / 16;
    for (uint64_t i = index; i < head; i += stride) {
        dst[i] = uint8_t((i & 8 ? high : low) >> (8 * (i & 7)));
    }
    for (uint64_t i = head + units * 16 + index; i < bytes; i += stride) {
        dst[i] = uint8_t((i & 8 ? high : low) >> (8 * (i & 7)));
    }

    // A unit as it lies behind the head: the pattern rotated by as many bytes. (PTX shifts by 64 bits give 0, unlike C's.)
    uint64_t a = head & 8 ? high : low;
    uint64_t b = head & 8 ? low : high;
    uint32_t bits = 8 * (uint32_t(head) & 7);
    ulonglong2 unit = {a >> bits | b << (64 - bits), b >> bits | a << (64 - bits)};

    // Each block stores four neighbouring rows of as many units as it has threads, then goes on behind all other blocks': what
    // is stored at a time lies together.
    ulonglong2 *body = (ulonglong2 *)(dst + head);
    uint64_t row = blockDim.x;
    uint64_t i = uint64_t(blockIdx.x) * 4 * row + threadIdx.x;
    for (; i + 3 * row < units; i += 4 * stride) {
        body[i] = unit;
        body[i + row] = unit;
        body[i + 2 * row] = unit;
        body[i + 3 * row] = unit;
    }
    for (; i < units; i += row) {
        body[i] = unit;
    }
}
