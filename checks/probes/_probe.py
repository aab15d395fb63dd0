"""What the probes share: settings in, one JSON object out."""

import importlib
import json
import os
import sys


class Skip(Exception):
    """The probe cannot say anything here; the text says what is missing."""


class Fail(Exception):
    """What was probed does not work; the text says how, and ``cause`` names it where it has a name."""

    def __init__(self, text, cause=None):
        super().__init__(text)
        self.cause = cause


def settings():
    """The caller's settings: ``gpu`` such as ``sm_120``."""
    return json.loads(os.environ.get("STACKB_PROBE", "{}"))


def run(name, probe):
    """Run ``probe()``, which returns its facts, and print the one JSON object (``stackb schema probe``)."""
    result = {"schema_version": 1, "probe": name, "status": "ok", "reason": None, "cause": None, "facts": {}}
    try:
        result["facts"] = probe()
    except Skip as skip:
        result.update(status="skipped", reason=str(skip))
    except Fail as failure:
        result.update(status="failed", reason=str(failure), cause=failure.cause)
    except Exception as error:
        result.update(status="failed", reason=f"{type(error).__name__}: {error}")
    sys.stdout.write("\n" + json.dumps(result, sort_keys=True) + "\n")
    sys.stdout.flush()


def mapped(*stems):
    """Paths of the shared objects of this process whose names begin with one of ``stems``, by stem."""
    found = {stem: set() for stem in stems}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5].strip() if line.count("/") else ""
            base = os.path.basename(path)
            for stem in stems:
                if base.startswith(stem + ".so"):
                    found[stem].add(path)
    return {stem: sorted(paths) for stem, paths in found.items()}


def import_torch():
    """torch, or a skip that says why not."""
    try:
        import torch
    except ImportError as error:
        raise Skip(f"torch cannot be imported: {error}") from error
    return torch


def import_beside_torch(name):
    """Import a package that may want the driver; give where it lies and what version it says it is."""
    import_torch()
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if "libcuda.so.1" in str(error):
            raise Skip(f"needs the driver's libcuda.so.1: {error}") from error
        raise
    return {"file": module.__file__, "version": getattr(module, "__version__", None)}


def import_torch_with_gpu(count=1):
    """torch with at least ``count`` visible GPUs, or a skip."""
    torch = import_torch()
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < count:
        raise Skip(f"{count} GPU{'s' if count > 1 else ''} needed, {seen} visible")
    return torch
