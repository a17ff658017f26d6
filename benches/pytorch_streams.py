#!/usr/bin/env python3
"""What PyTorch takes for what our rows of streams measure: a record beside them, one JSON row a line.

Usage: pytorch_streams.py [repetitions]

Times are host time, Python's own included, unless a row says that the device's events measured it.
"""

import time

import pytorch_rows
import torch
from pytorch_rows import repeated, timed, together

MANY, SMALL, MIB = 64, 4096, 1 << 20


def row(*arguments):
    return pytorch_rows.row("streams", *arguments)


def acquiring(repetitions):
    def once():
        def work():
            for _ in range(1000):
                torch.cuda.Stream()

        return timed(work, lambda: None, 1000) * 1e9

    yield row("acquire", "torch.cuda.Stream() and its drop, from PyTorch's own pool", "ns", repeated(repetitions, once))


def allocating(repetitions, device):
    for size in (SMALL, MIB):

        def work():
            for _ in range(1000):
                block = torch.empty(size, dtype=torch.uint8, device=device)
                del block

        once = lambda: timed(work, lambda: None, 1000) * 1e9
        what = f"torch.empty of {size} bytes and its del, warm"
        yield row(f"allocate/{size}/threads-1", what, "ns", repeated(repetitions, once))

        def body(gate):
            with torch.cuda.stream(torch.cuda.Stream()):
                work()
                gate.wait()
                work()

        eight = lambda: 8000 / together(8, body)
        what = f"torch.empty of {size} bytes and its del, warm, 8 threads on streams of their own"
        yield row(f"allocate/{size}/threads-8", what, "pairs/s", repeated(max(30, repetitions // 4), eight))


def copying(repetitions, device):
    for size in (SMALL, 64):
        content = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(MANY)]
        hosts = [one.pin_memory() for one in content]
        there = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(MANY)]
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()

        def work():
            for host, one in zip(hosts, there):
                one.copy_(host, non_blocking=True)

        with torch.cuda.stream(stream):
            values = repeated(repetitions, lambda: timed(work, stream.synchronize, MANY) * 1e9)
        verified = all(torch.equal(one.cpu(), host) for one, host in zip(there, content))
        what = f"enqueuing a pinned upload of {size} bytes, {MANY} in a row"
        yield row(f"enqueue-up/{size}", what, "ns", values, size, verified)

        if size != SMALL:
            continue

        def complete():
            begun = time.perf_counter()
            there[0].copy_(hosts[0], non_blocking=True)
            stream.synchronize()
            return (time.perf_counter() - begun) * 1e6

        with torch.cuda.stream(stream):
            values = repeated(repetitions, complete)
        what = f"a pinned upload of {size} bytes and its completion"
        yield row(f"complete-up/{size}", what, "us", values, size, verified)


def replaying(repetitions, device):
    """As many copies as one graph."""
    content = [torch.randint(0, 256, (SMALL,), dtype=torch.uint8) for _ in range(MANY)]
    hosts = [one.pin_memory() for one in content]
    there = [torch.zeros(SMALL, dtype=torch.uint8, device=device) for _ in range(MANY)]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for host, one in zip(hosts, there):
            one.copy_(host, non_blocking=True)
        graph.capture_end()

        def replay():
            begun = time.perf_counter()
            graph.replay()
            stream.synchronize()
            return (time.perf_counter() - begun) * 1e6

        values = repeated(repetitions, replay)
    verified = all(torch.equal(one.cpu(), host) for one, host in zip(there, content))
    what = f"{MANY} pinned uploads of {SMALL} bytes as one graph until all are done"
    yield row(f"graph/{MANY}x{SMALL}", what, "us", values, SMALL, verified)


def marking(repetitions):
    stream = torch.cuda.Stream()
    events = [torch.cuda.Event() for _ in range(MANY)]

    def work():
        for event in events:
            event.record(stream)

    values = repeated(repetitions, lambda: timed(work, stream.synchronize, MANY) * 1e9)
    yield row("fence", f"recording an event made before, {MANY} in a row", "ns", values)


def overlapping(repetitions):
    # Cycles that take about a millisecond on this device.
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 1_000_000
    for _ in range(3):
        before.record()
        torch.cuda._sleep(cycles)
        behind.record()
        behind.synchronize()
        cycles = int(cycles / max(before.elapsed_time(behind), 1e-3))
    streams = [torch.cuda.Stream() for _ in range(2)]
    start, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(3))

    def once():
        start.record(streams[0])
        streams[1].wait_event(start)
        for stream, end in zip(streams, ends):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)
            end.record(stream)
        [end.synchronize() for end in ends]
        return max(start.elapsed_time(end) for end in ends) * 1e3

    what = "two independent kernels of 1 ms, both, by the device's events"
    yield row("overlap/1ms", what, "us", repeated(max(30, repetitions // 4), once))


def uploading(repetitions, device):
    def body(gate):
        stream = torch.cuda.Stream()
        host = torch.ones(SMALL, dtype=torch.uint8).pin_memory()
        there = torch.zeros(SMALL, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            gate.wait()
            for _ in range(200):
                there.copy_(host, non_blocking=True)
                stream.synchronize()

    once = lambda: 1600 / together(8, body)
    what = f"pinned uploads of {SMALL} bytes by 8 threads, each on a stream of its own"
    # Nobody looks at these bytes: the row counts as one that moves none.
    yield row(f"threads-8/{SMALL}", what, "uploads/s", repeated(max(30, repetitions // 4), once))


def main():
    repetitions = pytorch_rows.asked_repetitions(120)
    device = torch.device("cuda:0")
    torch.manual_seed(11)
    parts = [
        acquiring(repetitions),
        allocating(repetitions, device),
        copying(repetitions, device),
        marking(repetitions),
        overlapping(repetitions),
        uploading(repetitions, device),
        replaying(repetitions, device),
    ]
    pytorch_rows.run("streams", parts)


if __name__ == "__main__":
    main()
