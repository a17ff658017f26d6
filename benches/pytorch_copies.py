#!/usr/bin/env python3
"""What PyTorch takes for the same copies: a record beside our own rows, one JSON row a line.

Usage: pytorch_copies.py [repetitions]

Times are host time around the copy and a synchronisation (unit us); rates are by CUDA events (unit GB/s).
"""

import time

import torch
from pytorch_rows import any_row, asked_repetitions, run

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, MIB, 16 * MIB, 48 * MIB, 256 * MIB]


def measure(copy, repetitions):
    """Seconds by the host's clock and by events, in loops of their own."""
    for _ in range(5):
        copy()
    torch.cuda.synchronize()
    host, events = [], []
    for _ in range(repetitions):
        begun = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        host.append(time.perf_counter() - begun)
    for _ in range(repetitions):
        before = torch.cuda.Event(enable_timing=True)
        behind = torch.cuda.Event(enable_timing=True)
        before.record()
        copy()
        behind.record()
        behind.synchronize()
        events.append(before.elapsed_time(behind) / 1e3)
    return host, events


def rows(path, way, size, copy, check, repetitions):
    host, events = measure(copy, repetitions)
    torch.cuda.synchronize()
    verified = check()
    rates = [size / t / 1e9 for t in events if t > 0]
    for unit, values in (("us", [t * 1e6 for t in host]), ("GB/s", rates)):
        name = f"{path}/{way}/{size}/{'time' if unit == 'us' else 'rate'}"
        yield any_row(name, path.replace("-to-", " -> "), f", {way}", unit, values, size, verified)


def copies(size, kind, repetitions, device):
    content = torch.randint(0, 256, (size,), dtype=torch.uint8)
    host = content.clone().pin_memory() if kind == "pinned" else content.clone()
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    back = torch.zeros(size, dtype=torch.uint8)
    back = back.pin_memory() if kind == "pinned" else back
    lazy = kind == "pinned"
    up, down = f"cpu.{kind}-to-cuda:0.device", f"cuda:0.device-to-cpu.{kind}"
    same = lambda one: torch.equal(one.cpu(), content)
    to = lambda: host.to(device, non_blocking=lazy)
    yield from rows(up, "copy_", size, lambda: there.copy_(host, non_blocking=lazy), lambda: same(there), repetitions)
    yield from rows(down, "copy_", size, lambda: back.copy_(there, non_blocking=lazy), lambda: same(back), repetitions)
    yield from rows(up, "to", size, to, lambda: same(to()), repetitions)
    if kind == "pageable":
        yield from rows(down, "cpu", size, there.cpu, lambda: same(there.cpu()), repetitions)


def main():
    device = torch.device("cuda:0")
    torch.manual_seed(11)
    parts = [
        copies(size, kind, asked_repetitions(200 if size <= 64 * KIB else 30), device)
        for size in SIZES
        for kind in ("pinned", "pageable")
    ]
    run("copies", parts)


if __name__ == "__main__":
    main()
