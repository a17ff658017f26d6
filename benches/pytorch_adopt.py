#!/usr/bin/env python3
"""Uses PyTorch's memory, streams and events in Transload and Transload's in PyTorch, in one process and without a copy.

Usage: pytorch_adopt.py path/to/libtransload_probe.so [megabytes]

Prints a line of JSON for each check and one for all of them; exits with 0 where everything held.
"""

import ctypes
import faulthandler
import gc
import itertools
import json
import os
import sys
import threading
import time

from pytorch_dlpack import BUSY, CUDA, DEVICE, REFUSED, Checks, Ours, Probe, ProbeError, expect, expect_code, take

# On a stream of the library's; after no event.
OURS, NO_EVENT = -1, 0
# Takes the interpreter's lock on whichever thread calls it.
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Whole seconds after which a deadlock is told, with where each thread is.
LIMIT = 100
OWNERS = 64


class StepTimes:
    """Milliseconds that the host spent in each step."""

    def __init__(self):
        self.steps, self.last = [], time.perf_counter()

    def end(self, step):
        now = time.perf_counter()
        self.steps.append(f"{step} {(now - self.last) * 1e3:.1f} ms")
        self.last = now

    def __str__(self):
        return ", ".join(self.steps)


class Adopting(Probe):
    """The C library, with the owners that it was given and has released."""

    NAMES = ("adopt", "adopt_stream", "drop_stream", "copy", "copy_event", "begin_use", "end_use")

    def __init__(self, path, ordinal):
        super().__init__(path, ordinal)
        # Calls of this one keep the interpreter's lock, those of `library` let go of it.
        self.keeping_the_lock = ctypes.PyDLL(path)
        session, number, bits, owner = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
        self.declare("adopt", number, session, bits, bits, number, RELEASE, owner)
        self.declare("adopt_stream", number, session, bits, RELEASE, owner)
        self.declare("drop_stream", number, session, number)
        self.declare("copy", number, session, number, number, number, bits)
        self.declare("copy_event", bits, session)
        self.declare("begin_use", number, session, number, number)
        self.declare("end_use", number, session)
        self.owners, self.released, self.numbers = {}, [], itertools.count(1)
        self.release = RELEASE(self.on_release)

    def function(self, name):
        return getattr(self.library, f"transload_probe_{name}") if name in self.NAMES else super().function(name)

    def call_with_lock(self, name, *arguments):
        """As `call`, with the interpreter's lock held all along."""
        usual = self.function(name)
        function = getattr(self.keeping_the_lock, usual.__name__)
        function.restype, function.argtypes = usual.restype, usual.argtypes
        answer = function(self.session, *arguments)
        if answer < 0:
            raise ProbeError(answer, self.last_error())
        return answer

    def on_release(self, number):
        self.released.append((number, threading.get_native_id()))
        # The tensor goes with it.
        self.owners.pop(number)

    def own(self, owner):
        number = next(self.numbers)
        self.owners[number] = owner
        return number

    def adopt(self, tensor, stream=OURS):
        size = tensor.numel() * tensor.element_size()
        buffer = self.call("adopt", tensor.data_ptr(), size, stream, self.release, self.own(tensor))
        expect(self.call("address", buffer) == tensor.data_ptr(), "the buffer is elsewhere: a copy")
        return buffer

    def adopt_stream(self, stream):
        return self.call("adopt_stream", stream.cuda_stream, self.release, self.own(stream))

    def end(self, buffers=(), streams=()):
        """Drops handles, and waits until every owner was released."""
        for buffer in buffers:
            self.call("drop", buffer)
        for stream in streams:
            self.call("drop_stream", stream)
        self.call("drain")
        expect(not self.owners, f"{len(self.owners)} owners were not released")


class Adoption(Checks):
    """The session's checks, each of which leaves nothing behind."""

    def tensor(self, stream, byte=0):
        """A tensor at rest, of the stream's memory."""
        with self.torch.cuda.stream(stream):
            tensor = self.torch.full((self.bytes,), byte, dtype=self.torch.uint8, device="cuda")
        stream.synchronize()
        return tensor

    def copy(self, src, dst, stream=OURS, event=NO_EVENT):
        self.probe.call("copy", src, dst, stream, event)

    def slow(self, stream):
        """Keeps a stream of PyTorch's busy, so that what does not wait for it is seen to be early."""
        with self.torch.cuda.stream(stream):
            self.torch.cuda._sleep(200_000_000)

    # By DLPack.

    def theirs_is_an_array(self):
        torch, probe = self.torch, self.probe
        tensor = torch.full((self.bytes,), 2, dtype=torch.uint8, device="cuda")
        theirs, ours = take(probe, self.capsule_of(tensor, True)), self.kept("device", 1)
        expect(probe.call("address", theirs) == tensor.data_ptr(), "the buffer is elsewhere: a copy")
        self.copy(theirs, ours)
        probe.call("compare", ours, 2)
        probe.call("fill", ours, 4)
        self.copy(ours, theirs)
        probe.call("compare", theirs, 4)
        probe.end([theirs, ours])
        expect(probe.call("imported") == 0, "the tensor was not given back")
        expect(bool((tensor == 4).all()), "PyTorch reads something else than we wrote")

    def ours_is_a_tensor(self):
        torch, probe = self.torch, self.probe
        buffer, copied = self.kept("device", 5), self.kept("device", 0)
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.from_dlpack(Ours(probe, buffer, [self.bytes], device=(CUDA, probe.ordinal)))
            expect(tensor.data_ptr() == probe.call("address", buffer), "the tensor is elsewhere: a copy")
            tensor.add_(1)
            # Still in flight: our copy comes behind it.
            del tensor
            gc.collect()
        self.copy(buffer, copied)
        probe.call("compare", copied, 6)
        probe.call("compare", buffer, 6)
        probe.end([buffer, copied])

    # By addresses and handles.

    def in_the_streams_order(self, stream):
        torch, probe = self.torch, self.probe
        tensor, ours = self.tensor(stream), self.kept("device", 1)
        with torch.cuda.stream(stream):
            number = probe.adopt_stream(torch.cuda.current_stream())
        # What the first copy needs takes time.
        warm = self.kept("device", 1)
        self.copy(ours, warm, number)
        probe.call("compare", warm, 1)
        times = StepTimes()
        self.slow(stream)
        times.end("slow work")
        with torch.cuda.stream(stream):
            tensor.fill_(3)
            times.end("fill")
            theirs = probe.adopt(tensor, number)
            times.end("adopt")
            self.copy(theirs, ours, number)
            times.end("copy")
            tensor.fill_(9)
            times.end("second fill")
            was_busy = not stream.query()
        probe.call("compare", ours, 3)
        expect(was_busy, f"the host waited, or the work was too short to tell: {times}")
        probe.call("fill", ours, 7)
        self.copy(ours, theirs, number)
        with torch.cuda.stream(stream):
            seen = tensor.clone()
        stream.synchronize()
        expect(bool((seen == 7).all()), "PyTorch was earlier than our copy")
        probe.end([theirs, ours, warm], [number])
        return {"in_flight_at_hand_over": was_busy}

    def kernels_between_copies(self):
        torch, probe = self.torch, self.probe
        stream = torch.cuda.Stream()
        tensor, ours = self.tensor(stream), self.kept("device", 1)
        number, theirs = probe.adopt_stream(stream), probe.adopt(tensor)
        for turn in range(5):
            probe.call("fill", theirs, 10 + turn)
            probe.call("begin_use", theirs, number)
            self.slow(stream)
            with torch.cuda.stream(stream):
                tensor.add_(100)
            expect_code(probe.code("fill", theirs, 1), BUSY, "a fill of ours while PyTorch uses the memory")
            probe.call("end_use")
            self.copy(theirs, ours)
            probe.call("compare", ours, 110 + turn)
        probe.end([theirs, ours], [number])

    def their_event(self):
        torch, probe = self.torch, self.probe
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        tensor, ours = self.tensor(stream), self.kept("device", 1)
        theirs = probe.adopt(tensor)
        self.copy(theirs, ours)
        probe.call("compare", ours, 0)
        self.slow(stream)
        with torch.cuda.stream(stream):
            tensor.fill_(4)
            event.record(stream)
        self.copy(theirs, ours, event=event.cuda_event)
        was_busy = not event.query()
        probe.call("compare", ours, 4)
        expect(was_busy, "the host waited, or the work was too short to tell")
        probe.end([theirs, ours])
        return {"in_flight_at_the_copy": was_busy}

    def our_event(self):
        torch, probe = self.torch, self.probe
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitEvent
        wait.argtypes, wait.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint], ctypes.c_int
        stream = torch.cuda.Stream()
        tensor, seen, ours = self.tensor(stream), self.tensor(stream), self.kept("device", 1)
        scratch, theirs = probe.call("allocate", DEVICE, 64 * self.bytes), probe.adopt(tensor)
        self.copy(ours, theirs)
        probe.call("compare", theirs, 1)
        for _ in range(400):
            probe.call("fill", scratch, 9)
        probe.call("fill", ours, 6)
        self.copy(ours, theirs)
        event = probe.call("copy_event")
        expect(event != 0, probe.last_error())
        expect_code(wait(stream.cuda_stream, event, 0), 0, "cuStreamWaitEvent")
        with torch.cuda.stream(stream):
            seen.copy_(tensor)
        was_busy = probe.call("is_busy") == 1
        stream.synchronize()
        expect(bool((seen == 6).all()), "PyTorch was earlier than our copy")
        expect(was_busy, "the host waited, or the work was too short to tell")
        probe.end([theirs, ours, scratch])
        return {"in_flight_at_the_wait": was_busy}

    def our_stream(self):
        torch, probe = self.torch, self.probe
        stream = torch.cuda.ExternalStream(probe.call("stream"))
        tensor = self.tensor(torch.cuda.current_stream())
        theirs = probe.adopt(tensor)
        for turn in range(5):
            probe.call("fill", theirs, 20 + turn)
            with torch.cuda.stream(stream):
                tensor.add_(100)
            probe.call("compare", theirs, 120 + turn)
        stream.synchronize()
        expect(bool((tensor == 124).all()), "PyTorch reads something else")
        probe.end([theirs])

    def captured_stream_is_refused(self):
        torch, probe = self.torch, self.probe
        stream = torch.cuda.Stream()
        tensor, ours = self.tensor(stream, 1), self.kept("device", 0)
        number, theirs = probe.adopt_stream(stream), probe.adopt(tensor)
        self.copy(theirs, ours, number)
        probe.call("compare", ours, 1)
        graph = torch.cuda.CUDAGraph()
        # Its end fails if anything of ours breaks the capture.
        with torch.cuda.graph(graph, stream=stream):
            tensor.add_(1)
            code = probe.code("copy", theirs, ours, number, NO_EVENT)
            tensor.add_(1)
        expect_code(code, BUSY, "a copy on a stream that PyTorch captures")
        with torch.cuda.stream(stream):
            graph.replay()
        self.copy(theirs, ours, number)
        probe.call("compare", ours, 3)
        probe.end([theirs, ours], [number])

    # Owners.

    def owners_need_the_lock(self):
        """Owners that need the interpreter's lock, while threads that hold it drop, wait and drain."""
        torch, probe = self.torch, self.probe
        gc.collect()
        before, first = torch.cuda.memory_allocated(), len(probe.released)
        tensors = [torch.full((1 << 20,), turn, dtype=torch.uint8, device="cuda") for turn in range(OWNERS)]
        torch.cuda.synchronize()
        addresses = {tensor.data_ptr() for tensor in tensors}
        buffers = [probe.adopt(tensor) for tensor in tensors]
        del tensors
        ours = probe.call("allocate", DEVICE, 1 << 20)
        switch = sys.getswitchinterval()
        # No other thread gets the lock from this one.
        sys.setswitchinterval(1000)
        try:
            for turn, buffer in enumerate(buffers):
                probe.call_with_lock("copy", buffer, ours, OURS, NO_EVENT)
                probe.call_with_lock("drop", buffer)
                probe.call_with_lock("compare", ours, turn)
            waiting = len(probe.owners)
        finally:
            sys.setswitchinterval(switch)
        expect(waiting == OWNERS, f"{OWNERS - waiting} owners were released without the lock")
        # A thread of Python's that always wants the lock, and two that drain.
        ended, failures = threading.Event(), []

        def spin():
            while not ended.is_set():
                pass

        def drain():
            try:
                probe.call("drain")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for work in (spin, drain)]
        for thread in threads:
            thread.start()
        ids = {thread.native_id for thread in threads} | {threading.get_native_id()}
        drain()
        released = list(probe.released[first:])
        ended.set()
        for thread in threads:
            thread.join()
        expect(not failures, f"drain: {failures}")
        numbers = [number for number, _ in released]
        expect(len(numbers) == OWNERS and len(set(numbers)) == OWNERS, f"{len(numbers)} releases of {OWNERS} owners")
        expect(not ids & {thread for _, thread in released}, "a thread of Python's released an owner")
        probe.end([ours])
        after = torch.cuda.memory_allocated()
        expect(after == before, f"{after - before} bytes of PyTorch's are left")
        return {"owners": OWNERS, "addresses": len(addresses), "threads": len({thread for _, thread in released})}

    def refused_is_released(self):
        torch, probe = self.torch, self.probe
        tensor, first = torch.zeros(4096, dtype=torch.uint8), len(probe.released)
        for address, size in ((tensor.data_ptr(), 4096), (0, 4096), (tensor.data_ptr(), 0)):
            code = probe.code("adopt", address, size, OURS, probe.release, probe.own(tensor))
            expect_code(code, REFUSED, f"{size} bytes at {address:#x}")
        probe.end()
        expect(len(probe.released) == first + 3, "not each owner was released once")

    def nothing_is_alive(self):
        self.probe.close()
        expect(not self.probe.owners, "an owner was not released")
        return {"owners_released": len(self.probe.released)}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    # Loaded on demand, the first launch of a kernel waits for the slow work that these checks put before it.
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    try:
        import torch
        import torch.utils.dlpack
    except ImportError as error:
        sys.exit(f"there is no PyTorch: {error}")
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    begun = time.perf_counter()
    # PyTorch first, so that the library joins its context.
    torch.cuda.init()
    torch.ones(1, device="cuda").sum().item()
    probe = Adopting(sys.argv[1], 0)
    checks = Adoption(torch, probe, int(sys.argv[2]) if len(sys.argv) > 2 else 16)
    checks.run("a tensor by DLPack is an array", checks.theirs_is_an_array)
    checks.run("an array by DLPack is a tensor", checks.ours_is_a_tensor)
    for named, stream in (("side", torch.cuda.Stream()), ("default", torch.cuda.default_stream())):
        checks.run(f"adopted, in the {named} stream's order", checks.in_the_streams_order, stream)
    checks.run("PyTorch's kernels between our copies", checks.kernels_between_copies)
    checks.run("our copy waits for PyTorch's event", checks.their_event)
    checks.run("PyTorch's stream waits for our event", checks.our_event)
    checks.run("our stream used by PyTorch", checks.our_stream)
    checks.run("a stream that PyTorch captures is refused", checks.captured_stream_is_refused)
    checks.run("owners need the interpreter's lock", checks.owners_need_the_lock)
    checks.run("refused memory's owner is released", checks.refused_is_released)
    torch.cuda.synchronize()
    gc.collect()
    checks.run("nothing is alive at the end", checks.nothing_is_alive)
    result = {
        "ok": not checks.failures,
        "what": "adopted from PyTorch and handed to it",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0),
        "passed": checks.passed,
        "seconds": round(time.perf_counter() - begun, 2),
        "failures": checks.failures,
    }
    print(json.dumps(result))
    sys.exit(0 if not checks.failures else 1)


if __name__ == "__main__":
    main()
