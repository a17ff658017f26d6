// transload_spin(nanoseconds, out): keeps every thread busy until the device's global timer has gone on by `nanoseconds`. Where
// out is not 0, the first thread of block 0 then stores the timer's value at its start to out[0] and at its end to out[1]:
// work of a known length, for tests and measurements of overlap and of priorities.
//
// How spin.ptx was made: written by hand after this source, in the oldest words that do (PTX ISA 6.0 of CUDA 9, sm_50), and
// assembled once with ptxas 12.9 for sm_50 and sm_90 to check it; the driver compiles it when it is loaded. This file is what
// to read; it is not compiled. Change both together. The software driver runs a host kernel (Rust)
// (crates/cuda-sim/src/example_kernels.rs), which takes no time and stores stamps that increase from launch to launch.
//
// Promises: any grid and block of one dimension. The timer counts nanoseconds and is one for the whole device; how finely it
// advances differs between devices (32 ns to 1 us), so spin for 10 us and more. out is aligned to 8 bytes.

#include <cstdint>

static __device__ uint64_t timer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void transload_spin(uint64_t nanoseconds, uint64_t *out) {
    uint64_t start = timer();
    uint64_t now;
    do {
        now = timer();
    } while (now - start < nanoseconds);
    if (out != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
        out[0] = start;
        out[1] = now;
    }
}
