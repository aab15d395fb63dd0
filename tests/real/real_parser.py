"""Oracle: run SGLang's own ``ServerArgs.add_cli_args`` and print every argument that argparse then holds.

Called as ``python real_parser.py SITE_PACKAGES``. Packages that are not installed (torch, triton, …) are replaced by
stand-ins, so the real definitions run on any machine; the arguments themselves come from the real argparse. Without
SITE_PACKAGES the environment it runs in is taken as it is, with no stand-ins: the way to ask a built image.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import sys

from stand_ins import Finder, StubModule


class _Lenient(importlib.abc.Loader):
    """Runs a module of sglang; where it stops at a stand-in, the names bound so far stay and the rest are stand-ins."""

    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        try:
            self.real.exec_module(module)
        except Exception as error:
            if module.__name__ == "sglang.srt.server_args":
                raise
            sys.stderr.write(f"{module.__name__}: {type(error).__name__}: {error}".splitlines()[0] + "\n")
            module.__getattr__ = StubModule.__getattr__.__get__(module)


class _SglangFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "sglang":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Lenient(spec.loader)
        return spec


def main(site_packages=None):
    if site_packages is not None:
        sys.path.insert(0, site_packages)
        sys.meta_path.insert(0, _SglangFinder())
        sys.meta_path.append(Finder(lambda name: name.split(".")[0] != "sglang"))
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    rows = []
    for action in parser._actions:
        if "--help" in action.option_strings:
            continue
        choices = None if action.choices is None else [str(c) for c in action.choices]
        rows.append(
            {
                "names": action.option_strings,
                "dest": action.dest,
                "action": type(action).__name__,
                "nargs": action.nargs,
                "type": getattr(action.type, "__name__", None),
                "choices": sorted(choices) if isinstance(action.choices, set) else choices,
                "default": action.default if _is_json(action.default) else repr(action.default),
                "required": action.required,
            }
        )
    json.dump(rows, sys.stdout)


def _is_json(value):
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
