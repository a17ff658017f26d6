#!/usr/bin/env python3
"""A model file by `transload load` and by PyTorch: the same bytes, and how long each takes. Prints one line of JSON.

Usage: pytorch_load.py TRANSLOAD [megabytes]

TRANSLOAD is the program; the file lies in /dev/shm, so that no disk is measured. Both are measured 10 times, with the
file in memory. `load_file` is timed within this process, after CUDA was started, until the device is synchronised. The
program is timed by its own wall clock from the call until the last byte was in place; each of its runs is a process of
its own, so that the start of CUDA is in `preparing_seconds`, and `process_seconds` is all of it, seen from outside.
Checksums are compared in a run of their own, which is not timed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import xxhash
from safetensors.torch import load_file, save_file

REPETITIONS = 10


def tensors(megabytes):
    """Layers of usual sizes, and what a loader may trip over: every type, odd sizes, scalars, empty ones."""
    torch.manual_seed(11)
    bits = lambda count, dtype: torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype)
    model = {}
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16]
    kinds += [torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2]
    for index, dtype in enumerate(kinds):
        model[f"types.{dtype}"] = bits(8 * (index + 1), dtype)
    model["types.bool"] = torch.randint(0, 2, (77,), dtype=torch.bool)
    model["scalar"] = torch.tensor(1.5)
    model["empty"] = torch.zeros((0, 3))
    for size in (1, 255, 257, 65_537, 1_000_003):
        model[f"odd.{size}"] = bits(size, torch.uint8)
    layer = 0
    while sum(tensor.nbytes for tensor in model.values()) < megabytes << 20:
        model[f"layers.{layer}.up"] = bits(2 * 2816 * 2048, torch.bfloat16).reshape(2816, 2048)
        model[f"layers.{layer}.down"] = bits(2 * 2048 * 2816, torch.bfloat16).reshape(2048, 2816)
        model[f"layers.{layer}.norm"] = bits(2 * 2048, torch.bfloat16)
        model[f"layers.{layer}.bias"] = bits(2 * 2813, torch.float16)
        layer += 1
    return model


def content(tensor):
    """The tensor's bytes; numpy has not all of the types, so it is seen as bytes first."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return {"p10": at(0.1), "p50": statistics.median(values), "p90": at(0.9)}


def transload(program, path, *more):
    begun = time.perf_counter()
    ran = subprocess.run([program, "load", path, "--to", "cuda:0", "--json", *more], capture_output=True, text=True)
    took = time.perf_counter() - begun
    if ran.returncode != 0:
        sys.exit(f"transload load failed ({ran.returncode}): {ran.stderr}")
    return json.loads(ran.stdout) | {"process_seconds": took}


def compare(program, path):
    """Checks what `transload` says of every tensor against what PyTorch has on the device."""
    loaded = transload(program, path, "--checksum", "--verify", "--list")
    theirs = load_file(path, device="cuda")
    ours = {tensor["name"]: tensor for tensor in loaded["list"]}
    wrong = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        bytes_ = content(theirs[name])
        same = ours[name]["checksum"] == xxhash.xxh3_64_hexdigest(bytes_)
        same = same and ours[name]["bytes"] == len(bytes_) and ours[name]["shape"] == list(theirs[name].shape)
        if not same:
            wrong.append(name)
    return loaded, wrong


def main():
    program, megabytes = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="transload-load-") as folder:
        path = os.path.join(folder, "model.safetensors")
        save_file(tensors(megabytes), path, metadata={"format": "pt"})
        loaded, wrong = compare(program, path)
        theirs, ours = [], []
        # By turns, so that what the machine does meanwhile meets both.
        for _ in range(REPETITIONS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model = load_file(path, device="cuda")
            torch.cuda.synchronize()
            theirs.append(time.perf_counter() - begun)
            del model
            torch.cuda.empty_cache()
            ours.append(transload(program, path))
    seconds = lambda of: percentiles([of(run) for run in ours])
    moving = seconds(lambda run: run["wall_seconds"] - run["preparing_seconds"])
    pytorch = percentiles(theirs)
    result = {
        "what": "pytorch load",
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name(0),
        "bytes": loaded["bytes"],
        "tensors": loaded["tensors"],
        "chunks": loaded["chunks"],
        "methods": loaded["methods"],
        "repetitions": REPETITIONS,
        "pytorch_seconds": pytorch,
        "transload_wall_seconds": seconds(lambda run: run["wall_seconds"]),
        "transload_preparing_seconds": seconds(lambda run: run["preparing_seconds"]),
        "transload_moving_seconds": moving,
        "transload_process_seconds": seconds(lambda run: run["process_seconds"]),
        "pytorch_bytes_per_second": loaded["bytes"] / pytorch["p50"],
        "transload_moving_bytes_per_second": loaded["bytes"] / moving["p50"],
        "simulated": loaded["simulated"],
        "verified": not wrong,
        "wrong": wrong[:10],
    }
    print(json.dumps(result))
    sys.exit(1 if wrong or loaded["simulated"] else 0)


if __name__ == "__main__":
    main()
