#!/usr/bin/env python3
"""What PyTorch takes for what our rows of memory measure: a record beside them, one JSON row a line.

Usage: pytorch_memory.py [repetitions]

Times are host time, Python's own included, unless a row says that the device's events measured it.
"""

import resource
import time

import pytorch_rows
import torch
from pytorch_rows import repeated, timed

KIB, MIB = 1 << 10, 1 << 20
# The sizes of our own rows.
PINNED = [4 * KIB, MIB, MIB + 1, 33 * MIB + 4096]
KEPT = [MIB + 1, 3 * MIB + 5, 9 * MIB + 77, 33 * MIB + 4096, 700_001, 5 * MIB + 3, 17 * MIB + 1, 65 * MIB + 12_288]
FILLED = [MIB, 16 * MIB, 256 * MIB]
IN_A_ROW = 16


def row(*arguments):
    return pytorch_rows.row("memory", *arguments)


def resident():
    """Bytes of this process that are in memory; pinned memory always is."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def holding():
    """Before the others: their cached blocks would be used here."""
    pinned = lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pinned(4096)
    before = resident()
    kept = [pinned(size) for size in KEPT]
    held = (resident() - before) / sum(KEPT)
    del kept
    what = f"pinned memory held for {len(KEPT)} tensors of {sum(KEPT)} bytes together, by the process's resident pages"
    yield row("pinned/held", what, "bytes held for each asked for", [held] * 3)


def pinning(repetitions):
    for size in PINNED:

        def work():
            for _ in range(200):
                block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                del block

        values = repeated(repetitions, lambda: timed(work, lambda: None, 200) * 1e9)
        yield row(f"pinned/{size}", f"torch.empty of {size} bytes of pinned memory and its del, warm", "ns", values)


def filling(repetitions, device):
    values_of = {
        1: (torch.uint8, 0x5A),
        2: (torch.int16, 0x1234),
        4: (torch.float32, 1.5),
        8: (torch.float64, 1.5),
        16: (torch.complex128, complex(1.5, -2.5)),
    }
    for size in FILLED:
        for width, (dtype, value) in values_of.items():
            tensor = torch.empty(size // width, dtype=dtype, device=device)

            def once():
                begun = time.perf_counter()
                for _ in range(IN_A_ROW):
                    tensor.fill_(value)
                torch.cuda.synchronize()
                return IN_A_ROW * size / (time.perf_counter() - begun) / 1e9

            values = repeated(repetitions, once)
            verified = bool((tensor == value).all().item())
            what = f"filling {size} bytes of device memory, {IN_A_ROW} times in a row, elements of {width} bytes"
            yield row(f"fill/{size}/width-{width}", what, "GB/s", values, size, verified)
            del tensor


def working(repetitions, device):
    """Write on the host, a kernel on the device, read on the host: PyTorch's way, through pinned memory, by one thread as ours."""
    torch.set_num_threads(1)
    for size in (64 * KIB, MIB, 16 * MIB, 256 * MIB):
        count = size // 4
        source = torch.rand(count)
        pinned = torch.empty(count, pin_memory=True)
        result = torch.empty(count, pin_memory=True)
        target = torch.empty(count)
        there = torch.empty(count, device=device)
        other = torch.ones(count, device=device)

        def once():
            begun = time.perf_counter()
            pinned.copy_(source)
            there.copy_(pinned, non_blocking=True)
            there.add_(other, alpha=2.0)
            result.copy_(there, non_blocking=True)
            torch.cuda.synchronize()
            target.copy_(result)
            return (time.perf_counter() - begun) * 1e6

        values = repeated(30 if size > 16 * MIB else repetitions, once)
        verified = torch.equal(target, source + 2.0)
        what = f"{size} bytes written on the host, used by a kernel, read on the host"
        yield row(f"work/{size}/pinned", what, "us", values, size, verified)


def main():
    repetitions = pytorch_rows.asked_repetitions(60)
    device = torch.device("cuda:0")
    torch.manual_seed(11)
    torch.zeros(1, device=device)
    parts = [holding(), pinning(repetitions), filling(repetitions, device), working(repetitions, device)]
    pytorch_rows.run("memory", parts)


if __name__ == "__main__":
    main()
