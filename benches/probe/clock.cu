// How narrowly the host's clock can be compared with the time of an event: the width of brackets around an event of an idle stream, by
// polling the event, by a word that the stream writes behind it, and by a graph that waits for a word of the host first; and what is left if
// all brackets of all three are intersected. Build and run: nvcc -O2 clock.cu -lcuda && ./a.out
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

static void check(CUresult result, int line) {
  if (result != CUDA_SUCCESS) {
    const char *text = "";
    cuGetErrorString(result, &text);
    std::printf("line %d: %s\n", line, text);
    std::exit(1);
  }
}
#define CHECK(call) check(call, __LINE__)

static double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

struct Bracket {
  double before, after, device;
};

// Host and device are apart by what lies in all brackets.
static double lowest, highest;

static void show(const char *name, std::vector<Bracket> &all) {
  std::vector<double> widths;
  double low = -1e18, high = 1e18;
  for (const Bracket &one : all) {
    widths.push_back(one.after - one.before);
    low = std::max(low, one.device - one.after);
    high = std::min(high, one.device - one.before);
  }
  std::sort(widths.begin(), widths.end());
  lowest = std::max(lowest, low);
  highest = std::min(highest, high);
  std::printf("%-22s narrowest %5.2f us, median %5.2f, intersection %5.2f\n", name, widths.front(), widths[widths.size() / 2], high - low);
}

int main() {
  const int count = 200;
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  volatile unsigned *words;
  CUdeviceptr mapped;
  CHECK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CHECK(cuMemHostGetDevicePointer(&mapped, (void *)words, 0));
  for (int round = 0; round < 4; round++) {
    lowest = -1e18, highest = 1e18;
    words[0] = words[16] = 0;
    CUevent base, event;
    CHECK(cuEventCreate(&base, 0));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(base, stream));
    CHECK(cuEventSynchronize(base));
    auto bracket = [&](double before, double after) {
      CHECK(cuStreamSynchronize(stream));
      float milliseconds;
      CHECK(cuEventElapsedTime(&milliseconds, base, event));
      return Bracket{before, after, milliseconds * 1e3};
    };
    std::vector<Bracket> polled, written, graph;
    for (int i = 0; i < count; i++) {
      double before = now();
      CHECK(cuEventRecord(event, stream));
      while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      }
      polled.push_back(bracket(before, now()));
    }
    for (int i = 1; i <= count; i++) {
      double before = now();
      CHECK(cuEventRecord(event, stream));
      CHECK(cuStreamWriteValue32(stream, mapped + 64, i, 0));
      while (words[16] != (unsigned)i) {
      }
      written.push_back(bracket(before, now()));
    }
    CUgraph captured;
    CUgraphExec launched;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(cuStreamWaitValue32(stream, mapped, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    CHECK(cuStreamWriteValue32(stream, mapped + 64, 1, 0));
    CHECK(cuStreamEndCapture(stream, &captured));
    CHECK(cuGraphInstantiate(&launched, captured, 0));
    for (int i = 0; i < count; i++) {
      words[0] = words[16] = 0;
      CHECK(cuGraphLaunch(launched, stream));
      // Until it waits for the word.
      for (double begun = now(); now() - begun < 20;) {
      }
      double before = now();
      words[0] = 1;
      while (words[16] != 1) {
      }
      graph.push_back(bracket(before, now()));
    }
    show("record, poll", polled);
    show("record, written word", written);
    show("word, record, word", graph);
    std::printf("all brackets together: %.2f us, so half of it is the least error\n", highest - lowest);
  }
  return 0;
}
