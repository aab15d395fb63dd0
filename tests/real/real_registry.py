"""Oracle: run SGLang's own model registry and print the architectures that it registers.

Called as ``python real_registry.py SITE_PACKAGES``: the registry and all modules of ``sglang.srt.models`` run, what
they import from elsewhere is a stand-in. Without SITE_PACKAGES the environment it runs in is taken as it is: the way to
ask a built image. A module that could not be imported is named on stderr; SGLang leaves its models out.
"""

import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types
from pathlib import Path

from stand_ins import Finder, Stub

MODELS = "sglang.srt.models"
REAL = (MODELS, "sglang.srt.environ", "sglang.srt.configs.janus_pro")  # the last is imported with *


def _is_real(name):
    return name.startswith(REAL)


class _RealFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path) if _is_real(name) else None


def _with_stand_ins(site_packages):
    sys.path.insert(0, site_packages)
    for name in ("sglang", "sglang.srt", "sglang.srt.configs"):  # their __init__ would import what is not there
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(site_packages, *name.split(".")))]
    Stub.__iter__ = lambda self: iter((0, 0))  # a compute capability
    sys.meta_path.insert(0, _RealFinder())
    sys.meta_path.insert(1, Finder(lambda name: name.split(".")[0] == "sglang" and not _is_real(name)))
    sys.meta_path.append(Finder(lambda name: name.split(".")[0] != "sglang"))


def main(site_packages=None):
    logging.basicConfig(stream=sys.stderr)
    if site_packages is not None:
        _with_stand_ins(site_packages)
    registry = importlib.import_module(f"{MODELS}.registry")
    json.dump(sorted(registry.import_model_classes(MODELS)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
