#!/usr/bin/env python3
"""Shares memory between the probe and PyTorch by DLPack, both ways, and shows that nothing is copied and nothing comes early.

Usage: pytorch_dlpack.py path/to/libtransload_probe.so [megabytes]
       pytorch_dlpack.py path/to/libtransload_probe.so --host-only

Prints a line of JSON for each check and one for all of them; exits with 0 where everything held.
"""

import ctypes
import gc
import json
import sys
import time

PAGEABLE, PINNED, MAPPED, DEVICE, UNIFIED = range(5)
KINDS = {"pageable": PAGEABLE, "pinned": PINNED, "mapped": MAPPED, "device": DEVICE, "unified": UNIFIED}
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
DIFFERENT, BUSY, REFUSED = -4, -6, -7
HOST_ALONE = 2**32 - 1
# Capsules keep the pointers to these names.
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


class Wish(ctypes.Structure):
    _fields_ = [
        ("versioned", ctypes.c_uint32),
        ("read_only", ctypes.c_uint32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("ndim", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("device_type", ctypes.c_uint32),
        ("device_id", ctypes.c_int32),
        ("stream_is_none", ctypes.c_uint32),
        ("stream", ctypes.c_int64),
    ]


def python_function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


new_capsule = python_function(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
name_of = python_function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
pointer_of = python_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = python_function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


class ProbeError(BufferError):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class Probe:
    """The C library, and one session of it."""

    def __init__(self, path, ordinal):
        self.library = ctypes.CDLL(path)
        self.ordinal = ordinal
        session, number = ctypes.c_void_p, ctypes.c_int64
        self.declare("open", session, ctypes.c_uint32)
        self.declare("close", number, session)
        self.declare("allocate", number, session, ctypes.c_uint32, ctypes.c_uint64)
        self.declare("address", ctypes.c_uint64, session, number)
        self.declare("fill", number, session, number, ctypes.c_uint8)
        self.declare("compare", number, session, number, ctypes.c_uint8)
        self.declare("drop", number, session, number)
        self.declare("drain", number, session)
        self.declare("imported", number, session)
        self.declare("stream", number, session)
        self.declare("is_busy", number, session)
        self.declare("export", ctypes.c_void_p, session, number, ctypes.POINTER(Wish))
        self.declare("import", number, session, ctypes.c_void_p, ctypes.c_uint32)
        self.declare("python", None, ctypes.c_void_p, ctypes.c_void_p)
        self.library.transload_probe_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.library.transload_probe_last_error.restype = ctypes.c_size_t
        api = ctypes.pythonapi
        self.function("python")(*map(address_of, (api.PyCapsule_IsValid, api.PyCapsule_GetPointer)))
        destructors = {False: "destroy_unversioned", True: "destroy_versioned"}
        self.destructors = {form: address_of(self.function(name)) for form, name in destructors.items()}
        self.session = self.function("open")(ordinal)
        if not self.session:
            raise ProbeError(0, self.last_error())

    def function(self, name):
        return getattr(self.library, f"transload_probe_dlpack_{name}")

    def declare(self, name, result, *arguments):
        function = self.function(name)
        function.restype, function.argtypes = result, list(arguments)

    def last_error(self):
        text = ctypes.create_string_buffer(4096)
        self.library.transload_probe_last_error(text, len(text))
        return text.value.decode("utf-8", "replace")

    def call(self, name, *arguments):
        """Calls a function of the session's; a negative answer is an exception."""
        answer = self.function(name)(self.session, *arguments)
        if answer < 0:
            raise ProbeError(answer, self.last_error())
        return answer

    def code(self, name, *arguments):
        """As `call`, but gives the code of the error."""
        return min(self.function(name)(self.session, *arguments), 0)

    def close(self):
        session, self.session = self.session, None
        answer = self.function("close")(session)
        if answer < 0:
            raise ProbeError(answer, self.last_error())


class Ours:
    """A buffer of the probe's as the Python array API standard wants a producer to be."""

    def __init__(self, probe, buffer, shape, code=UINT, bits=8, device=None, versioned=True, read_only=False):
        self.probe, self.buffer, self.shape, self.code, self.bits = probe, buffer, list(shape), code, bits
        self.device, self.versioned, self.read_only = device, versioned, read_only

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        versioned = self.versioned and max_version is not None and max_version[0] >= 1
        kind, ordinal = dl_device or self.device
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        wish = Wish(
            int(versioned),
            int(self.read_only),
            self.code,
            self.bits,
            1,
            len(self.shape),
            shape,
            int(kind),
            ordinal,
            int(stream is None),
            stream or 0,
        )
        pointer = self.probe.function("export")(self.probe.session, self.buffer, ctypes.byref(wish))
        if not pointer:
            raise ProbeError(REFUSED, self.probe.last_error())
        return new_capsule(pointer, NAMES[versioned], self.probe.destructors[versioned])


def take(probe, capsule):
    """Imports a capsule's tensor, as the standard wants a consumer to do; answers the buffer's number."""
    name = name_of(capsule)
    versioned = name == NAMES[True]
    if name not in NAMES.values():
        raise ProbeError(REFUSED, f"a capsule named {name} is no tensor to be consumed")
    buffer = probe.call("import", pointer_of(capsule, name), int(versioned))
    if rename(capsule, USED[versioned]) != 0:
        raise ProbeError(REFUSED, "the capsule cannot be renamed")
    return buffer


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def expect_code(code, wanted, what):
    expect(code == wanted, f"{what}: {code} instead of {wanted}")


class Checks:
    def __init__(self, torch, probe, megabytes):
        self.torch, self.probe, self.bytes = torch, probe, megabytes << 20
        self.failures, self.passed = [], 0

    def run(self, name, check, *arguments):
        begun = time.perf_counter()
        try:
            note, failure = check(*arguments) or {}, None
        except Exception as error:  # Every check is run, whatever became of the one before.
            note, failure = {}, f"{type(error).__name__}: {error}"
        gc.collect()
        line = {"check": name, "ok": failure is None, "seconds": round(time.perf_counter() - begun, 3), **note}
        if failure is None:
            self.passed += 1
        else:
            line["failure"] = failure
            self.failures.append(f"{name}: {failure}")
        print(json.dumps(line), flush=True)

    def kept(self, kind, byte):
        """A buffer of ours with one byte all over, whose fill may be in flight."""
        buffer = self.probe.call("allocate", KINDS[kind], self.bytes)
        self.probe.call("fill", buffer, byte)
        return buffer

    # Ours, used by PyTorch.

    def ours_there(self, kind, device, versioned):
        torch, probe = self.torch, self.probe
        buffer = self.kept(kind, 3)
        ours = Ours(probe, buffer, [self.bytes], device=device, versioned=versioned)
        tensor = torch.from_dlpack(ours)
        expect(tensor.data_ptr() == probe.call("address", buffer), "the tensor is elsewhere: a copy")
        expect(tensor.is_cuda == (device[0] == CUDA), f"the tensor is on {tensor.device}")
        expect(tuple(tensor.shape) == (self.bytes,) and tensor.dtype == torch.uint8, "another shape or type")
        expect(bool((tensor == 3).all()), "PyTorch reads something else than was written")
        expect_code(probe.code("fill", buffer, 4), BUSY, "a fill of ours while PyTorch has the memory")
        expect_code(probe.code("compare", buffer, 3), BUSY, "a read of ours while PyTorch may write")
        tensor.fill_(5)
        # Still in flight where it is on a device: ours comes behind it.
        del tensor
        gc.collect()
        probe.call("compare", buffer, 5)
        probe.call("fill", buffer, 6)
        probe.call("compare", buffer, 6)
        probe.call("drop", buffer)

    def ours_is_described(self):
        torch, probe = self.torch, self.probe
        cases = [
            (FLOAT, 32, torch.float32, [3, 4]),
            (FLOAT, 64, torch.float64, [2, 1, 5]),
            (FLOAT, 16, torch.float16, [7]),
            (BFLOAT, 16, torch.bfloat16, [8, 2]),
            (INT, 64, torch.int64, [4]),
            (INT, 8, torch.int8, []),
            (BOOL, 8, torch.bool, [6]),
            (COMPLEX, 64, torch.complex64, [2, 2]),
            (FLOAT, 32, torch.float32, [4, 0]),
        ]
        for code, bits, dtype, shape in cases:
            buffer = probe.call("allocate", PAGEABLE, 256)
            probe.call("fill", buffer, 0)
            tensor = torch.from_dlpack(Ours(probe, buffer, shape, code, bits, device=(CPU, 0)))
            expect(tensor.dtype == dtype and list(tensor.shape) == shape, f"{tensor.dtype} {list(tensor.shape)}")
            expect(tensor.is_contiguous() and not tensor.to(torch.complex64).any(), f"content of {dtype}")
            del tensor
            probe.call("drop", buffer)
        return {"types": len(cases)}

    def ours_for_reading(self):
        torch, probe = self.torch, self.probe
        buffer = self.kept("pageable", 3)
        ours = Ours(probe, buffer, [self.bytes], device=(CPU, 0), read_only=True)
        tensor = torch.from_dlpack(ours)
        expect(bool((tensor == 3).all()), "PyTorch reads something else")
        probe.call("compare", buffer, 3)
        expect_code(probe.code("fill", buffer, 4), BUSY, "a write of ours beside a reader")
        del tensor
        gc.collect()
        probe.call("fill", buffer, 4)
        probe.call("drop", buffer)

    def ours_never_consumed(self, device, versioned):
        probe = self.probe
        kind = "device" if device[0] == CUDA else "pageable"
        buffer = self.kept(kind, 3)
        ours = Ours(probe, buffer, [self.bytes], device=device, versioned=versioned)
        capsule = ours.__dlpack__(max_version=(1, 0))
        expect_code(probe.code("fill", buffer, 4), BUSY, "a fill while a capsule lives")
        del capsule
        gc.collect()
        probe.call("fill", buffer, 4)
        probe.call("compare", buffer, 4)
        probe.call("drop", buffer)

    def ours_is_consumed_once(self):
        torch, probe = self.torch, self.probe
        buffer = self.kept("pageable", 3)
        capsule = Ours(probe, buffer, [self.bytes], device=(CPU, 0)).__dlpack__(max_version=(1, 0))
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        for consume in (torch.utils.dlpack.from_dlpack, lambda capsule: take(probe, capsule)):
            try:
                consume(capsule)
            except Exception:  # Each version of PyTorch has another.
                continue
            raise AssertionError("a capsule was consumed twice")
        del tensor, capsule
        gc.collect()
        probe.call("fill", buffer, 4)
        probe.call("drop", buffer)

    def ours_outlives_its_handle(self, kind, device):
        torch, probe = self.torch, self.probe
        buffer = self.kept(kind, 3)
        tensor = torch.from_dlpack(Ours(probe, buffer, [self.bytes], device=device))
        probe.call("drop", buffer)
        probe.call("drain")
        # Memory that went back would be given again here.
        others = [self.kept(kind, 9) for _ in range(2)]
        for other in others:
            probe.call("compare", other, 9)
            expect(probe.call("address", other) != tensor.data_ptr(), "the memory was given to somebody else")
        expect(bool((tensor == 3).all()), "the memory went with the buffer")
        for other in others:
            probe.call("drop", other)

    def bad_streams_are_refused(self):
        probe = self.probe
        buffer = self.kept("device", 3)
        ours = Ours(probe, buffer, [self.bytes], device=(CUDA, probe.ordinal))
        for stream in (0, -2):
            try:
                ours.__dlpack__(stream=stream, max_version=(1, 0))
            except BufferError as error:
                expect("is not a DLPack stream" in str(error), str(error))
                continue
            raise AssertionError(f"stream={stream} was taken")
        probe.call("fill", buffer, 4)
        probe.call("drop", buffer)

    def torch_waits_for_ours(self, stream, named):
        """Slow work of ours is in flight when the tensor is handed over."""
        torch, probe = self.torch, self.probe
        scratch = probe.call("allocate", DEVICE, 1 << 30)
        buffer = self.kept("device", 1)
        probe.call("compare", buffer, 1)
        with torch.cuda.stream(stream):
            seen = torch.zeros(self.bytes, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        for _ in range(400):
            probe.call("fill", scratch, 9)
        probe.call("fill", buffer, 7)
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(Ours(probe, buffer, [self.bytes], device=(CUDA, probe.ordinal)))
            seen.copy_(tensor)
            was_busy = probe.call("is_busy") == 1
        stream.synchronize()
        expect(bool((seen == 7).all()), f"PyTorch's {named} stream was earlier than our fill")
        expect(was_busy, "the host waited, or the work was too short to tell")
        del tensor
        gc.collect()
        probe.call("drop", buffer)
        probe.call("drop", scratch)
        return {"in_flight_at_hand_over": was_busy}

    def ours_waits_for_torch(self, stream, named):
        """Slow work of PyTorch's is in flight when it lets go of the tensor."""
        torch, probe = self.torch, self.probe
        buffer = self.kept("device", 1)
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(Ours(probe, buffer, [self.bytes], device=(CUDA, probe.ordinal)))
            torch.cuda._sleep(200_000_000)
            tensor.fill_(8)
            del tensor
            gc.collect()
            was_busy = not stream.query()
        # Not refused, and not early.
        probe.call("compare", buffer, 8)
        expect(was_busy, "the work was too short to tell")
        probe.call("drop", buffer)
        return {"in_flight_at_the_end": was_busy, "stream": named}

    # PyTorch's, used by us.

    def capsule_of(self, tensor, versioned):
        arguments = {"max_version": (1, 0)} if versioned else {}
        if tensor.is_cuda:
            arguments["stream"] = self.probe.call("stream")
        capsule = tensor.__dlpack__(**arguments)
        expect(name_of(capsule) == NAMES[versioned], f"PyTorch made a capsule named {name_of(capsule)}")
        return capsule

    def theirs_here(self, place, versioned):
        torch, probe = self.torch, self.probe
        tensor = torch.full((self.bytes,), 2, dtype=torch.uint8, device="cuda" if place == "cuda" else "cpu")
        if place == "pinned":
            tensor = tensor.pin_memory()
        buffer = take(probe, self.capsule_of(tensor, versioned))
        expect(probe.call("address", buffer) == tensor.data_ptr(), "the buffer is elsewhere: a copy")
        expect(probe.call("imported") == 1, "not one tensor is imported")
        probe.call("compare", buffer, 2)
        probe.call("fill", buffer, 4)
        probe.call("drop", buffer)
        probe.call("drain")
        expect(probe.call("imported") == 0, "the tensor was not given back")
        expect(bool((tensor == 4).all()), "PyTorch reads something else than we wrote")

    def ours_waits_for_a_producer(self, named):
        torch, probe = self.torch, self.probe
        tensor = torch.full((self.bytes,), 2, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        stream = torch.cuda.Stream() if named == "side" else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            tensor.fill_(9)
            capsule = self.capsule_of(tensor, True)
            buffer = take(probe, capsule)
            was_busy = not stream.query()
        probe.call("compare", buffer, 9)
        expect(was_busy, "the work was too short to tell")
        probe.call("drop", buffer)
        probe.call("drain")
        return {"in_flight_at_hand_over": was_busy}

    def theirs_is_kept_alive(self):
        torch, probe = self.torch, self.probe
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        tensor = torch.full((self.bytes,), 2, dtype=torch.uint8, device="cuda")
        buffer = take(probe, self.capsule_of(tensor, True))
        del tensor
        gc.collect()
        expect(torch.cuda.memory_allocated() > before, "PyTorch freed what we have")
        probe.call("compare", buffer, 2)
        probe.call("drop", buffer)
        probe.call("drain")
        expect(torch.cuda.memory_allocated() == before, "the deleter was not called")

    def theirs_may_be_refused(self):
        torch, probe = self.torch, self.probe
        whole = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        buffer = take(probe, self.capsule_of(whole.t(), True))
        expect(probe.call("address", buffer) == whole.data_ptr(), "a transposed tensor is elsewhere")
        probe.call("drop", buffer)
        for name, tensor in (("every second column", whole[:, ::2]), ("broadcast", whole[:1].expand(8, 8))):
            capsule = self.capsule_of(tensor, True)
            try:
                take(probe, capsule)
            except ProbeError as error:
                expect_code(error.code, REFUSED, name)
                expect("is not dense" in str(error), str(error))
            else:
                raise AssertionError(f"{name} was taken")
            expect(name_of(capsule) == NAMES[True], "a refused capsule was renamed")
            del capsule
        gc.collect()
        probe.call("drain")
        expect(probe.call("imported") == 0, "something is still imported")

    def theirs_comes_back_through_us(self):
        """PyTorch's memory as a buffer of ours, lent to PyTorch again: one memory all along."""
        torch, probe = self.torch, self.probe
        tensor = torch.full((self.bytes,), 2, dtype=torch.uint8, device="cuda")
        buffer = take(probe, self.capsule_of(tensor, True))
        probe.call("fill", buffer, 6)
        again = torch.from_dlpack(Ours(probe, buffer, [self.bytes], device=(CUDA, probe.ordinal)))
        expect(again.data_ptr() == tensor.data_ptr(), "elsewhere: a copy")
        expect(bool((again == 6).all()), "something else than we wrote")
        probe.call("drop", buffer)
        del again
        gc.collect()
        probe.call("drain")

    def nothing_is_alive(self):
        self.probe.close()


def on_the_host(checks):
    for versioned in (True, False):
        form = "versioned" if versioned else "unversioned"
        checks.run(f"ours, pageable, {form}", checks.ours_there, "pageable", (CPU, 0), versioned)
        checks.run(f"ours, never consumed, {form}", checks.ours_never_consumed, (CPU, 0), versioned)
        checks.run(f"theirs, pageable, {form}", checks.theirs_here, "cpu", versioned)
    checks.run("ours, described", checks.ours_is_described)
    checks.run("ours, for reading only", checks.ours_for_reading)
    checks.run("ours, consumed once", checks.ours_is_consumed_once)
    checks.run("ours outlives its handle, pageable", checks.ours_outlives_its_handle, "pageable", (CPU, 0))
    checks.run("theirs, dense or refused", checks.theirs_may_be_refused)


def on_the_device(checks, ordinal):
    torch = checks.torch
    # PyTorch knows neither kDLCUDAHost nor kDLCUDAManaged: pinned memory is shown as the CPU's, unified memory as either's.
    shown = [
        ("pinned", (CPU, 0)),
        ("mapped", (CPU, 0)),
        ("device", (CUDA, ordinal)),
        ("unified", (CUDA, ordinal)),
        ("unified", (CPU, 0)),
    ]
    for versioned in (True, False):
        form = "versioned" if versioned else "unversioned"
        for kind, device in shown:
            name = f"ours, {kind} as {'CUDA' if device[0] == CUDA else 'CPU'}, {form}"
            checks.run(name, checks.ours_there, kind, device, versioned)
        checks.run(f"ours, never consumed, device, {form}", checks.ours_never_consumed, (CUDA, ordinal), versioned)
        checks.run(f"theirs, pinned, {form}", checks.theirs_here, "pinned", versioned)
        checks.run(f"theirs, device, {form}", checks.theirs_here, "cuda", versioned)
    checks.run("ours outlives its handle, device", checks.ours_outlives_its_handle, "device", (CUDA, ordinal))
    checks.run("bad streams", checks.bad_streams_are_refused)
    for named, stream in (("side", torch.cuda.Stream()), ("default", torch.cuda.default_stream())):
        checks.run(f"PyTorch's {named} stream waits for ours", checks.torch_waits_for_ours, stream, named)
        checks.run(f"ours waits for PyTorch's {named} stream", checks.ours_waits_for_torch, stream, named)
        checks.run(f"ours waits for a producer on the {named} stream", checks.ours_waits_for_a_producer, named)
    checks.run("theirs is kept alive", checks.theirs_is_kept_alive)
    checks.run("there and back through us", checks.theirs_comes_back_through_us)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        import torch
        import torch.utils.dlpack
    except ImportError as error:
        sys.exit(f"there is no PyTorch: {error}")
    host_only = "--host-only" in sys.argv[2:]
    numbers = [argument for argument in sys.argv[2:] if argument.isdigit()]
    begun = time.perf_counter()
    if not host_only:
        # PyTorch first, so that the library joins its context.
        torch.cuda.init()
        torch.ones(1, device="cuda").sum().item()
    probe = Probe(sys.argv[1], HOST_ALONE if host_only else 0)
    checks = Checks(torch, probe, int(numbers[0]) if numbers else 16)
    on_the_host(checks)
    if not host_only:
        on_the_device(checks, 0)
        torch.cuda.synchronize()
    gc.collect()
    checks.run("nothing is alive at the end", checks.nothing_is_alive)
    result = {
        "ok": not checks.failures,
        "what": "DLPack with PyTorch",
        "torch": torch.__version__,
        "device": "cpu" if host_only else torch.cuda.get_device_name(0),
        "passed": checks.passed,
        "seconds": round(time.perf_counter() - begun, 2),
        "failures": checks.failures,
    }
    print(json.dumps(result))
    sys.exit(0 if not checks.failures else 1)


if __name__ == "__main__":
    main()
