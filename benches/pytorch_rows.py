"""What the scripts that measure PyTorch beside our rows share: percentiles, a row as JSON, repetitions, the order of a run."""

import datetime
import json
import statistics
import sys
import time
import traceback

import torch


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return at(0.1), statistics.median(values), at(0.9)


def row(group, name, what, unit, values, moved=0, verified=False):
    p10, p50, p90 = percentiles(values)
    return {
        "id": f"pytorch/{group}/{name}",
        "path": f"{group}: {what}",
        "method": f"PyTorch {torch.__version__}",
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
    return max(30, int(sys.argv[1]) if len(sys.argv) > 1 else usual)
