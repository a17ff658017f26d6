#!/usr/bin/env python3
"""Loads the probe into a process that uses PyTorch, and shows that PyTorch does not notice.

Usage: pytorch_beside.py path/to/libtransload_probe.so [rounds]

Prints one line of JSON; exits with 0 where everything held.
"""

import ctypes
import json
import sys
import time

import torch


def checksum(tensor):
    """An exact sum of the tensor's bits."""
    return int(tensor.view(torch.int32).to(torch.int64).sum().item())


def load(path):
    probe = ctypes.CDLL(path)
    probe.transload_probe_roundtrip.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
    probe.transload_probe_roundtrip.restype = ctypes.c_int32
    probe.transload_probe_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    probe.transload_probe_last_error.restype = ctypes.c_size_t
    return probe


def last_error(probe):
    text = ctypes.create_string_buffer(4096)
    probe.transload_probe_last_error(text, len(text))
    return text.value.decode("utf-8", "replace")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    failures = []
    torch.manual_seed(7)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda:0")
    begun = time.perf_counter()

    # PyTorch first, so that it owns the context that the library then shares.
    kept = [torch.randn(n, device=device) for n in (1, 1000, 1 << 20, 1 << 24)]
    sums = [checksum(tensor) for tensor in kept]
    a = torch.randn(1024, 1024, device=device)
    b = torch.randn(1024, 1024, device=device)
    product = a @ b
    expected = product.clone()
    pinned = torch.randint(0, 1 << 30, (1 << 20,), dtype=torch.int32).pin_memory()
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()

    probe = load(sys.argv[1])
    sizes = [1, 4096, (1 << 20) + 3, 64 << 20]
    roundtrips = 0
    for turn in range(rounds):
        # Work of PyTorch's is in flight on its own streams while the library moves bytes.
        products, copies = [], []
        for stream in streams:
            with torch.cuda.stream(stream):
                for _ in range(8):
                    products.append(a @ b)
                copies.append(pinned.to(device, non_blocking=True))
        size = sizes[turn % len(sizes)]
        code = probe.transload_probe_roundtrip(0, size, turn + 1)
        roundtrips += 1
        if code != 0:
            failures.append(f"roundtrip of {size} bytes: {code}: {last_error(probe)}")
        torch.cuda.synchronize()
        # cuBLAS may add up in another order on another stream; anything beyond that is damage.
        if not all(torch.allclose(product, expected, rtol=1e-4, atol=1e-3) for product in products):
            failures.append(f"round {turn}: a product changed")
        if not all(torch.equal(copy.cpu(), pinned) for copy in copies):
            failures.append(f"round {turn}: a copy is wrong")
        if torch.cuda.current_stream() != torch.cuda.default_stream():
            failures.append(f"round {turn}: the current stream changed")

    # Requests that cannot succeed must leave PyTorch's context in order too.
    for ordinal, size in ((0, 0), (4000, 4096), (0, 1 << 50)):
        if probe.transload_probe_roundtrip(ordinal, size, 1) == 0:
            failures.append(f"a roundtrip of {size} bytes on device {ordinal} succeeded")

    for tensor, before in zip(kept, sums):
        if checksum(tensor) != before:
            failures.append(f"a tensor of {tensor.numel()} elements changed")
    more = torch.ones(1 << 22, device=device)
    if more.sum().item() != float(1 << 22):
        failures.append("a sum after the probe is wrong")
    if not torch.allclose(a @ b, expected, rtol=1e-4, atol=1e-3):
        failures.append("a product after the probe is wrong")
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    code = probe.transload_probe_roundtrip(0, 4096, 99)
    if code != 0:
        failures.append(f"last roundtrip: {code}: {last_error(probe)}")
    result = {
        "ok": not failures,
        "what": "pytorch beside the library",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0),
        "roundtrips": roundtrips + 1,
        "tensors": len(kept),
        "seconds": round(time.perf_counter() - begun, 2),
        "failures": failures,
    }
    print(json.dumps(result))
    sys.exit(0 if not failures else 1)


if __name__ == "__main__":
    main()
