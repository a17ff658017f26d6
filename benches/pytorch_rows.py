"""What the scripts that measure PyTorch beside our rows share: percentiles, a row as JSON, repetitions, the order of a run."""

import datetime
import json
import statistics
import sys
import threading
import time
import traceback

import torch


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return at(0.1), statistics.median(values), at(0.9)


def row(group, name, what, unit, values, moved=0, verified=False):
    return any_row(f"{group}/{name}", f"{group}: {what}", "", unit, values, moved, verified)


def any_row(name, path, way, unit, values, moved, verified):
    p10, p50, p90 = percentiles(values)
    return {
        "id": f"pytorch/{name}",
        "path": path,
        "method": f"PyTorch {torch.__version__}{way}",
        "bytes": moved,
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


def repeated(repetitions, once):
    """Values of `once`, which measures itself."""
    for _ in range(5):
        once()
    return [once() for _ in range(repetitions)]


def timed(work, drain, many):
    """Seconds for each of `many`, without the drain."""
    begun = time.perf_counter()
    work()
    took = time.perf_counter() - begun
    drain()
    return took / many


def together(threads, work):
    """Seconds that so many threads take from a common start until the last is through. `work` is given the gate and does all that
    is not to be counted before it waits there."""
    gate = threading.Barrier(threads + 1, timeout=30)

    def body():
        work(gate)
        gate.wait()

    all_of_them = [threading.Thread(target=body) for _ in range(threads)]
    [thread.start() for thread in all_of_them]
    gate.wait()
    begun = time.perf_counter()
    gate.wait()
    took = time.perf_counter() - begun
    [thread.join() for thread in all_of_them]
    return took


def run(what, parts):
    """Prints every row of every part; the exit status says whether one failed or moved wrong bytes."""
    header = {
        "what": f"pytorch {what}",
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name(0),
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    print(json.dumps(header))
    wrong = 0
    for part in parts:
        try:
            for one in part:
                wrong += one["bytes"] > 0 and not one["verified"]
                print(json.dumps(one))
        except Exception:
            # The other parts' rows count all the same.
            traceback.print_exc()
            wrong += 1
    sys.exit(1 if wrong else 0)


def asked_repetitions(usual):
    """What the command line asks for, at least 30."""
    return max(30, int(sys.argv[1]) if len(sys.argv) > 1 else usual)
