#!/usr/bin/env python3
"""What PyTorch takes for the same copies: a record beside our own rows, one JSON row a line.

Usage: pytorch_copies.py [repetitions]

Times are host time around the copy and a synchronisation (unit us); rates are by CUDA events (unit GB/s).
"""

import datetime
import json
import sys
import time

import torch
from pytorch_rows import percentiles

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, MIB, 16 * MIB, 256 * MIB]


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


def row(path, way, size, unit, values, verified):
    p10, p50, p90 = percentiles(values)
    return {
        "id": f"pytorch/{path}/{way}/{size}/{'time' if unit == 'us' else 'rate'}",
        "path": path.replace("-to-", " -> "),
        "method": f"PyTorch {torch.__version__}, {way}",
        "bytes": size,
        "value": p50,
        "unit": unit,
        "p10": p10,
        "p50": p50,
        "p90": p90,
        "reference": None,
        "reference_value": None,
        "ratio": None,
        "goal": None,
        "met": None,
        "simulated": False,
        "verified": verified,
    }


def main():
    given = int(sys.argv[1]) if len(sys.argv) > 1 else None
    device = torch.device("cuda:0")
    torch.manual_seed(11)
    header = {
        "what": "pytorch copies",
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name(0),
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    print(json.dumps(header))
    wrong = 0
    for size in SIZES:
        repetitions = max(30, given or (200 if size <= 64 * KIB else 30))
        content = torch.randint(0, 256, (size,), dtype=torch.uint8)
        for kind in ("pinned", "pageable"):
            host = content.clone().pin_memory() if kind == "pinned" else content.clone()
            there = torch.zeros(size, dtype=torch.uint8, device=device)
            back = torch.zeros(size, dtype=torch.uint8)
            back = back.pin_memory() if kind == "pinned" else back
            lazy = kind == "pinned"
            ways = [
                (f"cpu.{kind}-to-cuda:0.device", "copy_", lambda: there.copy_(host, non_blocking=lazy)),
                (f"cuda:0.device-to-cpu.{kind}", "copy_", lambda: back.copy_(there, non_blocking=lazy)),
                (f"cpu.{kind}-to-cuda:0.device", "to", lambda: host.to(device, non_blocking=lazy)),
            ]
            if kind == "pageable":
                ways.append((f"cuda:0.device-to-cpu.{kind}", "cpu", lambda: there.cpu()))
            for path, way, copy in ways:
                host_times, event_times = measure(copy, repetitions)
                torch.cuda.synchronize()
                if path.startswith("cpu"):
                    verified = torch.equal(there.cpu(), content) if way == "copy_" else torch.equal(copy().cpu(), content)
                else:
                    verified = torch.equal(back if way == "copy_" else copy(), content)
                wrong += not verified
                print(json.dumps(row(path, way, size, "us", [t * 1e6 for t in host_times], verified)))
                rates = [size / t / 1e9 for t in event_times if t > 0]
                print(json.dumps(row(path, way, size, "GB/s", rates, verified)))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
