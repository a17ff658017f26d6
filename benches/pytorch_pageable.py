#!/usr/bin/env python3
"""Copies of pageable memory by PyTorch, in turns with those of `transload-bench`, which starts it (benches/src/scaling/pytorch.rs).

Usage: pytorch_pageable.py DEVICE

Each line of the input is an action, a direction and a number of bytes: `copy up 50331648` prints the seconds until the device is
synchronised, `clear down 4096` clears the destination, and `check down 4096` says `right` or `wrong` of its bytes.
"""

import sys
import time

import torch


def pair(way, size, device):
    """What is copied, and both ends."""
    content = torch.randint(0, 256, (size,), dtype=torch.uint8)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    if way == "up":
        return content, content, there
    there.copy_(content)
    return content, there, torch.zeros(size, dtype=torch.uint8)


def act(action, content, source, destination):
    if action == "clear":
        destination.zero_()
        torch.cuda.synchronize()
        return "cleared"
    if action == "check":
        return "right" if torch.equal(destination.cpu(), content) else "wrong"
    begun = time.perf_counter()
    destination.copy_(source)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(11)
    torch.zeros(1, device=device)
    print(f"PyTorch {torch.__version__}", flush=True)
    known = None
    for line in sys.stdin:
        action, way, size = line.split()
        # One pair at a time is enough.
        if known != (way, size):
            ends = pair(way, int(size), device)
            torch.cuda.synchronize()
            known = (way, size)
        print(act(action, *ends), flush=True)


if __name__ == "__main__":
    main()
