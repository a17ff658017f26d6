"""Times the copy kernels of two versions side by side, in µs on the device, by CuPy.

    python3 benches/copy_kernels.py OLD NEW

OLD and NEW are folders with copy.ptx and copy_list.ptx, such as crates/streams/src/submit/kernels. For each case: events around a launch, the
median of 21, the versions after each other. Offsets are those of pieces at source and destination; `blocks` of 256 threads.
"""

import os
import statistics
import sys
import tempfile

import cupy
import numpy

BYTES = 80 << 20
# (pieces, bytes of one, (bytes from one to the next, offset of the first) at source and destination, what they are)
LISTS = [
    (1_000, 4_093, (4_102, 1), (4_108, 3), "odd"),
    (1_000, 4_096, (4_096, 0), (4_096, 0), "aligned"),
    (1_000, 4_096, (4_096, 0), (4_100, 4), "apart by 4"),
    (1_000, 4_096, (4_096, 0), (4_104, 8), "apart by 8"),
    (10_000, 4_093, (4_102, 1), (4_108, 3), "odd"),
    (1_000, 65_531, (65_538, 1), (65_544, 3), "odd"),
    (1_000, 65_536, (65_536, 0), (65_536, 0), "aligned"),
]
COPIES = [(0, 0), (0, 8), (0, 4), (1, 3)]


def module(folder):
    text = "".join(open(os.path.join(folder, name)).read() for name in ("copy.ptx", "copy_list.ptx"))
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        loaded = cupy.RawModule(path=file.name)
        loaded.compile()
    return loaded


def main(old, new):
    modules = {"old": module(old), "new": module(new)}
    stream = cupy.cuda.Stream()
    device = [cupy.cuda.alloc(BYTES) for _ in range(2)]
    pinned = [cupy.cuda.alloc_pinned_memory(BYTES) for _ in range(2)]
    ends = {"within": (device[0], device[1]), "up": (pinned[0], device[1]), "down": (device[0], pinned[1])}

    def median(kernel, blocks, arguments):
        def run():
            with stream:
                kernel((blocks,), (256,), tuple(numpy.uint64(argument) for argument in arguments))

        run()
        stream.synchronize()
        times = []
        for _ in range(21):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            run()
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3)
        return statistics.median(times)

    def line(what, name, blocks, arguments):
        both = [median(loaded.get_function(name), blocks, arguments) for loaded in modules.values()]
        print(f"{what:58} {both[0]:9.1f} {both[1]:9.1f}")

    print(f"{'case':58} {'old':>9} {'new':>9}")
    for way, (src, dst) in ends.items():
        for count, size, source, target, kind in LISTS:
            index = numpy.arange(count, dtype=numpy.uint64)
            entries = numpy.stack(
                [dst.ptr + target[1] + index * target[0], src.ptr + source[1] + index * source[0], index * 0 + size], 1
            ).astype(numpy.uint64)
            listed = cupy.cuda.alloc_pinned_memory(entries.nbytes)
            numpy.frombuffer(listed, numpy.uint64, entries.size)[:] = entries.ravel()
            for blocks in (1056, 8):
                what = f"{way}, {count} x {size}, {kind}, {blocks} blocks"
                line(what, "transload_copy_list", blocks, (listed.ptr, count, numpy.uint32(0)))
    for way, (src, dst) in ends.items():
        for size in (1 << 16, 1 << 20, 64 << 20):
            for source, target in COPIES:
                blocks = min(1056, max(1, size // 16 // 256))
                what = f"{way}, one of {size}, at {source} to {target}"
                line(what, "transload_copy", blocks, (dst.ptr + target, src.ptr + source, size))


if __name__ == "__main__":
    main(*sys.argv[1:])
