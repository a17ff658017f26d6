// Which driver call copies 1 to 64 KiB from pinned memory to the device soonest? Prints, for each length, microseconds of one copy that is waited for,
// of each of 1,000 enqueued without waiting, and of the enqueueing alone, by each call; the median of rounds that take the calls in turn.
//
// On an H200 (driver 580, 2026-11-28) two rows end sooner than one copy from 12 to 32 KiB: 8.0 to 8.3 µs from 16 to 24 KiB, of 8.6 to 9.8. Below they take
// 0.3 to 1.2 µs longer, and above the same. Of many copies in flight all calls take the same.
//
//   nvcc -O2 -o small_up small_up.cu -lcuda && ./small_up
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <vector>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult result = (call);                                                                                      \
        if (result != CUDA_SUCCESS) {                                                                                  \
            std::fprintf(stderr, "%s: error %d\n", #call, result);                                                     \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static CUstream stream;
static const char *NAMES[] = {"HtoD", "Async", "2D 1 row", "2D 2 rows", "2D apart", "3D", "batch"};
enum { FORMS = sizeof NAMES / sizeof *NAMES };

// The device's rows of "2D apart" lie one row apart, so that it cannot be made one copy: the same bytes, another layout.
static void copy(int form, CUdeviceptr dst, char *src, size_t bytes) {
    CUDA_MEMCPY2D flat = {};
    flat.srcMemoryType = CU_MEMORYTYPE_HOST;
    flat.srcHost = src;
    flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    flat.dstDevice = dst;
    switch (form) {
    case 0: CHECK(cuMemcpyHtoDAsync(dst, src, bytes, stream)); break;
    case 1: CHECK(cuMemcpyAsync(dst, (CUdeviceptr)src, bytes, stream)); break;
    case 2:
        flat.WidthInBytes = flat.srcPitch = flat.dstPitch = bytes;
        flat.Height = 1;
        CHECK(cuMemcpy2DAsync(&flat, stream));
        break;
    case 3:
        flat.WidthInBytes = flat.srcPitch = flat.dstPitch = bytes / 2;
        flat.Height = 2;
        CHECK(cuMemcpy2DAsync(&flat, stream));
        break;
    case 4:
        flat.WidthInBytes = flat.srcPitch = bytes / 2;
        flat.dstPitch = bytes;
        flat.Height = 2;
        CHECK(cuMemcpy2DAsync(&flat, stream));
        break;
    case 5: {
        CUDA_MEMCPY3D deep = {};
        deep.srcMemoryType = CU_MEMORYTYPE_HOST;
        deep.srcHost = src;
        deep.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        deep.dstDevice = dst;
        deep.WidthInBytes = deep.srcPitch = deep.dstPitch = bytes / 4;
        deep.Height = deep.srcHeight = deep.dstHeight = 2;
        deep.Depth = 2;
        CHECK(cuMemcpy3DAsync(&deep, stream));
        break;
    }
    case 6: {
        CUmemcpyAttributes attributes = {};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        CUdeviceptr from = (CUdeviceptr)src;
        size_t first = 0;
        CHECK(cuMemcpyBatchAsync(&dst, &from, &bytes, 1, &attributes, &first, 1, stream));
        break;
    }
    }
}

static double now() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> &values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

int main() {
    const int COUNT = 1000, ROUNDS = 9, WAITS = 60;
    const size_t MOST = 64 << 10;
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    char *host;
    CUdeviceptr there;
    CHECK(cuMemHostAlloc((void **)&host, COUNT * MOST, 0));
    CHECK(cuMemAlloc(&there, 2 * COUNT * MOST));
    for (size_t at = 0; at < COUNT * MOST; at++) host[at] = (char)(at * 7 + at / 4096);
    std::vector<char> back(MOST);
    for (int form = 0; form < FORMS; form++) { // Each moves the bytes, or is not compared.
        CHECK(cuMemsetD8Async(there, 0, 2 * MOST, stream));
        copy(form, there, host + 64, MOST);
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemcpyDtoH(back.data(), there, MOST));
        bool same = std::memcmp(back.data(), host + 64, form == 4 ? MOST / 2 : MOST) == 0;
        if (!same) return std::fprintf(stderr, "%s: wrong bytes\n", NAMES[form]), 1;
    }
    std::printf("%-10s", "bytes");
    for (const char *name : NAMES) std::printf("%25s", name);
    std::printf("\n");
    for (size_t bytes : {1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 49152, 65536}) {
        std::vector<double> waited[FORMS], each[FORMS], enqueued[FORMS];
        for (int round = 0; round < ROUNDS; round++)
            for (int form = 0; form < FORMS; form++) {
                for (int again = 0; again < WAITS; again++) {
                    double begun = now();
                    copy(form, there, host, bytes);
                    CHECK(cuStreamSynchronize(stream));
                    waited[form].push_back(now() - begun);
                }
                double begun = now();
                for (int at = 0; at < COUNT; at++) copy(form, there + 2 * at * bytes, host + at * bytes, bytes);
                enqueued[form].push_back((now() - begun) / COUNT);
                CHECK(cuStreamSynchronize(stream));
                each[form].push_back((now() - begun) / COUNT);
            }
        std::printf("%-10zu", bytes);
        for (int form = 0; form < FORMS; form++)
            std::printf("%11.2f %6.2f %6.2f", median(waited[form]), median(each[form]), median(enqueued[form]));
        std::printf("\n");
        std::fflush(stdout);
    }
    return 0;
}
